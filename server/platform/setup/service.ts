// The part of set-up that only training needs: torch, the converters, checkpoints. `npm start` leaves it to the server,
// which runs it in a child process behind its answers. What needs it waits for it, or is refused for a moment.
import { EventEmitter } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import type { Logger } from 'pino'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { SetupStep, TrainingSetup as TrainingSetupStatus } from '../../../contract/hub.ts'
import { spawnChild } from '../../../lib/child-process.ts'
import { runPeriodically } from '../../../lib/periodic.ts'

/** For callers that are refused. The whole takes one to three minutes. */
const retryAfter_seconds = 15
/** How often a failed set-up looks whether somebody has run `npm run setup` since. */
const recheck_ms = 2000
const stop_grace_ms = 5000
const message_characters_max = 2000

/** The list that scripts/setup.mjs keeps of the steps to do; there is no file if there are none, as in an image. */
const Pending = z.array(z.object({ name: z.string(), title: z.string() }))

/** A line of `scripts/setup.mjs --events`: of a step, or of set-up itself. */
const SetupEvent = z.object({
  name: z.string().optional(),
  title: z.string().optional(),
  status: z.enum(['running', 'done', 'failed']).optional(),
  message: z.string().optional(),
  /** What to do about a failure. */
  hint: z.string().optional(),
})

interface Step extends Omit<SetupStep, 'seconds'> {
  hint?: string | undefined
  started_at?: number
  ended_at?: number
}

export interface TrainingSetup {
  /** Whether everything that training needs is installed. It stays true for the life of the process. */
  ready(): boolean
  /** Resolves when it is ready, or the signal aborts. */
  whenReady(signal: AbortSignal): Promise<void>
  /** Throws training_not_ready, which callers may retry. */
  requireReady(): void
  /** What is being waited for, as a sentence with a full stop. */
  describe(): string
  /** The steps; with the end of a failed command's output for operators. */
  status(caller: { operator: boolean }): TrainingSetupStatus
  /** Starts again after a failure. Otherwise does nothing. */
  retry(): void
  /** Called when a step begins, ends or fails, and when it is ready. */
  onChange(listener: () => void): void
  /** Starts set-up unless there is nothing to do. Only for the process that holds the data folder's lock. */
  start(): { close(): Promise<void> }
}

interface Options {
  /** The root of the checkout. */
  checkout: string
  log: Logger
  /** Prints a line for people at the terminal. */
  announce(line: string): void
  /** Aborts when the service begins to stop. */
  stopping: AbortSignal
  now(): number
}

