// The trainers of Tinker's API: a process for each base, which trains the adapters of many runs in turn. A run whose
// client is silent is saved to disk, and a trainer without runs gives its device back.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { createFairQueue, type FairQueue } from '../../../lib/fair-queue.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { CommandError, CommandTrainer, TrainerEnded } from '../../platform/trainer/command-trainer.ts'
import type { Hub } from '../hub/index.ts'
import type { Devices, Place } from '../jobs/index.ts'
import type { QueueState } from './futures.ts'

/** A run as a trainer has it. */
export interface TrainedRun {
  id: string
  account_id: string
  base_model_id: string
  rank: number
}

/** An adapter in a trainer's memory. */
interface Adapter extends TrainedRun {
  /** When it was last used, in unix milliseconds. */
  used_at: number
  /** Whether there are gradients that no step has taken yet: they would be lost on disk. */
  gradients: boolean
  /** Whether its client is there. */
  abandoned: boolean
}

/** One command of a run, or several that belong together. */
export interface Work<T> {
  /** Brings the run into the trainer's memory where it is not there. */
  restore(call: Call): Promise<void>
  run(call: Call, adapter: Pick<Adapter, 'gradients'>): Promise<T>
}

type Call = (command: string, fields: Record<string, unknown>) => Promise<Record<string, unknown>>

interface BaseTrainer {
  base_model_id: string
  process: CommandTrainer
  run_dir: string
  place: Place
  /** When it took its device, in unix milliseconds. */
  taken_at: number
  adapters: Map<string, Adapter>
}

interface Options {
  hub: Hub
  devices: Devices
  trainingSetup: TrainingSetup
  dataDir: string
  python: string
  converters: string
  threads: number
  idle_ms: number
  /** How long a trainer has its device while jobs wait for one; 0: until it is idle. */
  turn_ms: number
  /** Writes a run to disk before the trainer forgets it. */
  save(run: TrainedRun, call: Call): Promise<void>
  /** The trainer ended with these runs in memory. */
  onLost(runs: TrainedRun[], why: string): Promise<void>
  onStarted(pid: number): () => void
  log: Logger
  now(): number
}

/** How often a device that others have is asked for again. */
const deviceWait_ms = 500
/** A trainer that waits so long for commands gives its device to a waiting job or to another base. */
const wantedIdle_ms = 10_000
/** Adapters that a trainer has in memory, of all accounts and of one; others are on disk until their next request. */
const adaptersMax = { all: 32, account: 8 }
/** How long a job has to take the device that a trainer gave back for it. */
const giveWay_ms = 3000
/** A client may pause so long between gradients and the step that takes them. */
const gradientIdle_ms = 30 * 60_000

export class Trainers {
  private readonly options: Options
  private readonly trainers = new Map<string, BaseTrainer>()
  private readonly queues = new Map<string, FairQueue>()
  private readonly busy = new Map<string, number>()
  private started = 0

  constructor(options: Options) {
    this.options = options
  }

  /**
   * Runs the commands of a run when it is its account's turn. Throws what the trainer answers as ApiError;
   * engine_failed when the trainer ended meanwhile.
   */
  async use<T>(
    run: TrainedRun,
    work: Work<T>,
    { signal, waits }: { signal: AbortSignal; waits(queue: QueueState): void },
  ): Promise<T> {
    const { base_model_id } = run
    this.busy.set(base_model_id, (this.busy.get(base_model_id) ?? 0) + 1)
    try {
      return await this.queueOf(base_model_id)(run.account_id, () => this.inTurn(run, work, waits, signal), signal)
    } finally {
      this.busy.set(base_model_id, this.busy.get(base_model_id)! - 1)
    }
  }

  /** Its client is gone: the run is saved at the next look. */
  abandon(run_id: string): void {
    for (const { adapters } of this.trainers.values()) {
      const adapter = adapters.get(run_id)
      if (adapter) adapter.abandoned = true
    }
  }

  /** Forgets a run without saving it. */
  async drop(run: TrainedRun): Promise<void> {
    await this.queueOf(run.base_model_id)(run.account_id, async () => {
      const trainer = this.trainers.get(run.base_model_id)
      if (!trainer?.adapters.delete(run.id) || !trainer.process.running) return
      await trainer.process.call('drop', { adapter: run.id }).catch(() => {})
    })
  }

