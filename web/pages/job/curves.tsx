import { ChartLine } from 'lucide-react'
import { useEffect, useMemo, useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { isOver, type StreamState } from '../../lib/events.ts'
import { formatBytes, formatDuration, formatNumber, formatPercent } from '../../lib/format.ts'
import { Chart } from '../../ui/chart.tsx'
import type { Series } from '../../ui/chart-plot.ts'
import { Slider } from '../../ui/choices.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { EmptyState, Skeleton } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { type Compared, othersMax, useCompared } from './compared.ts'
import { AddJob, Others } from './others.tsx'
import { type FigureName, type Point, type Run, smooth, thin } from './run.ts'

interface View {
  x: 'step' | 'seconds'
  scale: 'linear' | 'log'
  smoothing: number
}
const defaultView: View = { x: 'step', scale: 'linear', smoothing: 0.6 }
const viewKey = 'tunery.job-curves'

/** How curves are drawn: the same for every job, also tomorrow. */
function useView() {
  const [view, setView] = useState<View>(() => {
    try {
      return { ...defaultView, ...JSON.parse(localStorage.getItem(viewKey) ?? '{}') }
    } catch {
      return defaultView
    }
  })
  useEffect(() => {
    try {
      localStorage.setItem(viewKey, JSON.stringify(view))
    } catch {
      // A browser that keeps nothing: the view lasts until the page is left.
    }
  }, [view])
  return [view, (next: Partial<View>) => setView((before) => ({ ...before, ...next }))] as const
}

type Color = NonNullable<Series['color']>
interface Drawn {
  id: string
  name: string
  run: Run
  color: Color
}

export default function Curves({
  job,
  run,
  state,
  compared,
  onCompare,
}: {
  job: Job
  run: Run
  state: StreamState
  compared: readonly string[]
  onCompare: (ids: string[]) => void
}) {
  const [view, change] = useView()
  const ids = [...new Set(compared)].slice(0, othersMax)
  const others = useCompared(ids)
  const drawn = useDrawn(job, run, others)
  if (run.loss.length === 0 && others.length === 0) return <NoCurves job={job} state={state} />
  const x = view.x === 'step' ? 'Step' : 'Training time'
  const shared = { xLabel: x, formatX: view.x === 'step' ? undefined : formatDuration, sync: `job ${job.id} ${view.x}` }
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-4">
      <Card>
        <div className="grid gap-4 pt-1.5">
          <div className="flex flex-wrap items-end gap-x-5 gap-y-3">
            <Choice label="X axis">
              <Segments
                label="Horizontal axis"
                value={view.x}
                onChange={(next) => change({ x: next })}
                choices={[
                  { value: 'step', label: 'Steps' },
                  { value: 'seconds', label: 'Time' },
                ]}
              />
            </Choice>
            <Choice label="Y axis">
              <Segments
                label="Vertical axis"
                value={view.scale}
                onChange={(next) => change({ scale: next })}
                choices={[
                  { value: 'linear', label: 'Linear' },
                  { value: 'log', label: 'Log' },
                ]}
              />
            </Choice>
            <div className="w-56 text-sm">
              <Slider
                label="Smoothing"
                value={view.smoothing}
                onChange={(smoothing) => change({ smoothing })}
                min={0}
                max={0.98}
                step={0.02}
                format={(value) => (value === 0 ? 'none' : value.toFixed(2))}
              />
            </div>
            <AddJob job={job} chosen={ids} onAdd={(id) => onCompare([...ids, id])} />
          </div>
          {others.length > 0 && (
            <Others others={others} onRemove={(id) => onCompare(ids.filter((each) => each !== id))} />
          )}
          <LossChart drawn={drawn} view={view} shared={shared} />
          <p className="text-sm text-muted">
            Drag to zoom. The pale line is the loss of each step, the strong line its moving average. Validation loss is
            measured on held-out rows at each evaluation.
          </p>
        </div>
      </Card>
      <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-2">
        {figures.map((figure) => (
          <FigureChart key={figure.title} figure={figure} drawn={drawn} view={view} shared={shared} />
        ))}
      </div>
    </div>
  )
}

