import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function NewJobPage() {
  return (
    <Page title="New job">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