  /** Saves silent runs, and ends trainers that have none or whose device others wait for. */
  async look(): Promise<void> {
    const { idle_ms, devices, now } = this.options
    for (const trainer of [...this.trainers.values()]) {
      const { base_model_id, adapters } = trainer
      if (this.busy.get(base_model_id)) continue
      const last = Math.max(0, ...[...adapters.values()].map(({ used_at }) => used_at))
      const isWanted = devices.hasWaiting() && now() - last > wantedIdle_ms
      await this.queueOf(base_model_id)('', async () => {
        for (const adapter of [...adapters.values()]) {
          const { used_at, gradients, abandoned } = adapter
          const limit_ms =
            gradients && !abandoned ? gradientIdle_ms : abandoned ? 0 : isWanted ? wantedIdle_ms : idle_ms
          if (now() - used_at >= limit_ms) await this.putAway(trainer, adapter)
        }
        if (adapters.size === 0) await this.end(trainer)
      })
    }
  }

  /** Saves all runs, and ends all trainers. */
  async close(): Promise<void> {
    for (const trainer of [...this.trainers.values()]) await this.empty(trainer)
  }

  private queueOf(base_model_id: string): FairQueue {
    const existing = this.queues.get(base_model_id)
    if (existing) return existing
    const created = createFairQueue()
    this.queues.set(base_model_id, created)
    return created
  }

  private async inTurn<T>(
    run: TrainedRun,
    work: Work<T>,
    waits: (queue: QueueState) => void,
    signal: AbortSignal,
  ): Promise<T> {
    const trainer = await this.trainerOf(run, waits, signal)
    waits({ state: 'active' })
    const call: Call = (command, fields) => trainer.process.call(command, fields)
    try {
      let adapter = trainer.adapters.get(run.id)
      if (!adapter) {
        await this.makeRoom(trainer, run.account_id)
        await work.restore(call)
        adapter = { ...run, used_at: 0, gradients: false, abandoned: false }
        trainer.adapters.set(run.id, adapter)
      }
      adapter.used_at = this.options.now()
      const result = await work.run(call, adapter)
      adapter.used_at = this.options.now()
      return result
    } catch (error) {
      if (error instanceof CommandError) throw refusal(error)
      if (!(error instanceof TrainerEnded)) throw error
      await trainer.process.ended
      await this.lost(trainer)
      throw new ApiError('engine_failed', `${error.message} while it worked on this request. ${lostHint}`)
    }
  }

  private async trainerOf(
    { id, account_id, base_model_id, rank }: TrainedRun,
    waits: (queue: QueueState) => void,
    signal: AbortSignal,
  ): Promise<BaseTrainer> {
    const existing = this.trainers.get(base_model_id)
    if (existing?.process.running && !this.isTurnOver(existing)) return existing
    if (existing?.process.running) {
      waits({ state: 'paused_capacity', reason: 'jobs have their turn on the device' })
      await this.putAllAway(existing)
      // Something could not be saved.
      if (this.trainers.get(base_model_id) === existing) return existing
      await sleep(giveWay_ms, undefined, { signal })
    } else if (existing) await this.lost(existing)
    const { hub, trainingSetup, dataDir, python, converters, threads, onStarted } = this.options
    waits({ state: 'paused_capacity', reason: 'training is being set up' })
    await trainingSetup.whenReady(signal)
    const base = hub.trainable(base_model_id)
    const place = await this.takePlace(id, account_id, base_model_id, rank, waits, signal)
    const run_dir = path.join(dataDir, 'tinker', `trainer-${process.pid}-${++this.started}`)
    try {
      const trainer: BaseTrainer = {
        base_model_id,
        run_dir,
        place,
        taken_at: this.options.now(),
        adapters: new Map(),
        process: await CommandTrainer.start({
          run_dir,
          spec: {
            job_id: `tinker-${this.started}`,
            base: { id: base_model_id, path: base.hf },
            method: 'lora',
            lora: loraOf(rank, 'all-linear'),
            start: null,
            threads,
            converters,
          },
          python,
          env: place.env,
          onStarted,
        }),
      }
      this.trainers.set(base_model_id, trainer)
      void trainer.process.ended.then((exit) => {
        if (this.trainers.get(base_model_id) !== trainer) return
        this.options.log.warn({ exit, base_model_id }, 'a trainer of interactive runs ended')
        void this.queueOf(base_model_id)('', () => this.lost(trainer)).catch((error) =>
          this.options.log.error({ err: error }, 'the runs of a trainer that ended could not be marked as lost'),
        )
      })
      return trainer
    } catch (error) {
      place.release()
      throw error
    }
  }

  private async takePlace(
    id: string,
    account_id: string,
    base_model_id: string,
    rank: number,
    waits: (queue: QueueState) => void,
    signal: AbortSignal,
  ): Promise<Place> {
    for (;;) {
      signal.throwIfAborted()
      const place = await this.options.devices.takeForRun(id, account_id, base_model_id, rank, signal)
      if ('refused' in place) throw new ApiError('model_not_available', place.refused)
      if (!('waits' in place)) return place
      waits({ state: 'paused_capacity', reason: place.waits })
      const idle = [...this.trainers.values()].find((trainer) => this.isIdle(trainer))
      if (idle) await this.empty(idle)
      else await sleep(deviceWait_ms, undefined, { signal }).catch(() => signal.throwIfAborted())
    }
  }

