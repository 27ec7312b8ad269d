// Embeddings: batches the texts of all requests for a model, accounts in turn.
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { CpuThrottle } from '../batching/cpu-throttle.ts'
import type { ProgressWatchdog } from '../batching/progress-watchdog.ts'
import type { SideWork } from '../batching/side-work.ts'
import type { Context } from '../llama/context.ts'
import type { Model } from '../llama/model.ts'
import type { ServedModel } from '../models/models.ts'

interface EmbeddingShape {
  sequences: number
  tokens_per_sequence: number
  batch_tokens: number
}

const sequencesMax = 32
/** Smaller while sequences are decoding, since these wait for the whole batch. */
const batchTokensWhileDecoding = 128
const batchTokensMin = 1024
const batchTokensMax = 8192
// A causal model has a KV cache, which takes memory for every token.
const causalTokensMax = 4096

/** A text must fit into one batch: with bidirectional attention, every token may attend to every other. */
function embeddingShape({
  context_length,
  is_bidirectional: reads_both_ways,
}: Pick<Model, 'context_length' | 'is_bidirectional'>): EmbeddingShape {
  const batch_tokens = Math.min(
    reads_both_ways ? batchTokensMax : causalTokensMax,
    Math.max(batchTokensMin, context_length),
  )
  return reads_both_ways
    ? { sequences: sequencesMax, tokens_per_sequence: Math.ceil(batch_tokens / sequencesMax), batch_tokens }
    : { sequences: 1, tokens_per_sequence: batch_tokens, batch_tokens }
}

/** Maximum tokens of a text. */
export function embeddedTokensMax(model: Pick<Model, 'context_length' | 'is_bidirectional'>): number {
  return Math.min(model.context_length, embeddingShape(model).batch_tokens)
}

export interface Embedder {
  /**
   * Returns the embeddings of `texts`, normalized to length 1. Each text is tokens, at most `embeddedTokensMax`.
   * Rejects when `signal` aborts.
   */
  embed(
    served: ServedModel,
    texts: readonly number[][],
    caller: { account: string; signal: AbortSignal },
  ): Promise<Float32Array[]>
  /** Frees the context of the model and fails its waiting texts. */
  release(served: ServedModel): Promise<void>
}

interface Job {
  /** The round in which it is its account's turn: its jobs are in the order of these. */
  round: number
  tokens: readonly number[]
  signal: AbortSignal
  resolve(vector: Float32Array): void
  reject(error: unknown): void
}
interface EmbeddingQueue {
  context: Promise<Context>
  jobs: Job[]
  /** The round of the last batch, and the last round of each account that has jobs. */
  round: number
  lastRounds: Map<string, number>
  working: boolean
  released: boolean
}

export function createEmbedder(
  makeContext: (served: ServedModel, shape: EmbeddingShape) => Promise<Context>,
  throttle: CpuThrottle,
  watchdog: Pick<ProgressWatchdog, 'beginWork' | 'recordProgress'>,
  sideWork: SideWork,
): Embedder {
  const queues = new Map<ServedModel, EmbeddingQueue>()
  const callerLeft = () => new ApiError('engine_unavailable', 'The caller has left.')

  const takeBatch = (queue: EmbeddingQueue, { sequences, batch_tokens }: EmbeddingShape): Job[] => {
    const batch: Job[] = []
    // A single text is never split.
    let room = sideWork.isDecoding() ? batchTokensWhileDecoding : batch_tokens
    queue.jobs = queue.jobs.filter((job) => {
      if (job.signal.aborted) {
        job.reject(callerLeft())
        return false
      }
      if (
        batch.length === sequences ||
        (job.tokens.length > room && (batch.length > 0 || job.tokens.length > batch_tokens))
      )
        return true
      room -= job.tokens.length
      batch.push(job)
      return false
    })
    queue.round = batch.at(-1)?.round ?? queue.round
    if (queue.jobs.length === 0) queue.lastRounds.clear()
    return batch
  }

  const compute = (context: Context, batch: readonly Job[]) => {
    for (const [sequence, { tokens }] of batch.entries()) {
      context.truncate(sequence, 0)
      for (const [position, token] of tokens.entries()) context.add(token, position, sequence, true)
    }
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these embeddings.')
    for (const [sequence, job] of batch.entries()) job.resolve(normalized(context.embedding(sequence)))
  }

  const processQueue = async (served: ServedModel, queue: EmbeddingQueue) => {
    queue.working = true
    const endWork = watchdog.beginWork()
    try {
      const context = await queue.context
      while (queue.jobs.length > 0 && !queue.released) {
        const began_ms = performance.now()
        const batch = takeBatch(queue, embeddingShape(served.model))
        try {
          if (batch.length > 0) compute(context, batch)
          throttle.recordCompute(performance.now() - began_ms)
        } catch (error) {
          for (const job of batch) job.reject(error)
        }
        const worked_ms = performance.now() - began_ms
        watchdog.recordProgress()
        await (throttle.pauseIfDue() ?? yieldToEventLoop())
        await sideWork.yieldAfter(worked_ms)
      }
    } catch (error) {
      // The context could not be created. The next request tries again.
      if (queues.get(served) === queue) queues.delete(served)
      for (const job of queue.jobs.splice(0)) job.reject(error)
    }
    endWork()
    queue.working = false
  }

  return {
    async embed(served, texts, { account, signal }) {
      if (signal.aborted) throw callerLeft()
      const queue: EmbeddingQueue = queues.get(served) ?? {
        context: makeContext(served, embeddingShape(served.model)),
        jobs: [],
        round: 0,
        lastRounds: new Map(),
        working: false,
        released: false,
      }
      queues.set(served, queue)
      let round = Math.max(queue.round, queue.lastRounds.get(account) ?? 0)
      const vectors = texts.map(
        (tokens) =>
          new Promise<Float32Array>((resolve, reject) =>
            queue.jobs.push({ round: ++round, tokens, signal, resolve, reject }),
          ),
      )
      queue.lastRounds.set(account, round)
      // Stable: two runs in order, which are merged.
      queue.jobs.sort((a, b) => a.round - b.round)
      if (!queue.working) void processQueue(served, queue)
      return Promise.all(vectors)
    },
    async release(served) {
      const queue = queues.get(served)
      if (!queue) return
      queues.delete(served)
      queue.released = true
      for (const job of queue.jobs.splice(0)) job.reject(new ApiError('engine_unavailable', 'The model was unloaded.'))
      await queue.context.then(
        (context) => context.free(),
        () => {},
      )
    },
  }
}

/** The vector scaled to length 1. */
export function normalized(vector: Float32Array): Float32Array {
  let sum = 0
  for (const value of vector) sum += value * value
  const length = Math.sqrt(sum) || 1
  return vector.map((value) => value / length)
}
