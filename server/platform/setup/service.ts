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
import { type PeriodicTask, runPeriodically } from '../../../lib/periodic.ts'

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

export class TrainingSetup {
  private readonly options: Options
  private readonly pendingFile: string
  private readonly closed = new AbortController()
  private readonly stopping: AbortSignal
  private readonly changes = new EventEmitter().setMaxListeners(0)
  private readonly steps: Step[]
  private isReady: boolean
  private running: Promise<void> | undefined

  constructor(options: Options) {
    this.options = options
    this.pendingFile = path.join(options.checkout, '.local/setup-pending.json')
    this.stopping = AbortSignal.any([options.stopping, this.closed.signal])
    this.steps = this.readPending().map((step) => ({ ...step, status: 'waiting', message: null }))
    this.isReady = this.steps.length === 0
  }

  /** Whether everything that training needs is installed. It stays true for the life of the process. */
  ready(): boolean {
    return this.isReady
  }

  /** What is being waited for, as a sentence with a full stop. */
  describe(): string {
    const failed = this.steps.find(({ status }) => status === 'failed')
    if (failed)
      return (
        `The set-up of the training environment has failed at step ${this.place(failed)}, ${brief(failed)}. ` +
        'Its operator can see why at GET /v1/hub/setup, and try again.'
      )
    const step = this.current()
    const what = step ? `: step ${this.place(step)}, ${brief(step)}` : ''
    return `The training environment is being installed${what}.`
  }

  /** Called when a step begins, ends or fails, and when it is ready. */
  onChange(listener: () => void): void {
    this.changes.on('change', listener)
  }

  /** Starts again after a failure. Otherwise does nothing. */
  retry(): void {
    const { log } = this.options
    if (this.isReady || this.stopping.aborted) return
    this.running ??= this.run()
      .catch((error: Error) => log.error({ err: error }, 'set-up for training could not be run'))
      .finally(() => {
        this.running = undefined
      })
  }

