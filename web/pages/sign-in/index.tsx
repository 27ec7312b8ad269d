import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function SignInPage() {
  return (
    <Page title="Sign in">
      <Card>
        <EmptyState title="This page is not built yet" />
      </Card>
    </Page>
  )
}
