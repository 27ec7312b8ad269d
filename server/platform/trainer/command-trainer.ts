// A trainer that obeys commands (trainer/cli/commands.py): one process with a base in memory, which is asked and
// answers in JSON lines.
import { createWriteStream, type WriteStream } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { type Child, spawnChild } from '../../../lib/child-process.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { type TrainerExit, trainerEnv } from './trainer.ts'

const Answer = z.object({
  type: z.literal('answer'),
  data: z.object({
    id: z.int(),
    fields: z.record(z.string(), z.unknown()).optional(),
    error: z
      .object({ code: z.string(), message: z.string(), data: z.record(z.string(), z.unknown()).default({}) })
      .optional(),
  }),
})

/** The command failed, and the trainer goes on. `code`: of trainer/runtime/errors.py. */
export class CommandError extends Error {
  readonly code: string
  readonly data: Record<string, unknown>

  constructor(code: string, message: string, data: Record<string, unknown>) {
    super(message)
    this.code = code
    this.data = data
  }
}

/** The trainer ended before it answered; what it had in memory is lost. */
export class TrainerEnded extends Error {
  readonly exit: TrainerExit

  constructor(exit: TrainerExit) {
    const { status, signal } = exit
    super(`The trainer ${signal ? `was ended by ${signal}` : `ended with status ${status}`}`)
    this.exit = exit
  }
}

interface Options {
  run_dir: string
  /** CommandSpec of trainer/runtime/spec.py. */
  spec: { threads: number; [field: string]: unknown }
  python: string
  /** Added to its environment. */
  env?: Record<string, string>
  /** Written to `trainer.log` as it starts. */
  log_fields?: Record<string, string | number>
  /** Called with the pid of the started process; the returned function is called when it has ended. */
  onStarted?: (pid: number) => () => void
  /** Ends the process at once. */
  signal?: AbortSignal
}

interface Pending {
  resolve(fields: Record<string, unknown>): void
  reject(error: Error): void
}

export class CommandTrainer {
  /** How it ended. Never rejects. */
  readonly ended: Promise<TrainerExit>
  private readonly child: Child
  private readonly pending = new Map<number, Pending>()
  private readonly log: WriteStream
  private commands = 0
  private exit: TrainerExit | undefined

  /** Writes `spec.json` and starts the process, which loads the base with its first command. */
  static async start(options: Options): Promise<CommandTrainer> {
    const { run_dir, spec } = options
    await mkdir(run_dir, { recursive: true, mode: 0o700 })
    // It may have been written on a machine with more cores.
    const local = { ...spec, threads: Math.min(spec.threads, usableCores()) }
    await writeFile(path.join(run_dir, 'spec.json'), JSON.stringify(local, null, 2))
    return new CommandTrainer(options)
  }

  private constructor({ run_dir, python, env = {}, log_fields, onStarted, signal }: Options) {
    this.log = createWriteStream(path.join(run_dir, 'trainer.log'), { flags: 'a' })
    this.log.on('error', () => {})
    this.child = spawnChild(python, ['-m', 'trainer.cli.commands', run_dir], {
      env: { ...trainerEnv(), ...env },
      stdout: (line) => this.read(line),
      onStderr: (text) => this.log.write(text),
      ...(signal && { signal }),
    })
    if (log_fields) {
      const fields = { time: isoTime(Date.now()), ...log_fields, pid: this.child.pid }
      this.log.write(`${JSON.stringify(fields)}\n`)
    }
    const onEnded = this.child.pid === undefined ? undefined : onStarted?.(this.child.pid)
    this.ended = this.child.ended
      .then(
        ({ status, killed_by, stderr }): TrainerExit => ({ status, signal: killed_by, log: stderr }),
        (error): TrainerExit => ({ status: null, signal: null, log: (error as Error).message }),
      )
      .then((exit) => {
        this.exit = exit
        onEnded?.()
        this.log.end()
        for (const { reject } of this.pending.values()) reject(new TrainerEnded(exit))
        this.pending.clear()
        return exit
      })
  }

  /** Whether it takes commands. */
  get running(): boolean {
    return this.exit === undefined
  }

  /** Resolves with the fields of the answer. Throws CommandError, TrainerEnded. */
  call(command: string, fields: Record<string, unknown>): Promise<Record<string, unknown>> {
    if (this.exit) return Promise.reject(new TrainerEnded(this.exit))
    const id = ++this.commands
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject })
      this.child.stdin?.write(`${JSON.stringify({ ...fields, id, command })}\n`)
    })
  }

  /** Ends it; what it has in memory is lost. */
  async close(): Promise<void> {
    this.child.kill('SIGKILL')
    await this.ended
  }

  /** Lets it end by itself: kills it after five seconds. */
  end(): Promise<TrainerExit> {
    this.child.stdin?.end()
    this.child.kill('SIGTERM')
    this.child.killAfter(5000)
    return this.ended
  }

  private read(line: string): void {
    const parsed = Answer.safeParse(parseLine(line))
    const pending = parsed.data && this.pending.get(parsed.data.data.id)
    if (!parsed.data || !pending) {
      this.log.write(`not an answer: ${line.slice(0, 2000)}\n`)
      return
    }
    const { id, fields, error } = parsed.data.data
    this.pending.delete(id)
    if (error) pending.reject(new CommandError(error.code, error.message, error.data))
    else pending.resolve(fields ?? {})
  }
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}