export function createTrainingSetup({ checkout, log, announce, now, ...options }: Options): TrainingSetup {
  const pendingFile = path.join(checkout, '.local/setup-pending.json')
  const closed = new AbortController()
  const stopping = AbortSignal.any([options.stopping, closed.signal])
  const changes = new EventEmitter().setMaxListeners(0)
  const steps: Step[] = readPending().map((step) => ({ ...step, status: 'waiting', message: null }))
  let ready = steps.length === 0
  let running: Promise<void> | undefined

  function readPending(): z.infer<typeof Pending> {
    if (!existsSync(pendingFile)) return []
    try {
      return Pending.parse(JSON.parse(readFileSync(pendingFile, 'utf8')))
    } catch (error) {
      log.warn({ err: error, file: pendingFile }, 'the list of pending set-up steps cannot be read')
      return [{ name: 'training', title: 'what training needs' }]
    }
  }

  /** The title without its remarks on size and time. */
  const brief = ({ title }: Step) => (title.endsWith(')') ? title.slice(0, title.lastIndexOf(' (')) : title)
  const place = (step: Step) => `${steps.indexOf(step) + 1} of ${steps.length}`
  const changed = () => void changes.emit('change')
  const seconds = ({ started_at, ended_at }: Step) =>
    started_at === undefined ? null : Math.round(((ended_at ?? now()) - started_at) / 100) / 10

  /** The output of a failed command may name folders of the machine: it is for its operator. */
  function messageOf({ message, hint }: Step, operator: boolean): string {
    const shown = operator ? message! : message!.split('\n')[0]!.slice(0, 200).replace(/:$/, '.')
    return hint ? `${shown}\n${hint}` : shown
  }

  function becomeReady(): void {
    const time = now()
    for (const step of steps)
      if (step.status !== 'done') Object.assign(step, { status: 'done', message: null, ended_at: time })
    ready = true
    announce('Training is ready.')
    changed()
  }

  /** The step at work, else the next one. */
  const current = () =>
    steps.find(({ status }) => status === 'running') ?? steps.find(({ status }) => status === 'waiting')

  /** A step that was not pending has become necessary through an earlier one. */
  function stepNamed(name: string, title: string): Step {
    const known = steps.find((step) => step.name === name)
    const step: Step = { name, title, status: 'waiting', message: null }
    if (known) return known
    const next = steps.findIndex(({ status }) => status === 'waiting')
    steps.splice(next < 0 ? steps.length : next, 0, step)
    return step
  }

  function onLine(line: string): void {
    // Ctrl-C has ended the command too, which is no failure of its step.
    if (stopping.aborted) return
    let event: z.infer<typeof SetupEvent>
    try {
      event = SetupEvent.parse(JSON.parse(line))
    } catch {
      return
    }
    const { name, title, status, message, hint } = event
    const step = name === undefined ? current() : stepNamed(name, title ?? name)
    // Set-up ends with the failure that its step has reported.
    if (!step || (name === undefined && steps.some((each) => each.status === 'failed'))) return
    if (message !== undefined) step.message = message.slice(0, message_characters_max)
    step.hint = hint
    if (status === 'running') {
      // A step before it that needed nothing prints no event.
      for (const earlier of steps.slice(0, steps.indexOf(step))) if (earlier.status !== 'done') earlier.status = 'done'
      step.started_at = now()
      delete step.ended_at
      announce(`Set-up for training, ${place(step)}: ${step.title}`)
    }
    if (status === 'done' || status === 'failed') step.ended_at = now()
    if (status === 'done') {
      step.message = null
      announce(`Set-up for training, ${place(step)}: done in ${seconds(step)} s`)
    }
    if (!status) return
    step.status = status
    changed()
  }

  async function run(): Promise<void> {
    for (const step of steps)
      if (step.status === 'failed') {
        step.status = 'waiting'
        step.message = null
        delete step.started_at
        delete step.ended_at
      }
    const end = await spawnChild(
      process.execPath,
      [path.join(checkout, 'scripts/setup.mjs'), '--training', '--events'],
      // npm and pip are configured by the environment.
      { env: process.env, stdout: onLine, signal: stopping, grace_ms: stop_grace_ms },
    ).ended.catch((error: Error) => ({ status: null, stderr: error.message }))
    if (stopping.aborted) return
    if (end.status === 0) return becomeReady()
    const step = steps.find(({ status }) => status === 'failed') ?? steps.find(({ status }) => status !== 'done')
    if (!step) return
    if (step.status !== 'failed') step.message ??= end.stderr.slice(-message_characters_max)
    step.status = 'failed'
    step.ended_at = now()
    announce(`Set-up for training, ${place(step)} failed: ${messageOf(step, true)}`)
    announce(
      'The service keeps running. `npm run setup` tries again; so do POST /v1/hub/setup/retry and the next start.',
    )
    changed()
  }

  function begin(): void {
    if (ready || stopping.aborted) return
    running ??= run()
      .catch((error: Error) => log.error({ err: error }, 'set-up for training could not be run'))
      .finally(() => {
        running = undefined
      })
  }

  function describe(): string {
    const failed = steps.find(({ status }) => status === 'failed')
    if (failed)
      return (
        `The set-up of the training environment has failed at step ${place(failed)}, ${brief(failed)}. ` +
        'Its operator can see why at GET /v1/hub/setup, and try again.'
      )
    const step = current()
    const what = step ? `: step ${place(step)}, ${brief(step)}` : ''
    return `The training environment is being installed${what}.`
  }

  return {
    ready: () => ready,
    describe,
    onChange: (listener) => void changes.on('change', listener),
    retry: begin,

    whenReady: (signal) =>
      new Promise((resolve) => {
        const done = () => {
          if (!ready && !signal.aborted) return
          changes.off('change', done)
          signal.removeEventListener('abort', done)
          resolve()
        }
        changes.on('change', done)
        signal.addEventListener('abort', done)
        done()
      }),

    requireReady() {
      if (!ready)
        throw new ApiError(
          'training_not_ready',
          `${describe()} Try again in a moment; GET /v1/hub/setup shows how far it is.`,
          {
            details: { retry_after_seconds: retryAfter_seconds },
          },
        )
    },

    status: ({ operator }) => ({
      ready,
      steps: steps.map((step) => ({
        name: step.name,
        title: step.title,
        status: step.status,
        seconds: seconds(step),
        message: step.message && messageOf(step, operator),
      })),
    }),

    start() {
      if (!ready) announce(`What only training needs is installed behind the service, in ${steps.length} steps.`)
      begin()
      const recheck = runPeriodically(recheck_ms, async () => {
        if (!ready && !running && !existsSync(pendingFile)) becomeReady()
      })
      return {
        async close() {
          closed.abort()
          await recheck.close()
          await running
        },
      }
    },
  }
}
