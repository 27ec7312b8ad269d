import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { KeyRound } from 'lucide-react'
import { useState } from 'react'
import { passwordLength } from '../../../contract/sign-in.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { refreshSession, useSession } from '../../lib/session.ts'
import { addPasskey, deviceName, passkeysWork } from '../../lib/sign-in.ts'
import { Button, buttonClass } from '../../ui/button.tsx'
import { EmptyState, FormError, Loaded } from '../../ui/feedback.tsx'
import { Field, Form, Input } from '../../ui/field.tsx'
import { Card, Facts } from '../../ui/layout.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { IdentityTable } from './identities.tsx'

/** Who you are, and how you sign in. */
export function Profile() {
  const { profile } = useSession()
  return (
    <div className="grid items-start gap-4 lg:grid-cols-2">
      <Person />
      <Card title="Account">
        <Facts
          facts={[
            ['Account', profile.account.name],
            ['ID', <Code key="id">{profile.account.id}</Code>],
            ['Your role', profile.role.replace(/^./, (letter) => letter.toUpperCase())],
            ['Tier', profile.tier.name],
          ]}
        />
      </Card>
      <Password />
      <Passkeys />
      <Provider />
    </div>
  )
}

function Person() {
  const { profile } = useSession()
  const [name, setName] = useState(profile.name)
  const [email, setEmail] = useState(profile.email ?? '')
  const save = useMutation({
    mutationFn: () => tunery.user.update({ name, email: email.trim() || null }),
    onSuccess: async () => {
      await refreshSession()
      toast.good('Saved')
    },
  })
  const changed = name !== profile.name || email !== (profile.email ?? '')
  return (
    <Card title="Profile">
      <Form onSubmit={() => save.mutate()}>
        <Field label="Name" error={fieldError(save.error, 'name')}>
          <Input value={name} onChange={(event) => setName(event.target.value)} maxLength={200} autoComplete="name" />
        </Field>
        <Field label="Email" help="You sign in with it." error={fieldError(save.error, 'email')}>
          <Input type="email" value={email} onChange={(event) => setEmail(event.target.value)} autoComplete="email" />
        </Field>
        <FormError error={save.error} fields={['name', 'email']} />
        <div>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={!changed || !name.trim()}>
            Save
          </Button>
        </div>
      </Form>
    </Card>
  )
}

function Password() {
  const { has_password, profile } = useSession()
  const [current, setCurrent] = useState('')
  const [password, setPassword] = useState('')
  const save = useMutation({
    mutationFn: () => tunery.user.setPassword({ password, ...(current && { current_password: current }) }),
    onSuccess: async () => {
      setCurrent('')
      setPassword('')
      await refreshSession()
      toast.good('Password updated', 'Your other sessions were signed out.')
    },
  })
  const fields = ['password', 'current_password']
  return (
    <Card title="Password" description={has_password ? undefined : 'Not set'}>
      <Form onSubmit={() => save.mutate()}>
        <input type="hidden" name="username" autoComplete="username" value={profile.email ?? ''} />
        {has_password && (
          <Field
            label="Current password"
            help="Not needed within 10 minutes of signing in with a link."
            error={fieldError(save.error, 'current_password')}
          >
            <Input
              type="password"
              autoComplete="current-password"
              value={current}
              onChange={(event) => setCurrent(event.target.value)}
            />
          </Field>
        )}
        <Field
          label="New password"
          help={`At least ${passwordLength.min} characters.`}
          error={fieldError(save.error, 'password')}
        >
          <Input
            type="password"
            autoComplete="new-password"
            value={password}
            onChange={(event) => setPassword(event.target.value)}
          />
        </Field>
        <FormError error={save.error} fields={fields} />
        <div>
          <Button
            type="submit"
            variant="primary"
            busy={save.isPending}
            disabled={password.length < passwordLength.min || !profile.email}
          >
            {has_password ? 'Change password' : 'Set password'}
          </Button>
          {!profile.email ? (
            <p className="mt-2 text-sm text-muted">Save an email address first. You sign in with it.</p>
          ) : (
            password.length < passwordLength.min && (
              <p className="mt-2 text-sm text-muted">
                Enter a new password of at least {passwordLength.min} characters.
              </p>
            )
          )}
        </div>
      </Form>
    </Card>
  )
}

/** Connects the OpenID provider, which an email alone does not do for everyone, and shows what is connected. */
function Provider() {
  const client = useQueryClient()
  const { session } = useSession()
  const ways = useQuery({ queryKey: ['sign-in'], queryFn: ({ signal }) => tunery.signIn.ways({ signal }) })
  const identities = useQuery({
    queryKey: ['identities'],
    queryFn: ({ signal }) => tunery.user.identities.list({ signal }),
    enabled: session !== undefined,
  })
  const name = ways.data?.oidc
  const items = identities.data?.items ?? []
  if (!name && items.length === 0) return null
  return (
    <Card
      title={`Sign in with ${name ?? 'a provider'}`}
      description="Connect your account there. The email addresses must match."
      actions={
        name && (
          // No page of the dashboard: the service sends the browser to the provider.
          <a className={buttonClass()} href="/v1/sign-in/oidc?next=/settings">
            Connect {name}
          </a>
        )
      }
      flush
    >
      <IdentityTable
        label="Connections to the provider"
        items={items}
        onRemove={async (id) => {
          await tunery.user.identities.remove(id)
          await client.invalidateQueries({ queryKey: ['identities'] })
        }}
      />
    </Card>
  )
}

function Passkeys() {
  const client = useQueryClient()
  const query = useQuery({ queryKey: ['passkeys'], queryFn: ({ signal }) => tunery.user.passkeys.list({ signal }) })
  const add = useMutation({
    mutationFn: () => addPasskey(deviceName()),
    onSuccess: () => client.invalidateQueries({ queryKey: ['passkeys'] }),
  })
  return (
    <Card
      title="Passkeys"
      description="Sign in with your device's fingerprint, face or PIN."
      actions={
        <Button
          icon={<KeyRound aria-hidden />}
          busy={add.isPending}
          disabled={!passkeysWork()}
          onClick={() => add.mutate()}
        >
          Add passkey
        </Button>
      }
      flush
    >
      {add.isError && (
        <div className="px-4 pb-3">
          <FormError error={add.error} />
        </div>
      )}
      <Loaded query={query}>
        {({ items }) => (
          <Table
            label="Passkeys"
            rows={items}
            rowId={({ id }) => id}
            empty={
              <EmptyState compact title="No passkeys">
                {passkeysWork() ? undefined : 'Passkeys need HTTPS or localhost.'}
              </EmptyState>
            }
            columns={[
              { id: 'name', header: 'Name', grow: true, cell: (each) => each.name },
              {
                id: 'used',
                header: 'Last used',
                from: 'sm',
                cell: (each) => <RelativeTime time={each.last_used_at} />,
              },
              {
                ...actionsColumn,
                cell: (each) => (
                  <ConfirmDialog
                    trigger={
                      <Button size="sm" variant="quiet" aria-label={`Remove ${each.name}`}>
                        Remove
                      </Button>
                    }
                    title={`Remove ${each.name}?`}
                    action="Remove passkey"
                    onConfirm={async () => {
                      await tunery.user.passkeys.remove(each.id)
                      await client.invalidateQueries({ queryKey: ['passkeys'] })
                      await refreshSession()
                    }}
                  >
                    You can no longer sign in with it. Remove it from your device too.
                  </ConfirmDialog>
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
