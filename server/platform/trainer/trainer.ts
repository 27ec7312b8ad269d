// Runs a trainer process: the Python package works in a run folder and writes events as JSON lines to stdout.
import { createWriteStream } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { jobEventTypes } from '../../../contract/fine-tuning.ts'
import { type Child, childEnv, spawnChild } from '../../../lib/child-process.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { ChildIo, PreparedTrainer } from './prepared-trainer.ts'

export const TrainerEventSchema = z.object({
  type: z.enum([...jobEventTypes, 'result', 'held_out', 'rollouts']),
  message: z.string(),
  data: z.record(z.string(), z.unknown()).optional(),
})
export type TrainerEvent = z.infer<typeof TrainerEventSchema>

/** How a trainer ended: `status` is null after a signal. `log` is the tail of its stderr. */
export interface TrainerExit {
  status: number | null
  signal: string | null
  log: string
}

/** Exit status of a trainer that saved a checkpoint after SIGTERM. */
export const stoppedStatus = 75
const default_grace_ms = 20_000

const programs = [
  'trainer.cli.train',
  'trainer.cli.estimate',
  'trainer.cli.predict_memory',
  'trainer.cli.import_adapter',
  'trainer.export',
] as const

export interface TrainerRun {
  run_dir: string
  /** The program: train a job, measure a few steps, convert an imported adapter, or export a model. */
  module?: (typeof programs)[number]
  spec: { method?: string; threads?: number }
  python: string
  /** May have a process that need not be started. */
  prepared?: PreparedTrainer
  /** Added to its environment. */
  env?: Record<string, string>
  /** The first line of trainer.log, with the process's id, so that the log can be found by them. */
  log_fields?: Record<string, string | number>
  /** Number of data-parallel processes, one per GPU. */
  processes?: number
  /** Time between SIGTERM, sent when `signal` aborts, and SIGKILL. Default 20 s. */
  grace_ms?: number
  /** Called with the pid of the started process; the returned function is called when it has ended. */
  onStarted?: (pid: number) => () => void
  signal: AbortSignal
  onEvent(event: TrainerEvent): void
}

/** Writes `spec.json` and runs a trainer to its end. */
export async function runTrainer({
  run_dir,
  module = 'trainer.cli.train',
  spec,
  python,
  prepared,
  processes = 1,
  ...options
}: TrainerRun): Promise<TrainerExit> {
  await mkdir(run_dir, { recursive: true, mode: 0o700 })
  // A job may have been created on a machine with more cores.
  const local = spec.threads === undefined ? spec : { ...spec, threads: Math.min(spec.threads, usableCores()) }
  await writeFile(path.join(run_dir, 'spec.json'), JSON.stringify(local, null, 2))
  const launcher =
    processes > 1 ? ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', String(processes)] : []
  const program = { run_dir, command: python, args: [...launcher, '-m', module, run_dir], ...options }
  if (!prepared || processes > 1) return runProgram(program)
  const run = { module, run_dir, env: options.env ?? {}, spec: local }
  return prepared.during((take) => runProgram({ ...program, take: (io) => take(run, io) }))
}

export type ProgramRun = Pick<
  TrainerRun,
  'run_dir' | 'env' | 'log_fields' | 'grace_ms' | 'onStarted' | 'signal' | 'onEvent'
> & {
  command: string
  args: string[]
  /** Gives a process that runs the program already; undefined: it is started. */
  take?: (io: ChildIo) => Promise<Child | undefined>
}

/**
 * Runs a program that writes trainer events to stdout. Its other output goes to `trainer.log` in the run folder. When
 * `signal` aborts it gets SIGTERM, and SIGKILL after `grace_ms`.
 */
export async function runProgram({
  run_dir,
  command,
  args,
  env = {},
  log_fields,
  grace_ms = default_grace_ms,
  onStarted,
  take,
  signal,
  onEvent,
}: ProgramRun): Promise<TrainerExit> {
  const log = createWriteStream(path.join(run_dir, 'trainer.log'), { flags: 'a' })
  log.on('error', () => {})
  const io: ChildIo = {
    stdout(line) {
      const event = parseEvent(line)
      if (event) onEvent(event)
      else log.write(`not a trainer event: ${line}\n`)
    },
    onStderr: (text) => log.write(text),
    signal,
    grace_ms,
  }
  const child = (await take?.(io)) ?? spawnChild(command, args, { env: { ...trainerEnv(), ...env }, ...io })
  if (log_fields) log.write(`${JSON.stringify({ time: isoTime(Date.now()), ...log_fields, pid: child.pid })}\n`)
  const onEnded = child.pid === undefined ? undefined : onStarted?.(child.pid)
  try {
    const { status, killed_by, stderr } = await child.ended
    return { status, signal: killed_by, log: stderr }
  } catch (error) {
    // A child that ran failed by `onEvent`, whose error is the caller's.
    if (child.pid !== undefined) throw error
    return { status: null, signal: null, log: (error as Error).message }
  } finally {
    onEnded?.()
    log.end()
  }
}

/** What a run said of its end. */
export interface RunEnd<E, T> {
  /** How it ended, as `run` tells it. */
  exit: E
  /** The data of its `result` event. */
  result?: T
  /** Why its `result` event cannot be used. */
  malformed?: string
  /** The last `error` event. */
  failure?: { code: string; message: string; data: Record<string, unknown> }
}

/**
 * Runs a program that reports `result` and `error` events, and reads these once it has ended: the result is of the form
 * that `schema` says, or `malformed`. `onEvent` gets all other events.
 */
export async function runToResult<E, T, More extends unknown[]>(
  run: (report: (event: TrainerEvent, ...more: More) => void) => Promise<E>,
  schema: z.ZodType<T>,
  onEvent: (event: TrainerEvent, ...more: More) => void = () => {},
): Promise<RunEnd<E, T>> {
  let reported: { data: unknown } | undefined
  let failure: RunEnd<E, T>['failure']
  const exit = await run((event, ...more) => {
    const { type, message, data } = event
    if (type === 'result') reported = { data }
    else if (type === 'error') failure = { code: String(data?.code ?? 'internal'), message, data: data ?? {} }
    else onEvent(event, ...more)
  })
  const read = reported && schema.safeParse(reported.data)
  return {
    exit,
    ...(failure && { failure }),
    ...(read?.success && { result: read.data }),
    ...(read?.error && { malformed: malformedResult(read.error) }),
  }
}

function malformedResult({ issues }: z.ZodError): string {
  const { path, message } = issues[0]!
  const field = path.length > 0 ? `'${path.join('.')}': ` : ''
  return `The result of the program cannot be read (${field}${message})`
}

/** What helps where a result is malformed. */
export const malformedHint = ' The program may be of another version than this service: restart the service.'

function parseEvent(text: string): TrainerEvent | undefined {
  try {
    return TrainerEventSchema.parse(JSON.parse(text))
  } catch {
    return undefined
  }
}

// Torchrun handles only SIGTERM, so that Ctrl-C in a terminal does not stop it.
export const trainerEnv = (): NodeJS.ProcessEnv => ({
  ...childEnv(/^TUNERY_TRAINING_PRIORITY$/),
  PYTHONUNBUFFERED: '1',
  HF_HUB_OFFLINE: '1',
  TORCHELASTIC_SIGNALS_TO_HANDLE: 'SIGTERM',
})
