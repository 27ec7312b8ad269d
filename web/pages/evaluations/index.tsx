import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function EvaluationsPage() {
  return (
    <Page title="Evaluations">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
