import { useNavigate, useParams } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import type { Scope } from '../../../contract/scopes.ts'
import { useSession } from '../../lib/session.ts'
import { EmptyState } from '../../ui/feedback.tsx'
import { Page, Tabs } from '../../ui/layout.tsx'
import { Audit } from './audit.tsx'
import { Keys } from './keys.tsx'
import { Members } from './members.tsx'
import { Profile } from './profile.tsx'
import { Sessions } from './sessions.tsx'
import { UsageSection } from './usage.tsx'
import { Webhooks } from './webhooks.tsx'

const sections: { value: string; label: string; scope?: Scope; panel: ReactNode }[] = [
  { value: 'profile', label: 'Profile', panel: <Profile /> },
  { value: 'keys', label: 'API keys', scope: 'keys:read', panel: <Keys /> },
  { value: 'members', label: 'Members', scope: 'members:read', panel: <Members /> },
  { value: 'webhooks', label: 'Webhooks', scope: 'webhooks:read', panel: <Webhooks /> },
  { value: 'usage', label: 'Usage', scope: 'usage:read', panel: <UsageSection /> },
  { value: 'audit', label: 'Audit log', scope: 'audit:read', panel: <Audit /> },
  { value: 'sessions', label: 'Sessions', panel: <Sessions /> },
]

export default function SettingsPage() {
  const { section } = useParams({ from: '/shell/settings/$section' })
  const navigate = useNavigate()
  const { scopes, profile } = useSession()
  const tabs = sections.map((section) => ({
    ...section,
    panel:
      section.scope && !scopes.includes(section.scope) ? (
        <EmptyState title="No access">
          Your role ({profile.role}) can't view this. Ask an admin or owner of the account.
        </EmptyState>
      ) : (
        section.panel
      ),
  }))
  return (
    <Page title="Settings" description={profile.account.name}>
      <Tabs
        label="Settings"
        tabs={tabs}
        value={tabs.some(({ value }) => value === section) ? section : 'profile'}
        onChange={(value) => void navigate({ to: '/settings/$section', params: { section: value } })}
      />
    </Page>
  )
}
