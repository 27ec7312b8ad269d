import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function NewJobPage() {
  return (
    <Page title="New job">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
