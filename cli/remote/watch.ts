// Watches a job: a bar, its numbers and its curves on a terminal, a line for each event elsewhere.
import { isTuneryError, type Job, type JobEvent } from '../../sdk/index.ts'
import { CommandError, Interrupted } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { createLiveLines } from '../support/output.ts'
import type { Connection } from '../support/service.ts'
import {
  bar,
  clean,
  columnsOf,
  cut,
  duration,
  isTerminal,
  number,
  oneLine,
  paint,
  precise,
  sparkline,
} from '../support/text.ts'

interface State {
  status: string
  phase: string | undefined
  progress: number
  seconds_left: number | undefined
  step: number | undefined
  steps_total: number | undefined
  epoch: number | undefined
  epochs: number | undefined
  tokens_per_second: number | undefined
  losses: number[]
  validation: number[]
  connection: 'live' | 'reconnecting'
  /** What the job says that is no number: a download, a phase. */
  message: string
}

/** Between two drawings of the lines. */
const redraw_ms = 120

/**
 * Follows a job to its end, and shows what came of it. Ctrl-C leaves it running: throws Interrupted, whose message says
 * how to come back; a second Ctrl-C ends the command at once. Throws a CommandError if the job has no result.
 */
export async function watchJob(connection: Connection, job: Job, options: GlobalOptions, after = 0): Promise<void> {
  const { tunery } = connection
  const detach = new AbortController()
  const stop = () => (detach.signal.aborted ? process.exit(130) : detach.abort())
  process.on('SIGINT', stop)
  const state = stateOf(job)
  const live = createLiveLines()
  const isLive = isTerminal() && !options.json
  const draw = () => live.draw(linesOf(job.id, state))
  const timer = isLive ? setInterval(draw, redraw_ms) : undefined
  try {
    const events = tunery.jobs.follow(job.id, {
      after,
      signal: detach.signal,
      onConnection: (now) => {
        state.connection = now
      },
    })
    for (;;) {
      const { done, value } = await events.next()
      if (done) {
        clearInterval(timer)
        if (isLive) live.end(curvesOf(state))
        return await finish(connection, value, options)
      }
      update(state, value)
      if (options.json) console.log(JSON.stringify(value))
      else if (!isLive) console.log(plainLine(value))
      else if (['warning', 'error', 'log'].includes(value.type)) live.print(noticeOf(value))
    }
  } catch (error) {
    if (!detach.signal.aborted) throw error
    live.end()
    throw leftRunning(job.id)
  } finally {
    clearInterval(timer)
    process.off('SIGINT', stop)
  }
}

/** Ends the command while the job keeps running. */
export const leftRunning = (id: string): Interrupted =>
  new Interrupted(
    `${id} keeps running. Follow it again with '${typed(`jobs follow ${id}`)}', or cancel it with ` +
      `'${typed(`jobs cancel ${id}`)}'.`,
  )

const stateOf = (job: Job): State => ({
  status: job.status,
  phase: undefined,
  progress: job.progress,
  seconds_left: undefined,
  step: job.metrics.step,
  steps_total: job.metrics.steps_total,
  epoch: undefined,
  epochs: job.resolved_config.training_config.epochs.value,
  tokens_per_second: job.metrics.tokens_per_second,
  losses: [],
  validation: [],
  connection: 'live',
  message: job.waits_for ?? '',
})

function update(state: State, { type, message, data = {} }: JobEvent): void {
  const numberOf = (name: string) => (typeof data[name] === 'number' ? (data[name] as number) : undefined)
  if (type === 'status') {
    state.status = typeof data.status === 'string' ? data.status : state.status
    state.phase = typeof data.phase === 'string' ? data.phase : undefined
    state.message = oneLine(message)
  } else if (type === 'progress') {
    state.progress = numberOf('progress') ?? state.progress
    state.seconds_left = numberOf('seconds_left')
    state.epoch = numberOf('current_epoch') ?? state.epoch
    if (data.download || data.training_setup) state.message = oneLine(message)
  } else if (type === 'metrics') {
    const step = numberOf('step')
    // After an interruption a job resumes from its last checkpoint, and tells some steps again.
    state.step = step ?? state.step
    state.steps_total = numberOf('steps_total') ?? state.steps_total
    state.epoch = numberOf('epoch') ?? state.epoch
    state.tokens_per_second = numberOf('tokens_per_second') ?? state.tokens_per_second
    const [loss, validation] = [numberOf('loss'), numberOf('validation_loss')]
    if (loss !== undefined) state.losses.push(loss)
    if (validation !== undefined) state.validation.push(validation)
  }
}

