import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { tunery } from '../../lib/api.ts'
import { formatDuration } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { Notice, Progress } from '../../ui/feedback.tsx'

/** After the first start the service still installs what only training needs. */
export function SetupProgress() {
  const client = useQueryClient()
  const mayRetry = useMay('operator')
  const setup = useQuery({
    queryKey: ['hub', 'setup'],
    queryFn: ({ signal }) => tunery.hub.setup.get({ signal }),
    refetchInterval: ({ state }) => (state.data?.ready === false ? refresh_ms : false),
  })
  const retry = useMutation({
    mutationFn: () => tunery.hub.setup.retry(),
    onSuccess: (data) => client.setQueryData(['hub', 'setup'], data),
  })
  if (!setup.data || setup.data.ready) return null
  const { steps } = setup.data
  const failed = steps.find(({ status }) => status === 'failed')
  const current = steps.find(({ status }) => status === 'running')
  const done = steps.filter(({ status }) => status === 'done').length
  if (failed)
    return (
      <Notice
        tone="bad"
        title={`Training is not available: ${failed.title} failed`}
        action={
          mayRetry && (
            <Button size="sm" busy={retry.isPending} onClick={() => retry.mutate()}>
              Try again
            </Button>
          )
        }
      >
        {failed.message} Models still answer; jobs wait.
      </Notice>
    )
  return (
    <Notice tone="accent" title="Setting up training">
      <p>
        Models already answer. Jobs you start now wait until setup is done.
        {current && ` Current step: ${current.title}${current.seconds ? `, ${formatDuration(current.seconds)}` : ''}.`}
      </p>
      {current?.message && <p className="truncate font-mono text-xs">{current.message}</p>}
      <Progress className="mt-2" label="Installing" value={steps.length === 0 ? null : done / steps.length} />
    </Notice>
  )
}
