// Generations that vLLM computes: the scheduler's counterpart. vLLM batches; here accounts get their turns, tokens
// become text, and answers end.
import { ApiError } from '../../contract/errors.ts'
import {
  abandonGeneration,
  acceptToken,
  createGeneration,
  failGeneration,
  finishGeneration,
  type Generation,
} from '../batching/generation.ts'
import { admissionOrder } from '../batching/runner.ts'
import type { GenerationHandle, SchedulerCounts, Submission } from '../batching/scheduler.ts'
import type { ServedModel } from '../models/models.ts'
import type { TokenLogprobs } from '../sampling/logprobs.ts'
import { type GeneratedTokens, likeliest, VllmBase } from './base.ts'
import { generateBody } from './body.ts'
import { Asleep } from './sleep.ts'

const waitingMax = 256
/** vLLM is killed when it has requests and sends nothing for so long. */
const silence_ms_max = 300_000
const watch_ms = 10_000

interface Hooks {
  onTokens(prompt_tokens: number, output_tokens: number): void
  onFault(error: unknown, model: string): void
  /** Called when there is work. The returned function is called when none is left. */
  onBusy(): () => void
}

interface Entry {
  request: Generation['request']
  generation: Generation
  served: ServedModel
  controller: AbortController
}

interface Queue {
  base: VllmBase
  waiting: Entry[]
  running: Set<Entry>
  /** When vLLM last sent anything. */
  heard_at_ms: number
}

export class VllmQueue {
  private readonly hooks: Hooks
  private readonly queues = new Map<VllmBase, Queue>()
  private onIdle: (() => void) | null = null

  constructor(hooks: Hooks) {
    this.hooks = hooks
    setInterval(() => this.watch(), watch_ms).unref()
  }

  /** As the scheduler's method of this name. */
  submit(served: ServedModel, submissions: readonly Submission[]): GenerationHandle[] {
    const queue = this.queueOf(served)
    const waiting = queue.waiting.filter((entry) => entry.served === served).length
    // A request with many answers is never rejected when nothing else waits.
    if (waiting > 0 && waiting + submissions.length > waitingMax)
      throw new ApiError(
        'overloaded',
        `${waiting} requests for ${served.name} are waiting already. Try again in a moment.`,
      )
    const entries = submissions.map(({ request, events }): Entry => {
      const generation = createGeneration(request, events)
      return { request, generation, served, controller: new AbortController() }
    })
    queue.waiting.push(...entries)
    this.updateBusy()
    if (!queue.base.gate.isOpen) for (const entry of entries) this.expire(queue, entry)
    // In a later turn, as the scheduler: the caller has the handles before the first event.
    setImmediate(() => this.pump(queue))
    return entries.map((entry) => ({ cancel: () => this.cancel(queue, entry), progress: () => entry.generation }))
  }

  /** Fails the generations of a model that is freed. */
  release(served: ServedModel): void {
    if (!(served.remote instanceof VllmBase)) return
    const queue = this.queues.get(served.remote)
    if (!queue) return
    for (const entry of [...queue.waiting, ...queue.running])
      if (entry.served === served) {
        failGeneration(entry.generation, new ApiError('engine_unavailable', 'The model was unloaded.'))
        entry.controller.abort()
      }
    if (served.base_name === null) this.queues.delete(served.remote)
  }

  counts(): Pick<SchedulerCounts, 'running' | 'waiting'> {
    const all = [...this.queues.values()]
    return {
      running: all.reduce((sum, { running }) => sum + running.size, 0),
      waiting: all.reduce((sum, { waiting }) => sum + waiting.length, 0),
    }
  }

  private queueOf({ remote }: ServedModel): Queue {
    if (!(remote instanceof VllmBase)) throw new Error('this model is not served by vLLM')
    const existing = this.queues.get(remote)
    if (existing) return existing
    const created: Queue = { base: remote, waiting: [], running: new Set(), heard_at_ms: performance.now() }
    this.queues.set(remote, created)
    remote.gate.watch(() => {
      if (remote.gate.isOpen) this.pump(created)
      else for (const entry of created.waiting) this.expire(created, entry)
      this.updateBusy()
    })
    return created
  }

  private cancel(queue: Queue, entry: Entry): void {
    if (entry.generation.state === 'ended') return
    entry.generation.cancelled = true
    abandonGeneration(entry.generation)
    entry.controller.abort()
    this.pump(queue)
    // It may have waited alone.
    this.updateBusy()
  }

