import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function ModelPage() {
  return (
    <Page title="Model">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
