// One trainer process: the Python package, run on a folder of its own, speaking JSON lines on its standard output.
import { createWriteStream } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { z } from 'zod'
import { jobEventTypes } from '../../contract/tuning.ts'
import { spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'

const Line = z.object({
  type: z.enum([...jobEventTypes, 'result']),
  message: z.string(),
  data: z.record(z.string(), z.unknown()).optional(),
})
export type TrainerLine = z.infer<typeof Line>

export const Artifact = z.object({
  kind: z.enum(['adapter', 'model']),
  folder: z.string(),
  gguf: z.string(),
  gguf_sha256: z.string(),
  /** The file with the rows by which engine and trainer are compared. */
  probe: z.string(),
  step: z.int(),
  validation_loss: z.number().nullable(),
})
export type Artifact = z.infer<typeof Artifact>

export const Result = Artifact.extend({
  validation_exact: z.number().nullable(),
  /** Other states of the run that are kept beside the result. */
  kept: z.array(Artifact),
  /** The file with each row's loss. */
  rows: z.string().nullable(),
  epochs: z.int(),
  steps_total: z.int(),
  train_loss: z.number(),
  trained_tokens: z.int(),
  train_seconds: z.number(),
  tokens_per_second: z.number(),
  steps: z.int(),
  peak_memory_mb: z.number(),
  predicted_memory_mb: z.number(),
  predicted_seconds: z.number().nullable(),
})
export type Result = z.infer<typeof Result>

/**
 * How a trainer ended: `status` is null where a signal ended it. `log` is the end of what it said on standard error.
 */
export interface TrainerExit {
  status: number | null
  signal: string | null
  log: string
}

/** Exit status of a trainer that wrote a checkpoint because it was asked to stop. */
export const stoppedStatus = 75
const usualGrace_ms = 20_000

export interface TrainerRun {
  run_dir: string
  /**
   * Trains the job, tries a few of its steps, only converts the adapter that it goes on from, or makes files of a model
   * to take away.
   */
  module?: 'trainer.cli.train' | 'trainer.cli.estimate' | 'trainer.cli.import_adapter' | 'trainer.export'
  spec: object
  python: string
  /** How many processes train together, one a GPU. */
  processes?: number
  /** How long it has to end after `signal` aborts, before it is killed. Default 20 s. */
  grace_ms?: number
  /** Hears of the process when it has begun; what it returns, when that has ended. */
  watch?: (pid: number) => () => void
  signal: AbortSignal
  onLine(line: TrainerLine): void
}

/** Runs a trainer to its end. When the signal aborts it is asked to stop, and killed where it does not in its time. */
export async function runTrainer({
  run_dir,
  module = 'trainer.cli.train',
  spec,
  python,
  processes = 1,
  ...told
}: TrainerRun): Promise<TrainerExit> {
  await mkdir(run_dir, { recursive: true, mode: 0o700 })
  await writeFile(path.join(run_dir, 'spec.json'), JSON.stringify(spec, null, 2))
  const together =
    processes > 1 ? ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', String(processes)] : []
  return runTold({ run_dir, command: python, args: [...together, '-m', module, run_dir], ...told })
}

export type ToldRun = Pick<TrainerRun, 'run_dir' | 'grace_ms' | 'watch' | 'signal' | 'onLine'> & {
  command: string
  args: string[]
}

/**
 * Runs a program that tells of itself in lines as the trainer does; what else it says goes to `trainer.log` of the
 * folder.
 */
export async function runTold({
  run_dir,
  command,
  args,
  grace_ms = usualGrace_ms,
  watch,
  signal,
  onLine,
}: ToldRun): Promise<TrainerExit> {
  // The pipe on its standard input stays open and empty: its end tells the program that this server is gone.
  const child = spawnChild(command, args, { cwd: root, env: trainerEnv(), stdio: ['pipe', 'pipe', 'pipe'] })
  const unwatch = child.pid === undefined ? undefined : watch?.(child.pid)
  child.stdin.on('error', () => {})
  const log = createWriteStream(path.join(run_dir, 'trainer.log'), { flags: 'a' })
  log.on('error', () => {})
  let tail = ''
  child.stderr.on('data', (data) => {
    tail = (tail + data).slice(-4000)
    log.write(data)
  })
  const lines = createInterface({ input: child.stdout })
  lines.on('line', (text) => {
    const line = parseLine(text)
    if (line) onLine(line)
    else log.write(`not a line of the protocol: ${text}\n`)
  })
  let kill: NodeJS.Timeout | undefined
  const stop = () => {
    child.kill('SIGTERM')
    kill = setTimeout(() => child.kill('SIGKILL'), grace_ms)
  }
  signal.addEventListener('abort', stop, { once: true })
  if (signal.aborted) stop()
  const read = new Promise((resolve) => lines.on('close', resolve))
  const exit = await new Promise<TrainerExit>((resolve) => {
    child.on('error', (error) => resolve({ status: null, signal: null, log: error.message }))
    child.on('exit', (status, name) => resolve({ status, signal: name, log: tail }))
  })
  unwatch?.()
  if (child.pid !== undefined) await read
  clearTimeout(kill)
  signal.removeEventListener('abort', stop)
  log.end()
  return { ...exit, log: tail || exit.log }
}

function parseLine(text: string): TrainerLine | undefined {
  try {
    return Line.parse(JSON.parse(text))
  } catch {
    return undefined
  }
}

// The trainer needs no secret and no setting of the service. Torchrun, too, obeys the service and not the terminal.
function trainerEnv(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(
    ([name]) => !name.startsWith('TUNERY_') && !/KEY|TOKEN|SECRET|PASSWORD/i.test(name),
  )
  return {
    ...Object.fromEntries(kept),
    PYTHONUNBUFFERED: '1',
    HF_HUB_OFFLINE: '1',
    TORCHELASTIC_SIGNALS_TO_HANDLE: 'SIGTERM',
  }
}
