// How the OpenID provider knows a member: who signs in as them.
import { useQuery, useQueryClient } from '@tanstack/react-query'
import type { Identity, Member } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { Button } from '../../ui/button.tsx'
import { EmptyState, Loaded } from '../../ui/feedback.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'

/** `onRemove` is called with the id of a connection after a confirmation. */
export function IdentityTable({
  label,
  items,
  onRemove,
}: {
  label: string
  items: Identity[]
  onRemove: (id: string) => Promise<unknown>
}) {
  return (
    <Table
      label={label}
      rows={items}
      rowId={({ id }) => id}
      empty={<EmptyState compact title="Not connected" />}
      columns={[
        { id: 'email', header: 'Email there', grow: true, cell: ({ email }) => email ?? '–' },
        { id: 'issuer', header: 'Provider', from: 'sm', cell: ({ issuer }) => issuer },
        {
          id: 'created',
          header: 'Connected',
          from: 'sm',
          cell: ({ created_at }) => <RelativeTime time={created_at} />,
        },
        {
          ...actionsColumn,
          cell: ({ id, email }) => (
            <ConfirmDialog
              trigger={
                <Button size="sm" variant="quiet" aria-label={`Remove the connection of ${email ?? 'the provider'}`}>
                  Remove
                </Button>
              }
              title="Remove the connection?"
              action="Remove connection"
              onConfirm={() => onRemove(id)}
            >
              Sessions that the provider began end. Who signs in there with the member's email is asked again which
              account they want: change the email too if it is not theirs.
            </ConfirmDialog>
          ),
        },
      ]}
    />
  )
}

/** The connections of another member, in a dialog while there is one. */
export function MemberIdentities({ member, onClose }: { member: Member | undefined; onClose: () => void }) {
  const client = useQueryClient()
  const id = member?.id ?? ''
  const query = useQuery({
    queryKey: ['members', id, 'identities'],
    queryFn: ({ signal }) => tunery.members.identities.list(id, { signal }),
    enabled: member !== undefined,
  })
  return (
    <Dialog
      open={member !== undefined}
      onOpenChange={(open) => !open && onClose()}
      title={`Sign-in of ${member?.name ?? 'a member'}`}
      description="Who signs in as this member by the OpenID provider."
      width="lg"
    >
      <Loaded query={query}>
        {({ items }) => (
          <IdentityTable
            label="Connections to the provider"
            items={items}
            onRemove={async (identity_id) => {
              await tunery.members.identities.remove(id, identity_id)
              await client.invalidateQueries({ queryKey: ['members', id] })
            }}
          />
        )}
      </Loaded>
    </Dialog>
  )
}
