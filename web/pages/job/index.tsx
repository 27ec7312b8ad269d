import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function JobPage() {
  return (
    <Page title="Job">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