  /** Puts the adapters away that were not used for longest, where there are as many as there may be. */
  private async makeRoom(trainer: BaseTrainer, account_id: string): Promise<void> {
    const all = [...trainer.adapters.values()].toSorted((one, other) => one.used_at - other.used_at)
    const own = all.filter((adapter) => adapter.account_id === account_id)
    const full = own.length >= adaptersMax.account ? own : all.length >= adaptersMax.all ? all : []
    const oldest = full.find(({ gradients }) => !gradients)
    if (oldest) await this.putAway(trainer, oldest)
    if (full.length > 0 && (!oldest || trainer.adapters.has(oldest.id)))
      throw new ApiError(
        'rate_limit_exceeded',
        `${full.length} training runs have gradients that no step has taken. Call optim_step for some of them.`,
        { details: { retry_after_seconds: 5 } },
      )
  }

  /** Whether a job has waited for its turn, and nothing would be lost by it. */
  private isTurnOver({ taken_at, adapters }: BaseTrainer): boolean {
    const { turn_ms, devices, now } = this.options
    const isOver = turn_ms > 0 && now() - taken_at > turn_ms && devices.hasWaiting()
    return isOver && [...adapters.values()].every(({ gradients }) => !gradients)
  }

  /** Whether a trainer may be ended for another base. */
  private isIdle({ base_model_id, adapters }: BaseTrainer): boolean {
    const { now } = this.options
    return (
      !this.busy.get(base_model_id) &&
      [...adapters.values()].every(({ used_at, gradients }) => !gradients && now() - used_at > wantedIdle_ms)
    )
  }

  private async empty(trainer: BaseTrainer): Promise<void> {
    await this.queueOf(trainer.base_model_id)('', () => this.putAllAway(trainer))
  }

  private async putAllAway(trainer: BaseTrainer): Promise<void> {
    for (const adapter of [...trainer.adapters.values()]) await this.putAway(trainer, adapter)
    await this.end(trainer)
  }

  private async putAway(trainer: BaseTrainer, adapter: Adapter): Promise<void> {
    const call: Call = (command, fields) => trainer.process.call(command, fields)
    try {
      await this.options.save(adapter, call)
      trainer.adapters.delete(adapter.id)
      await call('drop', { adapter: adapter.id })
    } catch (error) {
      if (error instanceof TrainerEnded) return await this.lost(trainer)
      this.options.log.error({ err: error, run: adapter.id }, 'a run could not be saved; it is tried again later')
    }
  }

  private async end(trainer: BaseTrainer): Promise<void> {
    if (trainer.adapters.size > 0 && trainer.process.running) return
    if (this.trainers.get(trainer.base_model_id) === trainer) this.trainers.delete(trainer.base_model_id)
    await trainer.process.close()
    trainer.place.release()
    await rm(trainer.run_dir, { recursive: true, force: true })
  }

  private async lost(trainer: BaseTrainer): Promise<void> {
    const { signal, status } = await trainer.process.ended
    const runs = [...trainer.adapters.values()]
    trainer.adapters.clear()
    await this.end(trainer)
    if (runs.length > 0)
      await this.options.onLost(runs, signal ? `was ended by ${signal}` : `ended with status ${status}`)
  }
}

/** Adds the gradients of data. What fails in the middle of them leaves none, nor those of earlier data. */
export async function addGradients(
  call: Call,
  adapter: Pick<Adapter, 'gradients'>,
  fields: Record<string, unknown>,
): Promise<Record<string, unknown>> {
  try {
    const answer = await call('forward_backward', fields)
    adapter.gradients = true
    return answer
  } catch (error) {
    // These were looked at before.
    if (error instanceof CommandError && error.code !== 'dataset_invalid') adapter.gradients = false
    throw error
  }
}

export const lostHint = 'What it had in memory is lost: resume from your last checkpoint with a new training client.'

/** What a trainer's refusal is for the client. */
function refusal({ code, message }: CommandError): ApiError {
  const codes = { dataset_invalid: 'invalid_request', non_finite_loss: 'invalid_request' } as const
  if (code in codes) return new ApiError(codes[code as keyof typeof codes], message)
  if (code === 'out_of_memory')
    return new ApiError('invalid_request', `${message} Send shorter texts, or fewer of them at once.`)
  return new ApiError('internal_error', message)
}

/** Tinker's adapters have this scale, whatever their rank is. */
const alpha = 32

export const loraOf = (r: number, target_modules: string[] | 'all-linear') => ({ r, alpha, dropout: 0, target_modules })
