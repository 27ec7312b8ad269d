import { Compass } from 'lucide-react'
import { LinkButton } from '../ui/button.tsx'
import { EmptyState } from '../ui/feedback.tsx'
import { Page } from '../ui/layout.tsx'

export function NotFound() {
  return (
    <Page title="There is no such page">
      <EmptyState
        icon={<Compass />}
        title="The address leads nowhere"
        action={
          <LinkButton to="/" variant="primary">
            Go home
          </LinkButton>
        }
      >
        It may have been mistyped, or what it showed was deleted.
      </EmptyState>
    </Page>
  )
}
