import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function SharePage() {
  return (
    <Page title="Shared model">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
