import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Ellipsis, KeyRound, Plus } from 'lucide-react'
import { useMemo, useState } from 'react'
import { scopes as allScopes, type Scope } from '../../../contract/scopes.ts'
import type { ApiKey } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { day_ms } from '../../lib/utc-day.ts'
import { Button, IconButton } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { Badge, EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, NameField } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog, Menu } from '../../ui/popups.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { actionsColumn, type Column, Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'

/** The keys that programs sign their requests with. */
export function Keys() {
  const mayWrite = useMay('keys:write')
  const manages = useMay('members:write')
  const [creating, setCreating] = useState(false)
  const [secret, setSecret] = useState<string>()
  const [renamed, setRenamed] = useState<ApiKey>()
  const [revoked, setRevoked] = useState<ApiKey>()
  const client = useQueryClient()
  const { query, rows = [], more } = usePages(['keys', 'list'], (options) => tunery.keys.list({ limit: 50 }, options))
  const columns: Column<ApiKey>[] = [
    { id: 'name', header: 'Name', grow: true, cell: (key) => key.name },
    { id: 'prefix', header: 'Key', cell: (key) => <Code>{`${key.prefix}…`}</Code> },
    { id: 'may', header: 'Permissions', cell: (key) => <Scopes scopes={key.scopes} />, from: 'md' },
    { id: 'used', header: 'Last used', cell: (key) => <RelativeTime time={key.last_used_at} />, from: 'sm' },
    {
      id: 'expires',
      header: 'Expires',
      from: 'lg',
      cell: (key) =>
        key.status === 'expired' ? <Status status="expired" tone="warn" /> : <RelativeTime time={key.expires_at} />,
    },
    {
      ...actionsColumn,
      cell: (key) =>
        mayWrite && (
          <Menu
            trigger={<IconButton size="sm" label={`Actions for ${key.name}`} icon={<Ellipsis aria-hidden />} />}
            entries={[
              { label: 'Rename', onClick: () => setRenamed(key) },
              { label: 'Revoke', danger: true, onClick: () => setRevoked(key) },
            ]}
          />
        ),
    },
  ]
  return (
    <Card
      title="API keys"
      description={manages ? 'All members' : 'Your keys'}
      actions={
        mayWrite && (
          <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
            Create key
          </Button>
        )
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="API keys"
            columns={columns}
            rows={rows}
            rowId={({ id }) => id}
            more={more}
            empty={
              <EmptyState compact icon={<KeyRound aria-hidden />} title="No API keys yet">
                Your code sends its key in the <Code>Authorization</Code> header.
              </EmptyState>
            }
          />
        )}
      </Loaded>
      <CreateKey
        open={creating}
        onClose={() => setCreating(false)}
        onCreated={(key) => {
          setCreating(false)
          setSecret(key)
          void client.invalidateQueries({ queryKey: ['keys'] })
        }}
      />
      <SecretDialog secret={secret} title="Your new API key" onClose={() => setSecret(undefined)}>
        Use it as the API key of any OpenAI client, with the base URL <Code>{`${location.origin}/v1`}</Code>.
      </SecretDialog>
      {renamed && <RenameKey key={renamed.id} named={renamed} onClose={() => setRenamed(undefined)} />}
      <ConfirmDialog
        open={revoked !== undefined}
        onOpenChange={(open) => !open && setRevoked(undefined)}
        title={`Revoke ${revoked?.name ?? 'the key'}?`}
        action="Revoke key"
        onConfirm={async () => {
          await tunery.keys.revoke(revoked!.id)
          await client.invalidateQueries({ queryKey: ['keys'] })
          toast.good('API key revoked')
        }}
      >
        Requests with it fail immediately. This can't be undone.
      </ConfirmDialog>
    </Card>
  )
}

function Scopes({ scopes }: { scopes: readonly string[] }) {
  const full = allScopes.filter((scope) => scope !== 'operator')
  if (full.every((scope) => scopes.includes(scope))) return <Badge tone="accent">full access</Badge>
  return (
    <span className="flex flex-wrap gap-1">
      {scopes.slice(0, 3).map((scope) => (
        <Badge key={scope}>{scope}</Badge>
      ))}
      {scopes.length > 3 && <Badge>+{scopes.length - 3}</Badge>}
    </span>
  )
}

