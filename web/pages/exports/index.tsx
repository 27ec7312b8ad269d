import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function ExportsPage() {
  return (
    <Page title="Exports">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