function Choice({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <div className="grid gap-1 text-sm">
      <span aria-hidden className="font-medium">
        {label}
      </span>
      {children}
    </div>
  )
}

/** This job first, in the first colour; names that are the same get the end of their id. */
function useDrawn(job: Job, run: Run, others: readonly Compared[]): Drawn[] {
  const all = [{ id: job.id, job, run }, ...others].flatMap(({ id, job: each, run: its }, index) =>
    each && its ? [{ id, name: each.name, run: its, color: ((index % 6) + 1) as Color }] : [],
  )
  const key = all.map(({ id, name }) => `${id} ${name}`).join('\n')
  // biome-ignore lint/correctness/useExhaustiveDependencies: the list is made again at each render; its parts are not
  return useMemo(
    () =>
      all.map((each) => ({
        ...each,
        name: all.some(({ id, name }) => id !== each.id && name === each.name)
          ? `${each.name} (${each.id.slice(-4)})`
          : each.name,
      })),
    [key, ...Array.from({ length: othersMax + 1 }, (_, index) => all[index]?.run)],
  )
}

type Shared = Pick<React.ComponentProps<typeof Chart>, 'xLabel' | 'formatX' | 'sync'>
/** More evaluations make a line of dots. */
const dotsMax = 60

/** A curve; where it is smoothed, with the pale one behind it. */
function linesOf(
  points: readonly Point[],
  view: View,
  { smoothed, ...line }: Pick<Series, 'name' | 'color' | 'dash' | 'points'> & { smoothed?: boolean | undefined },
): Series[] {
  if (points.length === 0) return []
  const draw = (values: readonly Point[]) => {
    const drawn = thin(values)
    return { x: drawn.map((point) => point[view.x]), y: drawn.map(({ value }) => value) }
  }
  const style = { ...line, points: line.points && points.length <= dotsMax }
  if (!smoothed || view.smoothing === 0) return [{ ...style, ...draw(points) }]
  const means = smooth(
    points.map(({ value }) => value),
    view.smoothing,
  )
  return [
    { name: `${line.name}, each step`, color: line.color, faint: true, ...draw(points) },
    { ...style, ...draw(points.map((point, index) => ({ ...point, value: means[index]! }))) },
  ]
}

function LossChart({ drawn, view, shared }: { drawn: readonly Drawn[]; view: View; shared: Shared }) {
  const several = drawn.length > 1
  const series = useMemo(
    () =>
      drawn.flatMap(({ name, run, color }): Series[] => {
        const training = several ? name : view.smoothing > 0 ? 'Training loss (smoothed)' : 'Training loss'
        const validation = several ? `${name}, validation` : 'Validation loss'
        const { validation_loss } = run.figures
        return [
          ...linesOf(run.loss, view, { name: training, color, smoothed: true }),
          ...linesOf(validation_loss, view, {
            name: validation,
            color: several ? color : 2,
            dash: several,
            points: true,
          }),
        ]
      }),
    [drawn, several, view],
  )
  const marks = useMemo(() => (several || !drawn[0] ? [] : marksOf(drawn[0].run, view)), [drawn, several, view])
  return (
    <Chart
      title="Loss"
      series={series}
      {...shared}
      yLabel={view.scale === 'log' ? 'Loss, log scale' : 'Loss'}
      log={view.scale === 'log'}
      height={340}
      marks={marks}
    />
  )
}

/** Pixels that a mark with its label takes, about. */
const mark_px = 110

/** The best evaluation, and where epochs begin: as many as have room. */
function marksOf({ loss, epochs, best, figures: { validation_loss } }: Run, { x }: View) {
  const end = loss.at(-1)?.[x] ?? 0
  const gap = (end * mark_px) / Math.min(1100, innerWidth)
  const marks = best && validation_loss.length > 2 ? [{ x: best[x], label: 'best' }] : []
  for (const each of epochs) {
    if (marks.every((mark) => Math.abs(mark.x - each[x]) >= gap) && end - each[x] >= gap / 2)
      marks.push({ x: each[x], label: `epoch ${each.epoch}` })
  }
  return marks
}

interface Figure {
  title: string
  help: string
  lines: { name: FigureName; label: string; points?: boolean | undefined }[]
  format?: (value: number) => string
  /** As noisy as the loss. */
  noisy?: boolean
}

