import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function EvaluationsPage() {
  return (
    <Page title="Evaluations">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
