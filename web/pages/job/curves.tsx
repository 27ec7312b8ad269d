import { ChartLine } from 'lucide-react'
import { useEffect, useMemo, useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { isOver, type StreamState } from '../../lib/events.ts'
import { formatDuration } from '../../lib/format.ts'
import { isReinforcement } from '../../lib/jobs.ts'
import { Chart } from '../../ui/chart.tsx'
import type { Series } from '../../ui/chart-plot.ts'
import { Slider } from '../../ui/choices.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { EmptyState, Skeleton } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { type Compared, othersMax, useCompared } from './compared.ts'
import { type Figure, figures } from './figures.ts'
import { AddJob, Others } from './others.tsx'
import { type Point, type Run, smooth, thin } from './run.ts'

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
  const learnsFromGraders = isReinforcement(job)
  const nothing = run.loss.length === 0 && run.figures.validation_reward.length === 0
  if (nothing && others.length === 0) return <NoCurves job={job} state={state} />
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
          <MainChart main={learnsFromGraders ? rewardChart : lossChart} drawn={drawn} view={view} shared={shared} />
          <p className="text-sm text-muted">
            {learnsFromGraders
              ? 'Drag to zoom. The pale line is the mean score of the answers of each step, the strong line its ' +
                'moving average. The held-out reward is measured on prompts that the model does not train on.'
              : 'Drag to zoom. The pale line is the loss of each step, the strong line its moving average. ' +
                'Validation loss is measured on held-out rows at each evaluation.'}
          </p>
        </div>
      </Card>
      <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-2">
        {Object.keys(run.graders).length > 1 && <GradersChart run={run} view={view} shared={shared} />}
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

interface Main {
  title: string
  training: string
  validation: string
  pointsOf: (run: Run) => { training: readonly Point[]; validation: readonly Point[] }
}
const lossChart: Main = {
  title: 'Loss',
  training: 'Training loss',
  validation: 'Validation loss',
  pointsOf: ({ loss, figures }) => ({ training: loss, validation: figures.validation_loss }),
}
const rewardChart: Main = {
  title: 'Reward',
  training: 'Training reward',
  validation: 'Held-out reward',
  pointsOf: ({ figures }) => ({ training: figures.reward, validation: figures.validation_reward }),
}

/** What the job is about: its loss, or its reward. */
function MainChart({ main, drawn, view, shared }: { main: Main; drawn: readonly Drawn[]; view: View; shared: Shared }) {
  const several = drawn.length > 1
  const series = useMemo(
    () =>
      drawn.flatMap(({ name, run, color }): Series[] => {
        const training = several ? name : view.smoothing > 0 ? `${main.training} (smoothed)` : main.training
        const points = main.pointsOf(run)
        return [
          ...linesOf(points.training, view, { name: training, color, smoothed: true }),
          ...linesOf(points.validation, view, {
            name: several ? `${name}, validation` : main.validation,
            color: several ? color : 2,
            dash: several,
            points: true,
          }),
        ]
      }),
    [main, drawn, several, view],
  )
  const marks = useMemo(
    () => (several || !drawn[0] ? [] : marksOf(drawn[0].run, main, view)),
    [main, drawn, several, view],
  )
  return (
    <Chart
      title={main.title}
      series={series}
      {...shared}
      yLabel={view.scale === 'log' ? `${main.title}, log scale` : main.title}
      log={view.scale === 'log'}
      height={340}
      marks={marks}
    />
  )
}

/** The mean score of each grader, where there are several. */
function GradersChart({ run, view, shared }: { run: Run; view: View; shared: Shared }) {
  const series = useMemo(
    () =>
      Object.entries(run.graders).flatMap(([name, { training, validation }], index) => {
        const color = ((index % 6) + 1) as Color
        return [
          ...linesOf(training, view, { name, color, smoothed: true }),
          ...linesOf(validation, view, { name: `${name}, held-out`, color, dash: true, points: true }),
        ]
      }),
    [run, view],
  )
  return (
    <Card
      title={
        <>
          Graders <Help word="the reward of each grader">Mean score of each grader; the reward is their mean.</Help>
        </>
      }
    >
      <Chart title="Graders" series={series} {...shared} height={190} />
    </Card>
  )
}

/** Pixels that a mark with its label takes, about. */
const mark_px = 110

/** The best evaluation, and where epochs begin: as many as have room. */
function marksOf(run: Run, main: Main, { x }: View) {
  const { epochs, best } = run
  const { training, validation } = main.pointsOf(run)
  const end = training.at(-1)?.[x] ?? 0
  const gap = (end * mark_px) / Math.min(1100, innerWidth)
  const marks = best && validation.length > 2 ? [{ x: best[x], label: 'best' }] : []
  for (const each of epochs) {
    if (marks.every((mark) => Math.abs(mark.x - each[x]) >= gap) && end - each[x] >= gap / 2)
      marks.push({ x: each[x], label: `epoch ${each.epoch}` })
  }
  return marks
}

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