/** An axis around a constant reaches beyond what a share can be. */
const formatShare = (value: number) => (value < 0 || value > 1 ? '' : formatPercent(value))

const figures: readonly Figure[] = [
  {
    title: 'Reward margin',
    help:
      'How much more the model prefers the chosen answers over the rejected ones than before training. It ' +
      'should rise.',
    lines: [
      { name: 'reward_margin', label: 'Training' },
      { name: 'validation_reward_margin', label: 'Validation', points: true },
    ],
    noisy: true,
  },
  {
    title: 'Reward accuracy',
    help: 'Share of preferences where the model favors the chosen answer.',
    lines: [
      { name: 'reward_accuracy', label: 'Training' },
      { name: 'validation_reward_accuracy', label: 'Validation', points: true },
    ],
    format: formatShare,
    noisy: true,
  },
  {
    title: 'Learning rate',
    help: 'How far each step moves the weights. It warms up first, then decays to 0.',
    lines: [{ name: 'learning_rate', label: 'Learning rate' }],
  },
  {
    title: 'Gradient norm',
    help:
      'Size of the weight update before clipping at 1. Spikes point to unusual rows or a learning rate that is ' +
      'too high.',
    lines: [{ name: 'grad_norm', label: 'Gradient norm' }],
    noisy: true,
  },
  {
    title: 'Tokens per second',
    help: 'Training speed. It drops while other programs or requests use the processor.',
    lines: [{ name: 'tokens_per_second', label: 'Tokens per second' }],
    format: (value) => formatNumber(value, 3),
  },
  {
    title: 'Memory',
    help: 'Memory that the training holds: of the GPU, or on a machine without one of the machine.',
    lines: [{ name: 'memory_mb', label: 'Memory' }],
    format: (value) => formatBytes(value * 1e6),
  },
  {
    title: 'Busy cores',
    help: 'Processor cores that the training keeps busy. Fewer than usual: other programs or requests take them.',
    lines: [{ name: 'cpu_cores', label: 'Busy cores' }],
    format: (value) => formatNumber(value, 3),
  },
  {
    title: 'Held-out accuracy',
    help: 'Share of tokens that were the model’s first choice, and of rows where every token was.',
    lines: [
      { name: 'validation_accuracy', label: 'Tokens', points: true },
      { name: 'validation_exact', label: 'Rows', points: true },
    ],
    format: formatShare,
  },
]

function FigureChart({
  figure,
  drawn,
  view,
  shared,
}: {
  figure: Figure
  drawn: readonly Drawn[]
  view: View
  shared: Shared
}) {
  const several = drawn.length > 1
  const series = useMemo(
    () =>
      drawn.flatMap(({ name, run, color }) =>
        figure.lines.flatMap(({ name: line, label, points }, index) =>
          linesOf(run.figures[line], view, {
            name: several ? (index > 0 ? `${name}, ${label.toLowerCase()}` : name) : label,
            color: several ? color : ((index + 1) as Color),
            dash: several && index > 0,
            points,
            smoothed: figure.noisy && !points,
          }),
        ),
      ),
    [figure, drawn, several, view],
  )
  if (series.length === 0) return null
  return (
    <Card
      title={
        <>
          {figure.title} <Help word={figure.title.toLowerCase()}>{figure.help}</Help>
        </>
      }
    >
      <Chart title={figure.title} series={series} {...shared} height={190} formatY={figure.format} />
    </Card>
  )
}

function NoCurves({ job, state }: { job: Job; state: StreamState }) {
  if (state === 'connecting' || (isOver(job) && state !== 'ended' && state !== 'failed'))
    return <Skeleton className="h-96 w-full" />
  return (
    <Card>
      <EmptyState icon={<ChartLine aria-hidden />} title={isOver(job) ? 'Ended before the first step' : 'No steps yet'}>
        {!isOver(job)
          ? 'Curves appear with the first step and update live.'
          : job.status === 'cancelled'
            ? 'Clone the job to start it again.'
            : 'See the log for the reason, then clone the job to try again.'}
      </EmptyState>
    </Card>
  )
}
