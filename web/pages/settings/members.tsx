import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { UserPlus } from 'lucide-react'
import { useState } from 'react'
import type { Invitation, Member } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { type Choice, Select } from '../../ui/choices.tsx'
import { Badge, FormError, Loaded } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input, NameField } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { SecretDialog } from '../../ui/secret-dialog.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { RelativeTime } from '../../ui/values.tsx'
import { MemberIdentities } from './identities.tsx'

type Role = Member['role']
const roles: Choice<Role>[] = [
  { value: 'viewer', label: 'Viewer', note: 'Read-only access, without webhooks and the audit log' },
  { value: 'member', label: 'Member', note: 'Upload, train, deploy, export and call models' },
  { value: 'admin', label: 'Admin', note: 'Also manage members, webhooks, alerts and all API keys' },
  { value: 'owner', label: 'Owner', note: 'Also manage other owners' },
]

/** The people of the account. */
export function Members() {
  const { profile } = useSession()
  const mayWrite = useMay('members:write')
  const client = useQueryClient()
  const [inviting, setInviting] = useState(false)
  const [link, setLink] = useState<string>()
  const [removed, setRemoved] = useState<Member>()
  const [connections, setConnections] = useState<Member>()
  const {
    query,
    rows = [],
    more,
  } = usePages(['members', 'list'], (options) => tunery.members.list({ limit: 50 }, options))
  const refresh = () => {
    void client.invalidateQueries({ queryKey: ['members'] })
    void client.invalidateQueries({ queryKey: ['invitations'] })
  }
  const invitations = useInvitations()
  // Who is invited is no member yet: they are listed below.
  const joined = rows.filter(({ id }) => !invitations.data?.items.some(({ member }) => member.id === id))
  const isOwner = profile.role === 'owner'
  return (
    <div className="grid gap-4">
      <Card
        title="Members"
        description="A role limits what a person and their API keys can do."
        actions={
          mayWrite && (
            <Button variant="primary" icon={<UserPlus aria-hidden />} onClick={() => setInviting(true)}>
              Invite member
            </Button>
          )
        }
        flush
      >
        <Loaded query={query}>
          {() => (
            <MemberTable
              members={joined}
              more={more}
              onSignIn={setConnections}
              onRemove={setRemoved}
              refresh={refresh}
            />
          )}
        </Loaded>
      </Card>
      <Invitations mayWrite={mayWrite} refresh={refresh} />
      <Invite
        open={inviting}
        isOwner={isOwner}
        onClose={() => setInviting(false)}
        onInvited={(made) => {
          setInviting(false)
          setLink(made)
          refresh()
        }}
      />
      <SecretDialog secret={link} title="Invite link" onClose={() => setLink(undefined)}>
        Send it to the new member. It works once and expires in 7 days.
      </SecretDialog>
      <MemberIdentities member={connections} onClose={() => setConnections(undefined)} />
      <ConfirmDialog
        open={removed !== undefined}
        onOpenChange={(open) => !open && setRemoved(undefined)}
        title={`Remove ${removed?.name ?? 'the member'}?`}
        action="Remove member"
        onConfirm={async () => {
          await tunery.members.remove(removed!.id)
          refresh()
          toast.good('The member is removed')
        }}
      >
        Their sessions end and their API keys are revoked at once. What they created stays in the account.
      </ConfirmDialog>
    </div>
  )
}

