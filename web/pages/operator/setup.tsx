import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { tunery } from '../../lib/api.ts'
import { formatDuration } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Button } from '../../ui/button.tsx'
import { Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { toastError } from '../../ui/toast.tsx'

/** How far the set-up of training is. */
export function SetUp() {
  const client = useQueryClient()
  const query = useQuery({
    queryKey: ['hub', 'setup'],
    queryFn: ({ signal }) => tunery.hub.setup.get({ signal }),
    refetchInterval: ({ state }) => (state.data?.ready ? false : refresh_ms),
  })
  const retry = useMutation({
    mutationFn: () => tunery.hub.setup.retry(),
    onSuccess: (next) => client.setQueryData(['hub', 'setup'], next),
    onError: toastError('Could not start the setup'),
  })
  return (
    <Card title="Training setup" flush>
      <Loaded query={query}>
        {({ ready, steps }) => (
          <>
            <div className="px-4 pb-3">
              {ready ? (
                <Notice tone="good">Everything that training needs is installed.</Notice>
              ) : (
                <Notice
                  tone={steps.some(({ status }) => status === 'failed') ? 'bad' : 'accent'}
                  title="Training is being set up"
                  action={
                    steps.some(({ status }) => status === 'failed') && (
                      <Button size="sm" busy={retry.isPending} onClick={() => retry.mutate()}>
                        Try again
                      </Button>
                    )
                  }
                >
                  Chat works meanwhile. Jobs and exports wait, and begin by themselves.
                </Notice>
              )}
            </div>
            {steps.length > 0 && (
              <Table
                label="Steps of the set-up"
                rows={steps}
                rowId={({ name }) => name}
                columns={[
                  { id: 'title', header: 'Step', grow: true, cell: (each) => each.title },
                  { id: 'status', header: 'Status', cell: (each) => <Status status={each.status} /> },
                  { id: 'seconds', header: 'Time', align: 'right', cell: (each) => formatDuration(each.seconds) },
                  { id: 'message', header: 'Says', from: 'md', cell: (each) => each.message ?? '–' },
                ]}
              />
            )}
          </>
        )}
      </Loaded>
    </Card>
  )
}
