import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function EvaluationPage() {
  return (
    <Page title="Evaluation">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
