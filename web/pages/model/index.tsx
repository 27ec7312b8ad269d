import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function ModelPage() {
  return (
    <Page title="Model">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
