// What the job would take, measured again as the settings change.
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { LoaderCircle } from 'lucide-react'
import { type ReactNode, useEffect, useState } from 'react'
import { type CreateJobInput, isTuneryError, type JobEstimate, TuneryError } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { classes } from '../../lib/classes.ts'
import {
  formatBytes,
  formatCompact,
  formatCount,
  formatDuration,
  formatMoney,
  formatNumber,
  none,
  plural,
} from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Button, TextLink } from '../../ui/button.tsx'
import { Notice, Progress } from '../../ui/feedback.tsx'
import { Card, Stat } from '../../ui/layout.tsx'

/** A measuring takes seconds of the machine: it begins when the settings have come to rest. */
const rest_ms = 900
const slow_ms = 300_000

/** What passes by itself: the rows are being read, the training is being installed, the machine is busy. */
const isPassing = (error: unknown) =>
  isTuneryError(error, 'dataset_not_ready', 'training_not_ready') ||
  (error instanceof TuneryError && (error.status === 429 || error.status === 503))

/** `request`: undefined while something is missing or wrong. */
export function useEstimate(request: CreateJobInput | undefined) {
  // Names and notes change nothing of it.
  const { model_id, dataset_id, config } = request ?? {}
  const wanted = request && JSON.stringify({ model_id, dataset_id, config })
  const [asked, setAsked] = useState<string>()
  useEffect(() => {
    const timer = setTimeout(() => setAsked(wanted), asked === undefined ? 0 : rest_ms)
    return () => clearTimeout(timer)
  }, [wanted, asked])
  const query = useQuery({
    queryKey: ['jobs', 'estimate', asked],
    queryFn: ({ signal }) =>
      tunery.jobs.estimate(JSON.parse(asked!) as CreateJobInput, { signal, timeout_ms: slow_ms }),
    enabled: asked !== undefined,
    staleTime: 60_000,
    retry: false,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (isPassing(state.error) ? refresh_ms : false),
    refetchOnWindowFocus: false,
  })
  const changed = wanted !== asked
  return {
    query,
    measuring: (changed && wanted !== undefined) || (!changed && query.isFetching),
    /** What there is was measured with other settings. */
    isOld: changed || query.isPlaceholderData,
  }
}

export function EstimateCard({
  estimate: { query, measuring, isOld },
  datasetId,
  ready,
  isBound,
  children,
}: {
  estimate: ReturnType<typeof useEstimate>
  datasetId: string | null
  /** Whether model and data are chosen. */
  ready: boolean
  /** Whether nothing is tried, and the figures are the most that there can be. */
  isBound: boolean
  /** What begins the job. */
  children: ReactNode
}) {
  const error = measuring && !isPassing(query.error) ? null : query.error
  return (
    <Card
      title="Estimate"
      description={
        isBound
          ? 'Upper bounds: how long the answers become is what is learned.'
          : 'Measured by running a few steps on this machine.'
      }
    >
      <div className="grid grid-cols-1 gap-4">
        <p role="status" className="flex min-h-5 items-center gap-2 text-sm text-muted">
          {!ready ? (
            'Choose a dataset to see time, cost and memory.'
          ) : measuring && isBound ? (
            'Computing…'
          ) : measuring ? (
            <>
              <LoaderCircle aria-hidden className="size-4 animate-spin" />
              Measuring…{query.data && ' Showing the last estimate.'}
            </>
          ) : query.data && isOld ? (
            'For the previous settings.'
          ) : query.data && !error && !isBound ? (
            'With nothing else running on this machine.'
          ) : (
            ''
          )}
        </p>
        {error && <EstimateError error={error} datasetId={datasetId} retry={() => void query.refetch()} />}
        {query.data && !error && ready && (
          <div className={classes('transition-opacity', (measuring || isOld) && 'opacity-50')} aria-busy={measuring}>
            {typeof query.data.generated_tokens_max === 'number' ? (
              <Bounds estimate={query.data} />
            ) : (
              <Figures estimate={query.data} datasetId={datasetId} />
            )}
          </div>
        )}
        {children}
      </div>
    </Card>
  )
}

function EstimateError({ error, datasetId, retry }: { error: Error; datasetId: string | null; retry: () => void }) {
  if (isPassing(error))
    return (
      <Notice tone="accent" title="No estimate yet">
        {error.message} Retrying automatically.
      </Notice>
    )
  // The page says it by the dataset.
  if (isTuneryError(error, 'dataset_invalid') && datasetId) return null
  return (
    <Notice
      tone="warn"
      title="Could not estimate"
      action={
        <Button size="sm" onClick={retry}>
          Try again
        </Button>
      }
    >
      {error.message}
    </Notice>
  )
}

