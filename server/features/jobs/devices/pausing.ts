// When a training puts to sleep what is served on its devices: which would then have room for it, and that they do.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Device } from './list.ts'
import type { Plan } from './plan.ts'

/** The bases that vLLM serves on this machine's devices. */
export interface Serving {
  /**
   * Those that are awake. `devices`: as a trainer's CUDA_VISIBLE_DEVICES has them; null: not known. `bytes`: what each
   * takes of every one.
   */
  awake(): Promise<{ id: string; devices: string[] | null; bytes: number }[]>
  /** Puts to sleep what is on the devices. `end`: vLLM keeps nothing of their memory. Throws if that fails. */
  claim(job_id: string, devices: string[], end: boolean, signal: AbortSignal): Promise<void>
  /** The bases that vLLM is being started for, as above: `bytes` is what each will take. */
  starting(): Promise<{ devices: string[] | null; bytes: number }[]>
  /** A training may take so much of each device: what is started there later leaves it. */
  hold(job_id: string, devices: string[], bytes: number): void
  /** The job's training has ended: what sleeps for it wakes. */
  release(job_id: string): void
}

/** What is served answers for so long before it is put to sleep again. */
const awake_ms = 60_000
/** A job for which sleeping gave too little memory does not try again for so long. */
const futile_ms = 600_000
/** How long the driver may take to give back the memory of what sleeps. */
const freed_ms = 10_000
const look_ms = 250

interface Options {
  serving: Serving
  read(): Promise<{ devices: Device[] }>
  now(): number
}

export class Pausing {
  private readonly options: Options
  private readonly futile = new Map<string, number>()
  private woke_at = Number.NEGATIVE_INFINITY

  constructor(options: Options) {
    this.options = options
  }

  /** Those of these devices that would have enough free memory if what is served there slept. */
  async candidates(plan: Plan, devices: readonly Device[]): Promise<Device[]> {
    const awake = await this.options.serving.awake()
    return devices.filter((device) => {
      const there = awake.filter((base) => base.devices?.includes(idOf(device)) ?? true)
      const held_mb = there.reduce((sum, { bytes }) => sum + bytes / 1e6, 0)
      return there.length > 0 && fits(plan, device.free_mb === null ? null : device.free_mb + held_mb)
    })
  }

  /** Why a job must not pause serving now; undefined: it may. */
  refusal(job_id: string): string | undefined {
    const { now } = this.options
    const tried_at = this.futile.get(job_id)
    if (tried_at !== undefined && now() - tried_at < futile_ms)
      return 'Putting to sleep what is served there did not free enough.'
    this.futile.delete(job_id)
    if (now() - this.woke_at < awake_ms) return 'What is served there answers for a minute before it sleeps again.'
    return undefined
  }

  /** Resolves with these devices once they have room, or with why they have none. Then what slept wakes. */
  async pause(job_id: string, plan: Plan, held: readonly Device[], signal: AbortSignal): Promise<Device[] | string> {
    const { serving, now } = this.options
    try {
      for (const end of [false, true]) {
        await serving.claim(job_id, held.map(idOf), end, signal)
        const roomy = await this.roomy(plan, held, end, signal)
        if (roomy) return roomy
      }
      this.futile.set(job_id, now())
      this.resume(job_id)
      return 'The job waits: what is served on its device sleeps, and other programs still take too much of the memory.'
    } catch (error) {
      this.resume(job_id)
      const reason = signal.aborted ? 'the service stops' : (error as Error).message
      return `The job waits: what is served on its device could not be put to sleep (${reason}).`
    }
  }

  /** Devices without what vLLM is about to take of their free memory. */
  async withoutStarting<L extends { devices: Device[] }>(list: L): Promise<L> {
    const starting = await this.options.serving.starting()
    if (starting.length === 0) return list
    const devices = list.devices.map((device) => {
      const there = starting.filter((base) => base.devices?.includes(idOf(device)) ?? true)
      const taken_mb = there.reduce((sum, { bytes }) => sum + bytes / 1e6, 0)
      return { ...device, free_mb: device.free_mb === null ? null : Math.max(0, device.free_mb - taken_mb) }
    })
    return { ...list, devices }
  }

  /** Tells serving what a training may take of GPUs; `memory_mb`: null where it is not known. */
  hold(job_id: string, devices: readonly Device[], memory_mb: number | null): void {
    if (memory_mb !== null && devices.every(({ on }) => on === 'gpu'))
      this.options.serving.hold(job_id, devices.map(idOf), memory_mb * 1e6)
  }

  release(job_id: string): void {
    this.options.serving.release(job_id)
  }

  resume(job_id: string): void {
    this.woke_at = this.options.now()
    this.options.serving.release(job_id)
  }

  private async roomy(plan: Plan, held: readonly Device[], end: boolean, signal: AbortSignal) {
    const names = new Set(held.map(({ name }) => name))
    for (const until = performance.now() + (end ? freed_ms : freed_ms / 5); ; ) {
      const fresh = (await this.options.read()).devices.filter(({ name }) => names.has(name))
      if (fresh.length === held.length && fresh.every(({ free_mb }) => fits(plan, free_mb))) return fresh
      if (performance.now() > until) return undefined
      await sleep(look_ms, undefined, { signal })
    }
  }
}

/** As an engine names the device of a base: its UUID or number. */
const idOf = ({ visible }: Device) => visible || 'cpu'

export const fits = ({ needed_mb }: Plan, free_mb: number | null) =>
  needed_mb === null || free_mb === null || needed_mb <= free_mb
