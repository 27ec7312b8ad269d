import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { Session } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { plural } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { browserName } from '../../lib/sign-in.ts'
import { Button } from '../../ui/button.tsx'
import { Badge, Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { actionsColumn, Table } from '../../ui/table.tsx'
import { toast, toastError } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'

const begunBy = {
  link: 'a sign-in link',
  password: 'password',
  passkey: 'passkey',
  oidc: 'single sign-on',
  invitation: 'an invitation',
}

/** Where you are signed in. */
export function Sessions() {
  const client = useQueryClient()
  const refresh = () => client.invalidateQueries({ queryKey: ['sessions'] })
  const {
    query,
    rows = [],
    more,
  } = usePages(['sessions', 'list'], (options) => tunery.sessions.list({ limit: 50 }, options))
  const end = useMutation({
    mutationFn: (id: string) => tunery.sessions.end(id),
    onSuccess: refresh,
    onError: toastError('Could not sign out the session'),
  })
  return (
    <Card
      title="Sessions"
      description="Sessions end 30 days after their last use."
      actions={
        <ConfirmDialog
          trigger={<Button disabled={rows.length < 2}>Sign out all others</Button>}
          title="Sign out all other sessions?"
          action="Sign out all others"
          onConfirm={async () => {
            const { ended } = await tunery.sessions.endOthers()
            await refresh()
            toast.good(`${plural(ended, 'session')} ended`)
          }}
        >
          You stay signed in here. API keys keep working.
        </ConfirmDialog>
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Sessions"
            rows={rows}
            rowId={({ id }: Session) => id}
            more={more}
            columns={[
              {
                id: 'browser',
                header: 'Browser',
                grow: true,
                cell: (session) => (
                  <span title={session.user_agent}>
                    {browserName(session.user_agent) ?? (session.user_agent || 'Unknown')}{' '}
                    {session.current && <Badge tone="good">current</Badge>}
                  </span>
                ),
              },
              { id: 'address', header: 'Address', from: 'sm', cell: (session) => <Code>{session.address}</Code> },
              { id: 'by', header: 'Method', from: 'md', cell: (session) => begunBy[session.begun_by] },
              { id: 'used', header: 'Last used', cell: (session) => <RelativeTime time={session.last_used_at} /> },
              {
                ...actionsColumn,
                cell: (session) =>
                  !session.current && (
                    <Button size="sm" variant="quiet" busy={end.isPending} onClick={() => end.mutate(session.id)}>
                      Sign out
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
