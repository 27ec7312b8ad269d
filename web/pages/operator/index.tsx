import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { Plus } from 'lucide-react'
import { useState } from 'react'
import type { Account } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input, NameField } from '../../ui/field.tsx'
import { Card, Page, Tabs } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { Machine } from './machine.tsx'
import { Tiers } from './tiers.tsx'
import { UsageToday } from './usage.tsx'

/** What the operator of the installation sees: all accounts, and the machine. */
export default function OperatorPage() {
  const isOperator = useMay('operator')
  const { tab } = useSearch({ from: '/shell/operator' })
  const navigate = useNavigate()
  if (!isOperator)
    return (
      <Page title="Operator">
        <Card>
          <EmptyState title="For the operator of this installation">
            It is the person who installed it, or whom they made one.
          </EmptyState>
        </Card>
      </Page>
    )
  return (
    <Page title="Operator" description="All accounts of this installation, and the machine it runs on.">
      <Tabs
        label="Operator"
        value={tab ?? 'accounts'}
        onChange={(value) => void navigate({ to: '/operator', search: { tab: value } })}
        tabs={[
          {
            value: 'accounts',
            label: 'Accounts',
            panel: (
              <div className="grid gap-4">
                <Accounts />
                <UsageToday />
              </div>
            ),
          },
          { value: 'tiers', label: 'Tiers', panel: <Tiers /> },
          { value: 'machine', label: 'Machine', panel: <Machine /> },
        ]}
      />
    </Page>
  )
}

function Accounts() {
  const client = useQueryClient()
  const [creating, setCreating] = useState(false)
  const [key, setKey] = useState<string>()
  const { query, rows, more } = usePages(['operator', 'accounts', 'list'], (options) =>
    tunery.operator.accounts.list({ limit: 50 }, options),
  )
  const tiers = useQuery({ queryKey: ['hub', 'tiers'], queryFn: ({ signal }) => tunery.hub.tiers({ signal }) })
  const refresh = () => client.invalidateQueries({ queryKey: ['operator', 'accounts'] })
  const change = useMutation({
    mutationFn: ({ id, ...body }: { id: string; tier?: string; status?: Account['status'] }) =>
      tunery.operator.accounts.update(id, body),
    onSuccess: refresh,
    onError: toastError('Could not change the account'),
  })
  const choices = tiers.data?.tiers.map(({ id, name }) => ({ value: id, label: name })) ?? []
  return (
    <Card
      title="Accounts"
      actions={
        <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
          Create account
        </Button>
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Accounts"
            rows={rows ?? []}
            rowId={({ id }: Account) => id}
            more={more}
            columns={[
              { id: 'name', header: 'Name', grow: true, cell: (account) => account.name },
              {
                id: 'status',
                header: 'Status',
                cell: ({ status }) => <Status status={status} tone={status === 'active' ? 'good' : 'warn'} />,
              },
              { id: 'members', header: 'Members', align: 'right', from: 'sm', cell: (account) => account.members },
              {
                id: 'tier',
                header: 'Tier',
                width: '10rem',
                cell: (account) => (
                  <Select
                    aria-label={`Tier of ${account.name}`}
                    value={account.tier}
                    onChange={(tier) => change.mutate({ id: account.id, tier })}
                    choices={choices}
                  />
                ),
              },
              {
                id: 'created',
                header: 'Created',
                from: 'md',
                cell: (account) => <RelativeTime time={account.created_at} />,
              },
              {
                ...actionsColumn,
                cell: (account) =>
                  account.status === 'active' ? (
                    <ConfirmDialog
                      trigger={
                        <Button size="sm" variant="quiet" aria-label={`Suspend ${account.name}`}>
                          Suspend
                        </Button>
                      }
                      title={`Suspend ${account.name}?`}
                      action="Suspend account"
                      onConfirm={() => change.mutateAsync({ id: account.id, status: 'suspended' })}
                    >
                      Its requests are refused within a second, and its jobs wait. Nothing is lost.
                    </ConfirmDialog>
                  ) : (
                    <Button
                      size="sm"
                      variant="quiet"
                      onClick={() => change.mutate({ id: account.id, status: 'active' })}
                    >
                      Reinstate
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
      {creating && (
        <CreateAccount
          tiers={choices}
          onClose={() => setCreating(false)}
          onCreated={(account) => {
            setCreating(false)
            setKey(account)
            void refresh()
            toast.good('The account is there')
          }}
        />
      )}
      <SecretDialog secret={key} title="The owner's first key" onClose={() => setKey(undefined)}>
        Send it to the owner. <Code>./tunery sign-in-link --email</Code> makes a link for the dashboard.
      </SecretDialog>
    </Card>
  )
}

function CreateAccount({
  tiers,
  onClose,
  onCreated,
}: {
  tiers: { value: string; label: string }[]
  onClose: () => void
  onCreated: (key: string) => void
}) {
  const [name, setName] = useState('')
  const [owner, setOwner] = useState('')
  const [email, setEmail] = useState('')
  const [tier, setTier] = useState<string | null>(null)
  const create = useMutation({
    mutationFn: () =>
      tunery.operator.accounts.create({
        name,
        owner: { name: owner.trim() || name, email: email.trim() || null },
        ...(tier && { tier }),
      }),
    onSuccess: ({ key }) => onCreated(key),
  })
  const fields = ['name', 'owner.name', 'owner.email', 'tier']
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Create an account">
      <Form onSubmit={() => create.mutate()}>
        <NameField label="Account" error={fieldError(create.error, 'name')} value={name} onChange={setName} />
        <NameField
          label="Owner's name"
          optional
          error={fieldError(create.error, 'owner.name')}
          value={owner}
          onChange={setOwner}
        />
        <Field label="Owner's email" optional error={fieldError(create.error, 'owner.email')}>
          <Input type="email" value={email} onChange={(event) => setEmail(event.target.value)} />
        </Field>
        <Field label="Tier" optional help="Empty: the default tier." error={fieldError(create.error, 'tier')}>
          <Select value={tier} onChange={setTier} choices={tiers} placeholder="Default" />
        </Field>
        <FormError error={create.error} fields={fields} />
        <FormButtons onCancel={onClose} busy={create.isPending} missing={!name.trim() && 'Enter a name.'}>
          Create account
        </FormButtons>
      </Form>
    </Dialog>
  )
}
