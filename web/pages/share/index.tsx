import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function SharePage() {
  return (
    <Page title="Shared model">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