  /** Resolves when it is ready, or the signal aborts. */
  whenReady(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        if (!this.isReady && !signal.aborted) return
        this.changes.off('change', done)
        signal.removeEventListener('abort', done)
        resolve()
      }
      this.changes.on('change', done)
      signal.addEventListener('abort', done)
      done()
    })
  }

  /** Throws training_not_ready, which callers may retry. */
  requireReady(): void {
    if (!this.isReady)
      throw new ApiError(
        'training_not_ready',
        `${this.describe()} Try again in a moment; GET /v1/hub/setup shows how far it is.`,
        { details: { retry_after_seconds: retryAfter_seconds } },
      )
  }

  /** The steps; with the end of a failed command's output for operators. */
  status({ operator }: { operator: boolean }): TrainingSetupStatus {
    return {
      ready: this.isReady,
      steps: this.steps.map((step) => ({
        name: step.name,
        title: step.title,
        status: step.status,
        seconds: this.seconds(step),
        message: step.message && messageOf(step, operator),
      })),
    }
  }

  /** Starts set-up unless there is nothing to do. Only for the process that holds the data folder's lock. */
  start(): { close(): Promise<void> } {
    const { announce } = this.options
    if (!this.isReady)
      announce(`What only training needs is installed behind the service, in ${this.steps.length} steps.`)
    this.retry()
    let recheck: PeriodicTask | undefined
    if (!this.isReady)
      recheck = runPeriodically(recheck_ms, async () => {
        if (!this.isReady && !this.running && !existsSync(this.pendingFile)) this.becomeReady()
        if (this.isReady) void recheck?.close()
      })
    const close = async () => {
      this.closed.abort()
      await recheck?.close()
      await this.running
    }
    return { close }
  }

  private readPending(): z.infer<typeof Pending> {
    const { log } = this.options
    if (!existsSync(this.pendingFile)) return []
    try {
      return Pending.parse(JSON.parse(readFileSync(this.pendingFile, 'utf8')))
    } catch (error) {
      log.warn({ err: error, file: this.pendingFile }, 'the list of pending set-up steps cannot be read')
      return [{ name: 'training', title: 'what training needs' }]
    }
  }

  private place(step: Step): string {
    return `${this.steps.indexOf(step) + 1} of ${this.steps.length}`
  }

  private changed(): void {
    this.changes.emit('change')
  }

  private seconds({ started_at, ended_at }: Step): number | null {
    const { now } = this.options
    return started_at === undefined ? null : Math.round(((ended_at ?? now()) - started_at) / 100) / 10
  }

  private becomeReady(): void {
    const { announce, now } = this.options
    const time = now()
    for (const step of this.steps)
      if (step.status !== 'done') Object.assign(step, { status: 'done', message: null, ended_at: time })
    this.isReady = true
    announce('Training is ready.')
    this.changed()
  }

  /** The step at work, else the next one. */
  private current(): Step | undefined {
    return (
      this.steps.find(({ status }) => status === 'running') ?? this.steps.find(({ status }) => status === 'waiting')
    )
  }

  /** A step that was not pending has become necessary through an earlier one. */
  private stepNamed(name: string, title: string): Step {
    const pending = this.steps.find((step) => step.name === name)
    if (pending) return pending
    const step: Step = { name, title, status: 'waiting', message: null }
    const next = this.steps.findIndex(({ status }) => status === 'waiting')
    this.steps.splice(next < 0 ? this.steps.length : next, 0, step)
    return step
  }

  private onLine(line: string): void {
    const { announce, now } = this.options
    // Ctrl-C has ended the command too, which is no failure of its step.
    if (this.stopping.aborted) return
    let event: z.infer<typeof SetupEvent>
    try {
      event = SetupEvent.parse(JSON.parse(line))
    } catch {
      return
    }
    const { name, title, status, message, hint } = event
    const step = name === undefined ? this.current() : this.stepNamed(name, title ?? name)
    // Set-up ends with the failure that its step has reported.
    if (!step || (name === undefined && this.steps.some(({ status }) => status === 'failed'))) return
    if (message !== undefined) step.message = message.slice(0, message_characters_max)
    step.hint = hint
    if (status === 'running') {
      // A step before it that needed nothing prints no event.
      for (const earlier of this.steps.slice(0, this.steps.indexOf(step)))
        if (earlier.status !== 'done') earlier.status = 'done'
      step.started_at = now()
      delete step.ended_at
      announce(`Set-up for training, ${this.place(step)}: ${step.title}`)
    }
    if (status === 'done' || status === 'failed') step.ended_at = now()
    if (status === 'done') {
      step.message = null
      announce(`Set-up for training, ${this.place(step)}: done in ${this.seconds(step)} s`)
    }
    if (!status) return
    step.status = status
    this.changed()
  }

  private async run(): Promise<void> {
    const { checkout, announce, now } = this.options
    for (const step of this.steps)
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
      { env: process.env, stdout: (line) => this.onLine(line), signal: this.stopping, grace_ms: stop_grace_ms },
    ).ended.catch((error: Error) => ({ status: null, stderr: error.message }))
    if (this.stopping.aborted) return
    if (end.status === 0) return this.becomeReady()
    const step =
      this.steps.find(({ status }) => status === 'failed') ?? this.steps.find(({ status }) => status !== 'done')
    if (!step) return
    if (step.status !== 'failed') step.message ??= end.stderr.slice(-message_characters_max)
    step.status = 'failed'
    step.ended_at = now()
    announce(`Set-up for training, ${this.place(step)} failed: ${messageOf(step, true)}`)
    announce(
      'The service keeps running. `npm run setup` tries again; so do POST /v1/hub/setup/retry and the next start.',
    )
    this.changed()
  }
}

/** The title without its remarks on size and time. */
const brief = ({ title }: Step) => (title.endsWith(')') ? title.slice(0, title.lastIndexOf(' (')) : title)

/** The output of a failed command may name folders of the machine: it is for its operator. */
function messageOf({ message, hint }: Step, operator: boolean): string {
  const shown = operator ? message! : message!.split('\n')[0]!.slice(0, 200).replace(/:$/, '.')
  return hint ? `${shown}\n${hint}` : shown
}