/** Rows must be fixed first: where. */
export function InvalidRows({ count, datasetId }: { count: number | undefined; datasetId: string }) {
  return (
    <Notice tone="bad" title="This dataset has invalid rows">
      {count === undefined ? '' : `Fix ${plural(count, 'row')} before training.`}{' '}
      <TextLink to="/datasets/$datasetId" params={{ datasetId }} search={{ tab: 'problems' }}>
        Show problems
      </TextLink>
    </Notice>
  )
}

function Figures({ estimate, datasetId }: { estimate: JobEstimate; datasetId: string | null }) {
  const { seconds, price, tokens, steps, rows, tokens_per_second } = estimate
  const { cut_rows, no_learned_rows, resolved_config } = estimate
  const max_length = resolved_config.training_config.max_length.value
  return (
    <div className="grid grid-cols-1 gap-4">
      <dl className="grid grid-cols-2 gap-4">
        <Stat label="Time" value={seconds === null ? none : `~${formatDuration(seconds)}`} />
        <Stat label="Cost" value={price ? formatMoney(price.amount, price.currency) : none} />
      </dl>
      <Memory estimate={estimate} />
      <dl className="grid gap-1">
        <Figure name="Rows" value={formatCount(rows)} />
        <Figure name="Steps" value={formatCount(steps)} />
        <Figure name="Tokens (all epochs)" value={formatCount(tokens)} />
        <Figure
          name="Speed"
          value={tokens_per_second === null ? none : `${formatNumber(tokens_per_second)} tokens/s`}
        />
      </dl>
      {cut_rows !== null && cut_rows > 0 && datasetId && (
        <Notice tone="warn" title={`${plural(cut_rows, 'row')} will be truncated at ${formatCount(max_length)} tokens`}>
          {no_learned_rows
            ? `${plural(no_learned_rows, 'row')} of them would be left without an answer and are skipped. `
            : ''}
          <TextLink to="/datasets/$datasetId" params={{ datasetId }} search={{ length: max_length }}>
            Show rows
          </TextLink>
        </Notice>
      )}
    </div>
  )
}

/** The most that a job can take that learns from graders. */
function Bounds({ estimate }: { estimate: JobEstimate }) {
  const { steps, rows, generated_tokens_max, seconds_max, resolved_config } = estimate
  const { method_options, training_config } = resolved_config
  const answers = training_config.batch_size.value * method_options.group_size.value
  return (
    <div className="grid grid-cols-1 gap-4">
      <dl className="grid grid-cols-2 gap-4">
        <Stat label="Generated tokens" value={`≤ ${formatCompact(generated_tokens_max)}`} />
        <Stat
          label="Time"
          value={typeof seconds_max === 'number' ? `≤ ${formatDuration(seconds_max)}` : none}
          note={typeof seconds_max === 'number' ? 'at the rate of earlier jobs' : 'known after a first job'}
        />
      </dl>
      <Memory estimate={estimate} />
      <dl className="grid gap-1">
        <Figure name="Prompts" value={formatCount(rows)} />
        <Figure name="Steps" value={formatCount(steps)} />
        <Figure name="Answers a step" value={formatCount(answers)} />
        <Figure name="Max tokens an answer" value={formatCount(method_options.max_tokens.value)} />
      </dl>
    </div>
  )
}

function Memory({ estimate }: { estimate: JobEstimate }) {
  const { fits, pauses_serving, peak_memory_mb, available_memory_mb, devices } = estimate
  const share = available_memory_mb > 0 ? peak_memory_mb / available_memory_mb : 1
  return (
    <>
      <div className="grid gap-1">
        <div className="flex justify-between gap-4">
          <span className="text-muted">Peak memory</span>
          <span>
            {formatBytes(peak_memory_mb * 1e6)}
            {devices > 1 && ` on each of ${devices} devices`}
            <span className="text-muted"> of {formatBytes(available_memory_mb * 1e6)}</span>
          </span>
        </div>
        <Progress
          label="Peak memory of free memory"
          value={share}
          tone={!fits && !pauses_serving ? 'bad' : share > 0.85 ? 'warn' : 'accent'}
        />
      </div>
      {pauses_serving && (
        <Notice tone="warn" title="Puts serving to sleep">
          Too little memory is free. What is served there sleeps until the training has ended, and wakes then.
        </Notice>
      )}
      {!fits && !pauses_serving && (
        <Notice tone="bad" title="Not enough free memory">
          Try a smaller batch size or max length, QLoRA, or a smaller model.
        </Notice>
      )}
    </>
  )
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div className="flex justify-between gap-4">
      <dt className="text-muted">{name}</dt>
      <dd>{value}</dd>
    </div>
  )
}
