import { type ReactNode, useEffect, useRef, useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { type EventsState, isOver } from '../../lib/events.ts'
import {
  formatCount,
  formatDuration,
  formatNumber,
  formatPercent,
  formatProgress,
  formatRelative,
} from '../../lib/format.ts'
import { hasValidation, isReinforcement, lossOf, secondsOf, whenText } from '../../lib/jobs.ts'
import { ExternalLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, Notice, Progress, Status } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { Code, Message, RelativeTime } from '../../ui/values.tsx'
import type { Run } from './run.ts'

const phases: Record<string, string> = {
  preparing: 'preparing data',
  loading: 'loading model',
  pictures: 'processing images',
  reference: 'scoring reference answers',
  training: 'training',
  converting: 'saving model',
}

/** What the job does now, what it waits for, how far it is, and when it ends. */
export function StatusCard({ job, run, stream }: { job: Job; run: Run; stream: EventsState }) {
  const running = job.status === 'running'
  return (
    <Card>
      <div className="grid gap-3 pt-1.5">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1.5">
          <Status status={job.status} />
          {job.paused && running && <Badge tone="warn">pausing</Badge>}
          {running && run.phase && <span className="text-muted">{phases[run.phase] ?? run.phase}</span>}
          {run.attempt !== undefined && run.attempt > 1 && !isOver(job) && (
            <span className="text-sm text-muted">attempt {run.attempt}</span>
          )}
          {!job.paused && <StreamMark stream={stream} />}
          <span className="ml-auto text-sm text-muted">
            {job.finished_at ? (
              <>
                ended <RelativeTime time={job.finished_at} />
              </>
            ) : job.started_at ? (
              <>
                started <RelativeTime time={job.started_at} />
              </>
            ) : (
              <>
                created <RelativeTime time={job.created_at} />
              </>
            )}
          </span>
        </div>
        {!isOver(job) && job.started_at && (
          <div className="flex items-center gap-3">
            <Progress
              value={job.progress}
              label="Progress of the job"
              tone={job.paused ? 'warn' : 'accent'}
              className="min-w-0 flex-1"
            />
            <span className="w-12 text-right font-medium">{formatProgress(job.progress)}</span>
          </div>
        )}
        <Waiting job={job} run={run} />
        {stream.state === 'failed' && (
          <Notice tone="bad" title="Live updates are not available">
            {stream.error?.message} Reload the page to retry.
          </Notice>
        )}
        {job.error && (
          <Notice
            tone="bad"
            title={
              <>
                Job failed: <Code>{job.error.code}</Code>
              </>
            }
          >
            <Message text={job.error.message} /> <ExternalLink href="/docs/errors">Error codes</ExternalLink>
          </Notice>
        )}
        {job.slowed_by && (
          <Notice
            tone="warn"
            title={job.slowed_by === 'serving' ? 'Slowed by model requests' : 'Slowed by other programs'}
          >
            {job.slowed_by === 'serving'
              ? 'Requests to your models share the processor with this job. It speeds up when traffic drops.'
              : 'Other programs on this machine are using processor time that this job needs.'}
          </Notice>
        )}
        {job.started_at && (!isOver(job) || job.metrics.step !== undefined) && <Figures job={job} run={run} />}
      </div>
      <Spoken job={job} stream={stream} />
    </Card>
  )
}

/** Why a job does not train yet. */
function Waiting({ job, run }: { job: Job; run: Run }) {
  if (run.fetching && !isOver(job))
    return (
      <Notice title={run.fetching.what}>
        <div className="mt-1.5 flex items-center gap-3">
          <Progress value={run.fetching.share} label={run.fetching.what} className="min-w-0 flex-1" />
          <span>{run.fetching.share === null ? '' : formatPercent(run.fetching.share)}</span>
        </div>
        The job starts automatically afterwards.
      </Notice>
    )
  if (job.waits_for && job.status === 'queued')
    return (
      <Notice title="Waiting to start">
        <Message text={job.waits_for} />
      </Notice>
    )
  if (job.status === 'queued' && !job.paused)
    return (
      <Notice title={job.queue_position === 1 ? 'Next in queue' : 'Waiting in queue'}>
        {job.queue_position !== null && job.queue_position > 1
          ? `${formatCount(job.queue_position - 1)} ahead of it. `
          : 'It starts when the running job ends or pauses. '}
        {job.estimated_start
          ? `Estimated start: ${clock(job.estimated_start)} (${formatRelative(job.estimated_start)}).`
          : 'No estimate yet: no similar job has finished.'}
      </Notice>
    )
  if (job.paused)
    return (
      <Notice tone="warn" title={job.status === 'running' ? 'Saving progress' : 'Paused'}>
        {job.status === 'running'
          ? 'The job then waits until you resume it.'
          : 'Other jobs can run meanwhile. Resume to continue exactly where it stopped.'}
      </Notice>
    )
  return null
}

function Figures({ job, run }: { job: Job; run: Run }) {
  const { metrics } = job
  const epochs = job.resolved_config.training_config.epochs.value
  return (
    <dl className="grid grid-cols-2 gap-x-6 gap-y-3 pt-1 sm:grid-cols-3 lg:grid-cols-6">
      {isOver(job) ? (
        <Stat label={<Label text="Took" />} value={formatDuration(secondsOf(job))} note={trainedNote(job)} />
      ) : (
        <Stat
          label={<Label text="Time left" />}
          value={timeLeft(job)}
          note={job.estimated_completion && isTraining(job) ? `until ${clock(job.estimated_completion)}` : undefined}
        />
      )}
      <Stat
        label={<Label text="Step" />}
        value={formatCount(metrics.step)}
        note={metrics.steps_total ? `of ${formatCount(metrics.steps_total)}` : undefined}
      />
      <Stat label={<Label text="Epoch" />} value={job.current_epoch || '–'} note={`of ${epochs}`} />
      {isReinforcement(job) ? <Rewards job={job} run={run} /> : <Losses job={job} run={run} />}
      <Stat
        label={
          <Label text="Tokens/s" word="a token">
            A piece of a word. Models read and write tokens; training goes through all of yours once per epoch.
          </Label>
        }
        value={formatCount(metrics.tokens_per_second)}
        note={job.trained_tokens > 0 ? `${formatCount(job.trained_tokens)} trained` : undefined}
      />
    </dl>
  )
}

/** While it trains, the last evaluation counts until there is another. */
const isTraining = ({ status }: Job) => status === 'running' || status === 'paused'

function Losses({ job, run }: { job: Job; run: Run }) {
  const { metrics } = job
  const preferences = job.resolved_config.method_options.objective.value !== 'sft'
  const validation =
    metrics.validation_loss ?? (isTraining(job) ? run.figures.validation_loss.at(-1)?.value : undefined)
  return (
    <>
      <Stat
        label={
          <Label text="Training loss" word="the loss">
            How far the model is from your answers: the average negative log-probability of their tokens. Lower is
            better.
          </Label>
        }
        value={formatNumber(lossOf(job), 4)}
        note={lossNote(job)}
      />
      <Stat
        label={
          <Label text="Validation loss" word="validation loss">
            Loss on held-out rows, which the model never trains on. If it rises while training loss falls, the model is
            memorizing your rows.
          </Label>
        }
        value={formatNumber(validation, 4)}
        note={
          validation === undefined
            ? hasValidation(job)
              ? 'not measured yet'
              : 'no rows held out'
            : preferences && metrics.validation_reward_accuracy !== undefined
              ? `${formatPercent(metrics.validation_reward_accuracy)} of preferences right`
              : metrics.validation_accuracy !== undefined
                ? `${formatPercent(metrics.validation_accuracy)} of tokens right`
                : undefined
        }
      />
    </>
  )
}

/** How well a job does that learns from graders. */
function Rewards({ job, run }: { job: Job; run: Run }) {
  const { metrics } = job
  const reward = metrics.reward ?? run.figures.reward.at(-1)?.value
  const validation = metrics.validation_reward ?? run.figures.validation_reward.at(-1)?.value
  const first = run.figures.validation_reward[0]
  const failures = metrics.grader_failures ?? 0
  return (
    <>
      <Stat
        label={
          <Label text="Reward" word="the reward">
            Mean score of the answers of the step, as the graders gave it. Higher is better.
          </Label>
        }
        value={formatNumber(reward)}
        note={failures > 0 ? `${formatCount(failures)} answers without a score` : 'latest step'}
      />
      <Stat
        label={
          <Label text="Held-out reward" word="held-out reward">
            Mean score of the answers to held-out prompts, which the model does not train on. If it stays while the
            reward rises, the model learns your prompts by heart.
          </Label>
        }
        value={formatNumber(validation)}
        note={
          validation === undefined
            ? hasValidation(job)
              ? 'not measured yet'
              : 'no prompts held out'
            : first?.step === 0
              ? `${formatNumber(first.value)} before training`
              : undefined
        }
      />
    </>
  )
}

/** A lower loss is memory rather than skill, where nothing is held out to tell. */
const memorized_max = 0.01

function lossNote(job: Job): string {
  const loss = lossOf(job)
  if (!hasValidation(job) && loss !== undefined && loss < memorized_max) return 'very low: likely memorized'
  const { step } = job.metrics
  return job.status === 'completed' && step !== undefined ? `at step ${formatCount(step)}` : 'latest step'
}

/** All of one height, with or without a word of help. */
const Label = ({ text, word, children }: { text: string; word?: string; children?: ReactNode }) => (
  <span className="flex h-5 items-center gap-0.5">
    {text}
    {word && <Help word={word}>{children}</Help>}
  </span>
)

const trainedNote = ({ metrics: { train_seconds } }: Job) =>
  train_seconds === undefined ? undefined : `${formatDuration(train_seconds)} of training`

function timeLeft(job: Job): string {
  if (job.paused) return '–'
  if (job.status === 'queued') return 'not started'
  return whenText(job).replace(/ left$/, '') || '–'
}

const clocks = new Intl.DateTimeFormat(undefined, { timeStyle: 'short' })
const clock = (time: string) => clocks.format(new Date(time))

/** How fresh the figures are. */
function StreamMark({ stream: { state } }: { stream: EventsState }) {
  if (state === 'ended' || state === 'failed') return null
  const [tone, text] = (
    { live: ['good', 'live'], connecting: ['neutral', 'connecting…'], reconnecting: ['warn', 'reconnecting…'] } as const
  )[state]
  return <Badge tone={tone}>{text}</Badge>
}

/** For screen readers: the status, each tenth of the way, and a connection that broke; not each step. */
function Spoken({ job, stream }: { job: Job; stream: EventsState }) {
  const tenth = Math.floor(job.progress * 10) * 10
  const text = [
    `The job is ${job.paused ? 'paused' : job.status}.`,
    job.status === 'running' && !job.paused && `${tenth} percent done.`,
    stream.state === 'reconnecting' && 'The connection was lost, reconnecting.',
  ]
    .filter(Boolean)
    .join(' ')
  const first = useRef(text)
  const [said, setSaid] = useState('')
  useEffect(() => {
    if (text !== first.current) setSaid(text)
  }, [text])
  return (
    <p role="status" className="sr-only">
      {said}
    </p>
  )
}
