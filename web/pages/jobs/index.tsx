import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function JobsPage() {
  return (
    <Page title="Jobs">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
