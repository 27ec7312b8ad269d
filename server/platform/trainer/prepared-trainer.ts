// A trainer process that has imported its libraries and waits for a run: they take seconds of processor time. There is
// at most one, none while memory is short, and none beside as many runs as the machine has devices for. It belongs to
// no device: it touches none before it has its run, which brings one.
import type { Logger } from 'pino'
import { type Child, spawnChild } from '../../../lib/child-process.ts'
import { type PeriodicTask, runPeriodically } from '../../../lib/periodic.ts'

const default_check_ms = 5000
/** Memory that must be free for it to start, and to stay. It takes 0.28 GB. */
const memory_mb = { start: 4000, stay: 2500 }
const answer = 'taken'

/** Where the output of a process goes, and what stops it. */
export interface ChildIo {
  stdout(line: string): void
  onStderr(text: string): void
  signal: AbortSignal
  grace_ms: number
}

interface PreparableRun {
  module: string
  run_dir: string
  env: Record<string, string>
  spec: { method?: string; threads?: number }
}

/** Gives the waiting process a run. Undefined if there is none that can have it: the caller starts a new one. */
type TakePrepared = (run: PreparableRun, io: ChildIo) => Promise<Child | undefined>

export interface PreparedTrainer {
  /** Starts the process, or lets the one that waits stay longer: a run is likely to follow. */
  prepare(): void
  /** Wraps a run, which may take the process. The next one is prepared when it has ended. */
  during<T>(run: (take: TakePrepared) => Promise<T>): Promise<T>
  /** From now on one is prepared when it is likely to be needed: with fewer runs than there may be at once. */
  start(at_once?: number): void
  close(): Promise<void>
}

interface Options {
  python: string
  threads: number
  env(): NodeJS.ProcessEnv
  /** How long it waits for a run; 0: there is none. */
  idle_seconds: number
  /** Whether its libraries are installed. */
  ready(): boolean
  log: Logger
  check_ms?: number
  availableMb?: () => number
}

interface Waiting {
  child: Child
  /** Milliseconds of `performance.now()`. */
  until: number
  checks: PeriodicTask
  /** Set by the run that takes it. */
  io: ChildIo | undefined
  /** Whether it answered the run's line before it ended. */
  taken: Promise<boolean>
}

/** The programs that `trainer/cli/prepared.py` can become. */
const programs = new Set(['trainer.cli.train', 'trainer.cli.estimate'])

export function createPreparedTrainer({
  python,
  threads,
  env,
  idle_seconds,
  ready,
  log,
  check_ms = default_check_ms,
  availableMb = () => process.availableMemory() / 1e6,
}: Options): PreparedTrainer {
  let waiting: Waiting | undefined
  let runs = 0
  let runs_max = 1
  let isOpen = false

  function start(): Waiting {
    const taken = Promise.withResolvers<boolean>()
    const started: Waiting = {
      child: spawnChild(python, ['-m', 'trainer.cli.prepared', String(threads)], {
        env: env(),
        stdout(line) {
          if (started.io && line === answer) taken.resolve(true)
          else started.io?.stdout(line)
        },
        onStderr: (text) => started.io?.onStderr(text),
      }),
      until: 0,
      checks: runPeriodically(
        check_ms,
        async () => {
          if (performance.now() > started.until || availableMb() < memory_mb.stay) void end()
        },
        { delayed: true },
      ),
      io: undefined,
      taken: taken.promise,
    }
    started.child.ended
      .then(
        ({ status, stderr }) => {
          if (waiting === started) log.warn({ status, stderr }, 'the prepared trainer ended')
        },
        (error: Error) => log.warn({ err: error }, 'the prepared trainer could not be started'),
      )
      .finally(() => {
        taken.resolve(false)
        if (waiting === started) release()
      })
    return started
  }

  /** From now on it is not the waiting process. */
  function release(): Waiting | undefined {
    const released = waiting
    waiting = undefined
    void released?.checks.close()
    return released
  }

  function end(): Promise<unknown> | undefined {
    const ended = release()?.child
    ended?.kill('SIGKILL')
    return ended?.ended.catch(() => {})
  }

  function prepare(): void {
    if (!isOpen || runs >= runs_max || !ready()) return
    if (!waiting && availableMb() >= memory_mb.start) waiting = start()
    if (waiting) waiting.until = performance.now() + idle_seconds * 1000
  }

  async function take({ module, run_dir, env, spec }: PreparableRun, io: ChildIo): Promise<Child | undefined> {
    // Quantized bases need a library that the others do without.
    const fits = programs.has(module) && spec.threads === threads && spec.method !== 'qlora'
    if (!fits || !waiting) {
      void end()
      return undefined
    }
    const { child, taken } = waiting
    waiting.io = io
    release()
    child.stopOn(io.signal, io.grace_ms)
    child.stdin?.write(`${JSON.stringify({ module, run_dir, env })}\n`)
    return (await taken) ? child : undefined
  }

  return {
    prepare,
    async during(run) {
      runs++
      try {
        return await run(take)
      } finally {
        runs--
        prepare()
      }
    },
    start(at_once = 1) {
      runs_max = at_once
      isOpen = idle_seconds > 0
    },
    async close() {
      isOpen = false
      await end()
    },
  }
}
