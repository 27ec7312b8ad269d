// A trainer that obeys commands (trainer/cli/commands.py): one after the other, each with an answer.
import { createWriteStream } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { spawnChild } from '../../../lib/child-process.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { type TrainerExit, trainerEnv } from './trainer.ts'

const Answer = z.object({
  type: z.literal('answer'),
  data: z.object({
    id: z.int(),
    fields: z.record(z.string(), z.unknown()).optional(),
    error: z.object({ code: z.string(), message: z.string(), data: z.record(z.string(), z.unknown()) }).optional(),
  }),
})

/** A command that failed, with its reason for the owner of the job. The trainer obeys others. */
export class CommandError extends Error {
  readonly code: string
  readonly data: Record<string, unknown>

  constructor(code: string, message: string, data: Record<string, unknown>) {
    super(message)
    this.code = code
    this.data = data
  }
}

/** The trainer ended before it answered. */
export class TrainerEnded extends Error {
  readonly exit: TrainerExit

  constructor(exit: TrainerExit) {
    super('the trainer ended')
    this.exit = exit
  }
}

export interface CommandedTrainer {
  /** Resolves with the fields of the answer. Throws CommandError or TrainerEnded. */
  run<T>(command: string, fields: object): Promise<T>
  /** Ends the process. */
  end(): Promise<TrainerExit>
}

interface Options {
  run_dir: string
  spec: { threads: number }
  python: string
  env?: Record<string, string>
  log_fields?: Record<string, string | number>
  onStarted?: (pid: number) => () => void
  /** Ends the process at once. */
  signal: AbortSignal
}

/** Writes `spec.json` and starts a trainer. Its other output goes to `trainer.log` in the run folder. */
export async function startCommandedTrainer({
  run_dir,
  spec,
  python,
  env = {},
  log_fields,
  onStarted,
  signal,
}: Options): Promise<CommandedTrainer> {
  await mkdir(run_dir, { recursive: true, mode: 0o700 })
  // A job may have been created on a machine with more cores.
  const local = { ...spec, threads: Math.min(spec.threads, usableCores()) }
  await writeFile(path.join(run_dir, 'spec.json'), JSON.stringify(local, null, 2))
  const log = createWriteStream(path.join(run_dir, 'trainer.log'), { flags: 'a' })
  log.on('error', () => {})
  const waiting = new Map<number, PromiseWithResolvers<unknown>>()
  const child = spawnChild(python, ['-m', 'trainer.cli.commands', run_dir], {
    env: { ...trainerEnv(), ...env },
    stdout(line) {
      const answer = parseAnswer(line)
      if (!answer) return void log.write(`not an answer: ${line.slice(0, 2000)}\n`)
      const { id, fields, error } = answer
      const reply = waiting.get(id)
      waiting.delete(id)
      if (error) reply?.reject(new CommandError(error.code, error.message, error.data))
      else reply?.resolve(fields ?? {})
    },
    onStderr: (text) => log.write(text),
    signal,
  })
  if (log_fields) log.write(`${JSON.stringify({ time: isoTime(Date.now()), ...log_fields, pid: child.pid })}\n`)
  const onEnded = child.pid === undefined ? undefined : onStarted?.(child.pid)
  const ended = child.ended
    .then(
      ({ status, killed_by, stderr }): TrainerExit => ({ status, signal: killed_by, log: stderr }),
      (error: Error): TrainerExit => ({ status: null, signal: null, log: error.message }),
    )
    .then((exit) => {
      onEnded?.()
      log.end()
      for (const reply of waiting.values()) reply.reject(new TrainerEnded(exit))
      waiting.clear()
      return exit
    })
  let hasEnded: TrainerExit | undefined
  void ended.then((exit) => {
    hasEnded = exit
  })
  let last = 0
  return {
    async run<T>(command: string, fields: object): Promise<T> {
      if (hasEnded) throw new TrainerEnded(hasEnded)
      const id = ++last
      const reply = Promise.withResolvers<unknown>()
      waiting.set(id, reply)
      child.stdin?.write(`${JSON.stringify({ ...fields, id, command })}\n`)
      return (await reply.promise) as T
    },
    end() {
      child.stdin?.end()
      child.kill('SIGTERM')
      child.killAfter(5000)
      return ended
    },
  }
}

function parseAnswer(line: string) {
  try {
    return Answer.parse(JSON.parse(line)).data
  } catch {
    return undefined
  }
}
