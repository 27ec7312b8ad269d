import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function OperatorPage() {
  return (
    <Page title="Operator">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