  /** Fails a request that waits for a base which sleeps, when it has waited long enough. */
  private expire(queue: Queue, entry: Entry): void {
    const { gate } = queue.base
    const check = () => {
      if (entry.generation.state !== 'waiting' || gate.isOpen) return
      failGeneration(entry.generation, new Asleep())
      queue.waiting = queue.waiting.filter((other) => other !== entry)
      this.updateBusy()
    }
    setTimeout(check, gate.wait_ms).unref()
  }

  /** Sends what vLLM has room for, accounts in turn. Background generations wait while there are others. */
  private pump(queue: Queue): void {
    queue.waiting = queue.waiting.filter(({ generation }) => generation.state === 'waiting')
    const room = queue.base.gate.isOpen ? queue.base.sequences_max - queue.running.size : 0
    const next = admissionOrder(queue.waiting, [...queue.running]).slice(0, Math.max(0, room))
    queue.waiting = queue.waiting.filter((entry) => !next.includes(entry))
    if (queue.running.size === 0) queue.heard_at_ms = performance.now()
    for (const entry of next) {
      entry.generation.state = 'running'
      queue.running.add(entry)
      void this.compute(queue, entry).finally(() => {
        queue.running.delete(entry)
        this.pump(queue)
        this.updateBusy()
      })
    }
  }

  /** Tells whether there is work. What waits for a base that sleeps is none. */
  private updateBusy(): void {
    const isBusy = [...this.queues.values()].some(
      ({ base, waiting, running }) => running.size > 0 || (waiting.length > 0 && base.gate.isOpen),
    )
    if (isBusy) this.onIdle ??= this.hooks.onBusy()
    else {
      this.onIdle?.()
      this.onIdle = null
    }
  }

  private async compute(queue: Queue, { generation, request, served, controller }: Entry): Promise<void> {
    const { vocab } = served.model
    const adapter = served.base_name === null ? null : served.name
    let isStarted = false
    /** The last tokens, which end the answer: how many of the prompt were cached comes behind them. */
    let last: GeneratedTokens | undefined
    const accept = ({ token_ids, logprobs, finish_reason }: GeneratedTokens) => {
      if (!isStarted) {
        isStarted = true
        generation.events.onStart({ cached_tokens: generation.cached_tokens, queue_ms: 0 })
        this.hooks.onTokens(request.prompt.length - generation.cached_tokens, 0)
      }
      this.hooks.onTokens(0, token_ids.length)
      for (const [index, token] of token_ids.entries()) {
        // The library ends the process for one that its vocabulary lacks.
        if (!(token >= 0 && token < vocab.size)) throw new Error(`vLLM sent the token ${token}, which the base lacks`)
        const token_logprobs = logprobs ? logprobsOf(logprobs.content[index]!, request.top_logprobs ?? 0) : null
        if (acceptToken(generation, vocab, { token, token_logprobs })) return
      }
      if (finish_reason !== null) finishGeneration(generation, finish_reason === 'length' ? 'length' : 'stop')
    }
    try {
      for await (const event of queue.base.generate(adapter, generateBody(served.model, request), controller.signal)) {
        queue.heard_at_ms = performance.now()
        if (generation.state === 'ended') break
        if ('cached_tokens' in event) generation.cached_tokens = event.cached_tokens
        else if (event.finish_reason === 'abort' || event.finish_reason === 'error') break
        else if (event.finish_reason !== null) last = event
        else accept(event)
      }
      if (last && generation.state !== 'ended') accept(last)
      failGeneration(generation, new ApiError('engine_failed', 'vLLM ended this answer before it was whole.'))
    } catch (error) {
      if (!(error instanceof ApiError) && !controller.signal.aborted) this.hooks.onFault(error, served.name)
      failGeneration(
        generation,
        error instanceof ApiError ? error : new ApiError('engine_failed', 'The engine failed to compute this answer.'),
      )
    } finally {
      // Ends what vLLM would still compute.
      controller.abort()
    }
  }

  private watch(): void {
    for (const { base, running, heard_at_ms } of this.queues.values())
      if (running.size > 0 && performance.now() - heard_at_ms > silence_ms_max) base.endHanging()
  }
}

function logprobsOf(
  { token_id, logprob, top_logprobs }: NonNullable<GeneratedTokens['logprobs']>['content'][number],
  top: number,
): TokenLogprobs {
  return {
    token: token_id,
    logprob,
    top: likeliest(
      top_logprobs.map((other) => ({ token: other.token_id, logprob: other.logprob })),
      top,
    ),
  }
}
