// A vLLM replica on a virtual clock: continuous batching step by step, and slots for adapters. The rules are vLLM's
// (v1/core/sched/scheduler.py, lora/worker_manager.py): requests begin in order; one whose adapter is not among those
// of the batch waits while the batch has `slots` different ones; an adapter that has no slot takes that of the one that
// was used least recently and is in no running request; loading holds up the whole batch.
import type { Candidate } from '../../server/features/serving/replicas/choice.ts'
import type { Costs } from './costs.ts'

export interface Request {
  /** 0: the base itself. */
  adapter: number
  gateway: number
  arrived: number
  prompt: number
  tokens: number
  account: string
  /** When its first token came; -1: not yet. */
  first: number
  /** Whether its adapter had a slot when it began. */
  hit: boolean
  /** When it left the queue of the gateway, and that of the replica. */
  sent: number
  begun: number
}

const maxTokens = 4096
const nothing = { copy_ms: 0, disk_ms: 0 }

export class Replica {
  readonly name: string
  /** As each gateway sees it. */
  readonly seen: Candidate[]
  /** When the step in progress ends; infinite while nothing is in progress. */
  stepEnds = Number.POSITIVE_INFINITY
  running = 0
  loads = 0
  /** While caches fill, loading takes no time. */
  warming = false
  private readonly costs: Costs
  private readonly useSlots: boolean
  private step = 0
  private readonly endsAt: Request[][] = Array.from({ length: maxTokens }, () => [])
  private waiting: Request[] = []
  private begun: Request[] = []
  /** Requests that run, by adapter. */
  private readonly active = new Map<number, number>()
  /** Adapters by when they were last used, the longest ago first. */
  private readonly slots = new Map<number, true>()
  private readonly host = new Map<number, true>()

  constructor(name: string, costs: Costs, gateways: number, useSlots = true) {
    this.name = name
    this.costs = costs
    this.useSlots = useSlots
    this.seen = Array.from({ length: gateways }, () => ({ name, max_concurrent: 256, inFlight: 0 }))
  }

  /** Requests that it has, those that wait included. */
  get present(): number {
    return this.running + this.waiting.length
  }

  unbegun(): readonly Request[] {
    return this.waiting
  }

  has(adapter: number): boolean {
    return this.slots.has(adapter)
  }

  get adapters(): number {
    return this.slots.size
  }

  send(request: Request, now: number): void {
    request.sent = now
    this.waiting.push(request)
    if (this.stepEnds === Number.POSITIVE_INFINITY) this.beginStep(now)
  }

  /** Ends the step in progress; returns the requests whose last token it made. */
  endStep(now: number): Request[] {
    for (const request of this.begun) request.first = now
    const done = this.endsAt[this.step % maxTokens]!
    if (done.length > 0) this.endsAt[this.step % maxTokens] = []
    for (const { adapter } of done) {
      const left = this.active.get(adapter)! - 1
      if (left > 0) this.active.set(adapter, left)
      else this.active.delete(adapter)
    }
    this.running -= done.length
    this.step++
    this.stepEnds = Number.POSITIVE_INFINITY
    if (this.running > 0 || this.waiting.length > 0) this.beginStep(now)
    return done
  }

  private beginStep(now: number): void {
    const { step, sequences, batch_tokens } = this.costs
    const decoding = this.running
    const [begun, skipped]: [Request[], Request[]] = [[], []]
    let [prompts, loading_ms, taken] = [0, 0, 0]
    for (const request of this.waiting) {
      if (this.running >= sequences || decoding + prompts + request.prompt > batch_tokens) break
      taken++
      if (!this.admits(request.adapter)) {
        skipped.push(request)
        continue
      }
      loading_ms += this.occupy(request)
      this.running++
      prompts += request.prompt
      request.begun = now
      this.endsAt[(this.step + Math.min(request.tokens, maxTokens) - 1) % maxTokens]!.push(request)
      begun.push(request)
    }
    this.waiting =
      taken === skipped.length && begun.length === 0 ? this.waiting : [...skipped, ...this.waiting.slice(taken)]
    this.begun = begun
    const compute_ms =
      step.base_ms +
      step.sequence_ms * decoding +
      step.prompt_ms * prompts +
      (this.useSlots ? step.adapter_ms * this.active.size : 0)
    const took_ms = compute_ms / (this.useSlots ? step.lora_factor : 1) + loading_ms
    this.stepEnds = now + took_ms / 1000
  }

  private admits(adapter: number): boolean {
    return !this.useSlots || adapter === 0 || this.active.has(adapter) || this.active.size < this.costs.slots
  }

  /** Gives the request's adapter a slot; returns the milliseconds that loading takes. */
  private occupy(request: Request): number {
    const { adapter } = request
    this.active.set(adapter, (this.active.get(adapter) ?? 0) + 1)
    if (!this.useSlots || adapter === 0) {
      request.hit = true
      return 0
    }
    const { slots, host_adapters } = this.costs
    const load = this.warming ? nothing : this.costs.load
    request.hit = this.slots.delete(adapter)
    this.slots.set(adapter, true)
    if (request.hit) return 0
    this.loads++
    if (this.slots.size > slots)
      for (const one of this.slots.keys())
        if (!this.active.has(one)) {
          this.slots.delete(one)
          break
        }
    const isInHost = this.host.delete(adapter)
    this.host.set(adapter, true)
    if (isInHost) return load.copy_ms
    if (this.host.size > host_adapters)
      for (const one of this.host.keys())
        if (!this.slots.has(one)) {
          this.host.delete(one)
          break
        }
    return load.copy_ms + load.disk_ms
  }
}
