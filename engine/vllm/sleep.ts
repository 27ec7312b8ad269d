// Bases that sleep while a training has the memory of their device: who sleeps when, and what requests wait for.
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'

/** A training's claim on devices. */
export interface Claim {
  job: string
  /** UUIDs of GPUs, or their numbers where the driver gives no UUID. */
  devices: readonly string[]
  /** A base ends its vLLM, even where vLLM could sleep and keep some of the memory. */
  end: boolean
}

/** The memory that a running training may take of devices. */
export interface Hold {
  devices: readonly string[]
  /** Bytes that each device must have free. */
  bytes: number
}

export interface SleepTimes {
  /** How long answers in progress may go on. */
  grace_ms: number
  /** How long a request waits for a base that sleeps. */
  wait_ms: number
}

const retry_after_seconds = 30

/** The error of a request that waited for a base which sleeps, or whose answer took longer than the grace time. */
export class Asleep extends ApiError {
  constructor(what = 'The model sleeps while a training uses the memory of its GPU.') {
    super('engine_unavailable', `${what} It answers again when the training has ended: try again later.`, {
      details: { retry_after_seconds },
    })
  }
}

/** What requests pass on their way to a base: closed while it sleeps. */
export class Gate {
  wait_ms = 0
  private opened: PromiseWithResolvers<void> | null = null
  private readonly onChange = new Set<() => void>()
  /** What is being computed; aborted with the error that callers get. */
  private readonly passes = new Set<AbortController>()
  private onEmpty: () => void = () => {}

  get isOpen(): boolean {
    return this.opened === null
  }

  close(): void {
    if (this.opened) return
    this.opened = Promise.withResolvers()
    for (const changed of this.onChange) changed()
  }

  open(): void {
    if (!this.opened) return
    const { resolve } = this.opened
    this.opened = null
    resolve()
    for (const changed of this.onChange) changed()
  }

  /** Calls `changed` whenever it opens or closes. */
  watch(changed: () => void): void {
    this.onChange.add(changed)
  }

  /** Waits until it is open, for `wait_ms` at most: throws Asleep. `end` must be called when the request has ended. */
  async enter(signal: AbortSignal): Promise<{ cut: AbortSignal; end(): void }> {
    const until = performance.now() + this.wait_ms
    while (this.opened) {
      const left_ms = until - performance.now()
      if (left_ms <= 0) throw new Asleep()
      const over = new AbortController()
      const timer = sleep(left_ms, undefined, { signal: AbortSignal.any([signal, over.signal]) })
      timer.catch(() => {})
      await Promise.race([this.opened.promise, timer]).finally(() => over.abort())
    }
    const pass = new AbortController()
    this.passes.add(pass)
    const end = () => {
      this.passes.delete(pass)
      if (this.passes.size === 0) this.onEmpty()
    }
    return { cut: pass.signal, end }
  }

  /** Resolves when nothing is being computed; after `grace_ms` it cuts off what still is. */
  async drain(grace_ms: number): Promise<void> {
    if (this.passes.size === 0) return
    const empty = new Promise<void>((resolve) => {
      this.onEmpty = resolve
    })
    const over = new AbortController()
    await Promise.race([empty, sleep(grace_ms, undefined, { signal: over.signal }).catch(() => {})])
    over.abort()
    const error = new Asleep('A training needed the memory of the GPU before this answer was complete.')
    for (const pass of this.passes) pass.abort(error)
    await empty
  }
}

/** A base as what may sleep. */
export interface Sleeper {
  /** Where it computes; null: not known, so any claim may be on its devices. */
  readonly devices: readonly string[] | null
  /** What it takes of each. */
  readonly device_bytes: number
  readonly isStarting: boolean
  /** Sleeps for the claim, or wakes: null. Resolves when it sleeps, or has begun to wake. */
  follow(claim: Claim | null, times: SleepTimes): Promise<void>
}

export interface Claims extends SleepTimes {
  /** Later states have higher numbers. */
  version: number
  claims: readonly Claim[]
  holds: readonly Hold[]
}

/** The claims of trainings on this machine's devices, as the server last told. */
export class DeviceClaims {
  private state: Claims = { version: -1, claims: [], holds: [], grace_ms: 0, wait_ms: 0 }
  private readonly sleepers = new Set<Sleeper>()
  private changed = Promise.withResolvers<void>()

  /** All claims, and what starts. */
  list() {
    const { claims, holds } = this.state
    const starting = [...this.sleepers].filter(({ isStarting }) => isStarting)
    return { claims, holds, starting: starting.map(({ devices, device_bytes }) => ({ devices, device_bytes })) }
  }

  /** What running trainings may take of a device's memory. */
  heldOf(device: string): number {
    return this.state.holds.reduce((sum, { devices, bytes }) => sum + (devices.includes(device) ? bytes : 0), 0)
  }

  /** Resolves when every base that is to sleep does. A state that is older than the last is ignored. */
  async apply(state: Claims): Promise<void> {
    if (state.version < this.state.version) return
    this.state = state
    this.changed.resolve()
    this.changed = Promise.withResolvers()
    await Promise.all([...this.sleepers].map((sleeper) => this.tell(sleeper)))
  }

  /** From now on it follows the claims on its devices. */
  async add(sleeper: Sleeper): Promise<void> {
    this.sleepers.add(sleeper)
    if (this.claimOn(sleeper.devices)) await this.tell(sleeper)
  }

  delete(sleeper: Sleeper): void {
    this.sleepers.delete(sleeper)
  }

  claimOn(devices: readonly string[] | null): Claim | null {
    const { claims } = this.state
    return claims.find((claim) => !devices || claim.devices.some((device) => devices.includes(device))) ?? null
  }

  /** Runs `work`; where it throws Asleep, again when the claims have changed, for as long as requests wait. */
  async whenAwake<T>(work: () => Promise<T>): Promise<T> {
    const began = performance.now()
    for (;;) {
      const { promise } = this.changed
      try {
        return await work()
      } catch (error) {
        const left_ms = this.state.wait_ms - (performance.now() - began)
        if (!(error instanceof Asleep) || left_ms <= 0) throw error
        await Promise.race([promise, sleep(left_ms, undefined, { ref: false })])
      }
    }
  }

  private tell(sleeper: Sleeper): Promise<void> {
    return sleeper.follow(this.claimOn(sleeper.devices), this.state)
  }
}
