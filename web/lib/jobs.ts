// What can be done with a job, and what is known of when it begins and ends.
import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { Job } from '../../sdk/index.ts'
import { tunery } from './api.ts'
import { isOver } from './events.ts'
import { formatDuration } from './format.ts'

type JobAction = 'pause' | 'resume' | 'cancel'

/** What may be asked of a job as it is now. */
export function actionsOf(job: Job): JobAction[] {
  if (isOver(job)) return []
  return [job.paused ? 'resume' : 'pause', 'cancel']
}

/** `mutate({ id, action })`; everything that shows the job is asked again. */
export function useJobAction() {
  const client = useQueryClient()
  return useMutation({
    mutationFn: ({ id, action }: { id: string; action: JobAction }) => tunery.jobs[action](id),
    onSuccess: (job) => {
      client.setQueryData(['jobs', job.id], job)
      return client.invalidateQueries({ queryKey: ['jobs', 'list'] })
    },
  })
}

/** `mutateAsync(id)`: deletes a job that has ended; its models stay. */
export function useDeleteJob() {
  const client = useQueryClient()
  return useMutation({
    mutationFn: (id: string) => tunery.jobs.delete(id),
    onSuccess: (_, id) => {
      client.removeQueries({ queryKey: ['jobs', id] })
      return client.invalidateQueries({ queryKey: ['jobs', 'list'] })
    },
  })
}

/** Whether the job learns from graders: its reward says how well it does, its loss says nothing. */
export const isReinforcement = ({ resolved_config }: Pick<Job, 'resolved_config'>): boolean =>
  resolved_config.method_options.objective.value === 'reinforcement'

/**
 * The loss that lists and the page of a job show: of the latest step, or of the step whose weights are the result. That
 * of a job that learns from graders says nothing of how well it does.
 */
export const lossOf = (job: Pick<Job, 'metrics' | 'resolved_config'>): number | undefined =>
  isReinforcement(job) ? undefined : (job.metrics.loss ?? job.metrics.train_loss)

const until = (time: string) => formatDuration(Math.max(1, (new Date(time).getTime() - Date.now()) / 1000))

/** `3 min 05 s left`, `#2 in queue, starts in about 4 min 10 s`; empty once the job is over or paused. */
export function whenText(job: Job): string {
  if (job.paused) return job.status === 'running' ? 'saving progress' : ''
  if (job.status === 'queued') {
    const { queue_position: place, estimated_start: start } = job
    const words = [
      place === null ? '' : place === 1 ? 'next in queue' : `#${place} in queue`,
      start ? `starts in about ${until(start)}` : '',
    ]
    return words.filter(Boolean).join(', ') || 'waiting in queue'
  }
  if (job.status !== 'running') return ''
  return job.estimated_completion
    ? `${until(job.estimated_completion)} left`
    : job.metrics.step
      ? 'estimating'
      : 'starting'
}

/** Seconds from the start to the end, or until now. */
export const secondsOf = ({ started_at, finished_at }: Job): number | null =>
  started_at ? ((finished_at ? Date.parse(finished_at) : Date.now()) - Date.parse(started_at)) / 1000 : null

/** A setting's name in words: `learning_rate` as `Learning rate`. */
export function settingLabel(name: string): string {
  if (name === 'r') return 'Rank'
  const words = name
    .replaceAll('_', ' ')
    .replace(/\bid\b/, '')
    .trim()
  return words[0]!.toUpperCase() + words.slice(1)
}

/** Whether the job measures itself on rows that it does not learn from. */
export const hasValidation = ({ resolved_config: { evaluation_config } }: Job): boolean =>
  evaluation_config.validation_split.value > 0 || evaluation_config.validation_dataset_id.value !== null