/** The members of the account, with what the caller may change of each. */
function MemberTable({
  members,
  more,
  onSignIn,
  onRemove,
  refresh,
}: {
  members: readonly Member[]
  more: ReturnType<typeof usePages>['more']
  onSignIn: (member: Member) => void
  onRemove: (member: Member) => void
  refresh: () => void
}) {
  const { profile } = useSession()
  const mayWrite = useMay('members:write')
  const isOwner = profile.role === 'owner'
  const mayChange = ({ role }: Member) => mayWrite && (isOwner || role !== 'owner')
  const change = useMutation({
    mutationFn: ({ id, role }: { id: string; role: Role }) => tunery.members.update(id, { role }),
    onSuccess: refresh,
    onError: toastError('Could not change the role'),
  })
  return (
    <Table
      label="Members"
      rows={members}
      rowId={({ id }) => id}
      more={more}
      columns={[
        {
          id: 'name',
          header: 'Name',
          grow: true,
          cell: (member) => (
            <>
              {member.name} {member.id === profile.id && <Badge>you</Badge>}
            </>
          ),
        },
        { id: 'email', header: 'Email', cell: (member) => member.email ?? '–', from: 'sm' },
        {
          id: 'role',
          header: 'Role',
          width: '9rem',
          cell: (member) =>
            mayChange(member) ? (
              <Select
                aria-label={`Role of ${member.name}`}
                value={member.role}
                onChange={(role) => change.mutate({ id: member.id, role })}
                choices={roles.map((role) => ({ ...role, disabled: role.value === 'owner' && !isOwner }))}
              />
            ) : (
              roles.find(({ value }) => value === member.role)?.label
            ),
        },
        { id: 'since', header: 'Added', cell: (member) => <RelativeTime time={member.created_at} />, from: 'md' },
        {
          ...actionsColumn,
          cell: (member) =>
            mayChange(member) &&
            member.id !== profile.id && (
              <span className="inline-flex gap-1">
                <Button
                  size="sm"
                  variant="quiet"
                  aria-label={`Sign-in of ${member.name}`}
                  onClick={() => onSignIn(member)}
                >
                  Sign-in
                </Button>
                <Button size="sm" variant="quiet" aria-label={`Remove ${member.name}`} onClick={() => onRemove(member)}>
                  Remove
                </Button>
              </span>
            ),
        },
      ]}
    />
  )
}

const useInvitations = () =>
  useQuery({ queryKey: ['invitations'], queryFn: ({ signal }) => tunery.invitations.list({ limit: 100 }, { signal }) })

function Invitations({ mayWrite, refresh }: { mayWrite: boolean; refresh: () => void }) {
  const query = useInvitations()
  const withdraw = useMutation({
    mutationFn: (id: string) => tunery.invitations.withdraw(id),
    onSuccess: refresh,
    onError: toastError('The invitation was not withdrawn'),
  })
  if (!query.data || query.data.items.length === 0) return null
  return (
    <Card title="Pending invitations" flush>
      <Table
        label="Pending invitations"
        rows={query.data.items}
        rowId={({ id }: Invitation) => id}
        columns={[
          { id: 'name', header: 'Name', grow: true, cell: ({ member }) => member.name },
          { id: 'email', header: 'Email', from: 'sm', cell: ({ member }) => member.email ?? '–' },
          { id: 'role', header: 'Role', cell: ({ member }) => roles.find(({ value }) => value === member.role)?.label },
          { id: 'expires', header: 'Expires', from: 'sm', cell: (each) => <RelativeTime time={each.expires_at} /> },
          {
            ...actionsColumn,
            cell: (each) =>
              mayWrite && (
                <Button size="sm" variant="quiet" busy={withdraw.isPending} onClick={() => withdraw.mutate(each.id)}>
                  Withdraw
                </Button>
              ),
          },
        ]}
      />
    </Card>
  )
}

function Invite({
  open,
  isOwner,
  onClose,
  onInvited,
}: {
  open: boolean
  isOwner: boolean
  onClose: () => void
  onInvited: (link: string) => void
}) {
  const [name, setName] = useState('')
  const [email, setEmail] = useState('')
  const [role, setRole] = useState<Role>('member')
  const invite = useMutation({
    mutationFn: () => tunery.invitations.create({ name, email: email.trim() || null, role }),
    onSuccess: ({ link }) => {
      setName('')
      setEmail('')
      onInvited(link)
    },
  })
  const fields = ['name', 'email', 'role']
  return (
    <Dialog
      open={open}
      onOpenChange={(next) => !next && onClose()}
      title="Invite member"
      description="You get a link to send them. They sign in with it and choose a password."
    >
      <Form onSubmit={() => invite.mutate()}>
        <NameField error={fieldError(invite.error, 'name')} value={name} onChange={setName} />
        <Field label="Email" optional help="They sign in with it." error={fieldError(invite.error, 'email')}>
          <Input type="email" value={email} onChange={(event) => setEmail(event.target.value)} />
        </Field>
        <Field label="Role" error={fieldError(invite.error, 'role')}>
          <Select value={role} onChange={setRole} choices={roles.filter(({ value }) => isOwner || value !== 'owner')} />
        </Field>
        <FormError error={invite.error} fields={fields} />
        <FormButtons onCancel={onClose} busy={invite.isPending} missing={!name.trim() && 'Enter a name.'}>
          Create invite link
        </FormButtons>
      </Form>
    </Dialog>
  )
}