function linesOf(id: string, state: State): string[] {
  const columns = columnsOf()
  const { step, steps_total, epoch, epochs, tokens_per_second, seconds_left } = state
  const numbers = [
    step !== undefined && `step ${number(step)}${steps_total ? `/${number(steps_total)}` : ''}`,
    seconds_left !== undefined && state.status === 'running' && `${duration(seconds_left)} left`,
    epoch !== undefined && `epoch ${epoch}${epochs ? `/${epochs}` : ''}`,
    tokens_per_second !== undefined && `${number(Math.round(tokens_per_second))} tokens/s`,
  ].filter((line) => line !== false)
  const connection = state.connection === 'live' ? '' : ' · the connection is lost, and is taken up again'
  const head = cut(
    `${id}  ${state.status}${state.phase ? ` · ${state.phase}` : ''}${connection}  ${state.message}`,
    columns,
  )
  const share = ` ${String(Math.round(100 * state.progress)).padStart(3)} %  `
  const barWidth = Math.max(10, Math.min(30, columns - share.length - 52))
  const progress = paint('green', bar(state.progress, barWidth))
  return [
    paint('bold', head),
    progress + cut(share + numbers.join('  '), Math.max(1, columns - barWidth)),
    ...curvesOf(state),
    paint('dim', cut('Ctrl-C: stop following (the job keeps running)', columns)),
  ]
}

/** The losses as curves in one scale, the last value behind each. */
function curvesOf({ losses, validation }: State): string[] {
  const columns = Math.max(8, columnsOf() - 30)
  const curve = (name: string, values: number[], style: 'cyan' | 'magenta') =>
    values.length === 0
      ? []
      : [
          `${name.padEnd(11)}${paint(style, sparkline(values, columns, [...losses, ...validation]))} ` +
            `${precise(values.at(-1)!)}`,
        ]
  return [...curve('train loss', losses, 'cyan'), ...curve('validation', validation, 'magenta')]
}

const noticeOf = ({ type, message }: JobEvent): string =>
  type === 'error'
    ? paint('red', clean(message))
    : type === 'warning'
      ? paint('yellow', `Warning: ${clean(message)}`)
      : clean(message)

/** An event as one line, for logs. */
function plainLine({ type, message, created_at, data = {} }: JobEvent): string {
  const numbers =
    type === 'metrics'
      ? Object.entries(data)
          .filter(([, value]) => typeof value === 'number')
          .map(([name, value]) => `${name}=${Number((value as number).toPrecision(5))}`)
          .join(' ')
      : ''
  return `${created_at}  ${type.padEnd(10)}  ${oneLine(message)}${numbers && `  ${numbers}`}`
}

/** What came of an ended job. Throws a CommandError if it has no result. */
async function finish({ tunery }: Connection, job: Job, options: GlobalOptions): Promise<void> {
  if (options.json) console.log(JSON.stringify(job))
  else if (job.status === 'completed') {
    const { metrics } = job
    console.log(
      paint(
        'green',
        `${clean(job.name)} completed${metrics.train_seconds ? ` in ${duration(metrics.train_seconds)}` : ''}.`,
      ),
    )
    const scores = scoresOf(job)
    if (scores.length > 0) console.log(`  ${scores.join('  ')}`)
    if (job.result_evaluation) {
      const evaluation = await tunery.evaluations.get(job.result_evaluation).catch((error) => {
        // Somebody may have deleted it.
        if (isTuneryError(error)) return undefined
        throw error
      })
      if (evaluation)
        console.log(`  evaluation ${evaluation.id} is ${evaluation.status}: ${typed(`eval show ${evaluation.id}`)}`)
    }
    console.log(`  model ${job.model}\n`)
    console.log(
      [
        `Ask it:     ${typed(`chat ${job.model} ${job.model_id}`)}`,
        `Deploy it:  ${typed(`deploy ${job.model} NAME`)}`,
        `Export it:  ${typed(`export ${job.model} --format gguf`)}`,
      ].join('\n'),
    )
  }
  if (job.status !== 'completed')
    throw new CommandError(
      options.json
        ? ''
        : `${job.id} ` +
            `${job.status === 'failed' ? 'failed' : 'was cancelled'}${job.error ? `: ${job.error.message}` : '.'}`,
    )
}

/** The loss of the latest step and the mean over its epoch: a curve ends at the first, the second is steadier. */
function trainLossOf({ step, loss, train_loss }: Job['metrics']): string | false {
  const mean = train_loss !== undefined && train_loss !== loss && `mean over the epoch ${precise(train_loss)}`
  if (loss === undefined) return mean && `train loss: ${mean}`
  const notes = [step !== undefined && `step ${number(step)}`, mean].filter((note) => note !== false)
  return `train loss ${precise(loss)}${notes.length > 0 ? ` (${notes.join(', ')})` : ''}`
}

/** The scores of a job, as short texts. */
export function scoresOf({ metrics }: Job): string[] {
  const { validation_loss, validation_accuracy, validation_exact, validation_reward_accuracy } = metrics
  const share = (value: number) => `${(100 * value).toFixed(1)} %`
  return [
    trainLossOf(metrics),
    validation_loss !== undefined && `validation loss ${precise(validation_loss)}`,
    validation_accuracy !== undefined && `tokens right ${share(validation_accuracy)}`,
    validation_exact !== undefined && `rows right ${share(validation_exact)}`,
    validation_reward_accuracy !== undefined && `preferences right ${share(validation_reward_accuracy)}`,
  ].filter((line) => line !== false)
}