const presets = [
  { value: 'full', label: 'Full access', note: 'Everything your role can do' },
  { value: 'inference', label: 'Call models only', note: 'For applications' },
  { value: 'read_only', label: 'Read only', note: 'For monitoring and reports' },
  { value: 'own', label: 'Custom', note: 'Choose individual scopes' },
] as const
type Preset = (typeof presets)[number]['value']

const lifetimes = [
  { value: 'never', label: 'Never', days: null },
  { value: '30', label: 'In 30 days', days: 30 },
  { value: '90', label: 'In 90 days', days: 90 },
  { value: '365', label: 'In a year', days: 365 },
] as const

function CreateKey({
  open,
  onClose,
  onCreated,
}: {
  open: boolean
  onClose: () => void
  onCreated: (key: string) => void
}) {
  const { scopes: mine } = useSession()
  const [name, setName] = useState('')
  const [preset, setPreset] = useState<Preset>('full')
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(['inference']))
  const [lifetime, setLifetime] = useState<(typeof lifetimes)[number]['value']>('never')
  // Set once for a form: sent again it is the same request.
  const expires_at = useMemo(() => {
    const days = lifetimes.find(({ value }) => value === lifetime)!.days
    return days === null || !open ? null : new Date(Date.now() + days * day_ms).toISOString()
  }, [lifetime, open])
  const create = useMutation({
    mutationFn: () => {
      return tunery.keys.create({ name, scopes: preset === 'own' ? ([...chosen] as Scope[]) : preset, expires_at })
    },
    onSuccess: ({ key }) => {
      setName('')
      onCreated(key)
    },
  })
  const toggle = (scope: string, on: boolean) => {
    const next = new Set(chosen)
    if (on) next.add(scope)
    else next.delete(scope)
    setChosen(next)
  }
  return (
    <Dialog open={open} onOpenChange={(next) => !next && onClose()} title="Create API key">
      <Form onSubmit={() => create.mutate()}>
        <NameField
          help="For example, the app that uses it."
          error={fieldError(create.error, 'name')}
          value={name}
          onChange={setName}
        />
        <Field label="Permissions" help="Always limited by your role.">
          <Select value={preset} onChange={setPreset} choices={presets} />
        </Field>
        {preset === 'own' && (
          <fieldset className="grid gap-2 rounded-md p-3 ring-1 ring-line sm:grid-cols-2">
            <legend className="px-1 text-sm font-medium">Scopes</legend>
            {allScopes
              .filter((scope) => mine.includes(scope))
              .map((scope) => (
                <Checkbox key={scope} label={scope} checked={chosen.has(scope)} onChange={(on) => toggle(scope, on)} />
              ))}
          </fieldset>
        )}
        <Field label="Expires">
          <Select value={lifetime} onChange={setLifetime} choices={lifetimes} />
        </Field>
        <FormError error={create.error} fields={['name']} />
        <FormButtons
          onCancel={onClose}
          busy={create.isPending}
          missing={
            !name.trim() ? 'Enter a name.' : preset === 'own' && chosen.size === 0 && 'Choose at least one scope.'
          }
        >
          Create key
        </FormButtons>
      </Form>
    </Dialog>
  )
}

function RenameKey({ named, onClose }: { named: ApiKey; onClose: () => void }) {
  const [name, setName] = useState(named.name)
  const client = useQueryClient()
  const rename = useMutation({
    mutationFn: () => tunery.keys.rename(named.id, { name }),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ['keys'] })
      onClose()
    },
  })
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Rename API key" width="sm">
      <Form onSubmit={() => rename.mutate()}>
        <NameField error={fieldError(rename.error, 'name')} value={name} onChange={setName} />
        <FormError error={rename.error} fields={['name']} />
        <FormButtons onCancel={onClose} busy={rename.isPending} missing={!name.trim() && 'Enter a name.'}>
          Rename
        </FormButtons>
      </Form>
    </Dialog>
  )
}
