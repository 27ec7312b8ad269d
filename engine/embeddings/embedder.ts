// Embeddings: the texts of all requests for a model are computed together, as many at once as a batch holds.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { Headway } from '../batching/headway.ts'
import type { Beside } from '../batching/side-work.ts'
import type { Rests } from '../batching/yielding.ts'
import type { Context } from '../llama/context.ts'
import type { Model } from '../llama/model.ts'
import type { ServedModel } from '../models/models.ts'

export type EmbeddingShape = { sequences: number; tokens_per_sequence: number; batch_tokens: number }

const sequencesMax = 32
const besideTokens = 128
const batchTokensMin = 1024
const batchTokensMax = 8192
// A model that reads in one direction has a cache, whose memory is reserved for every sequence.
const cachedTokensMax = 4096

/** A text must fit a batch whole: every token may look at every other. */
export function embeddingShape({
  context_length,
  reads_both_ways,
}: Pick<Model, 'context_length' | 'reads_both_ways'>): EmbeddingShape {
  const batch_tokens = Math.min(
    reads_both_ways ? batchTokensMax : cachedTokensMax,
    Math.max(batchTokensMin, context_length),
  )
  return reads_both_ways
    ? { sequences: sequencesMax, tokens_per_sequence: Math.ceil(batch_tokens / sequencesMax), batch_tokens }
    : { sequences: 1, tokens_per_sequence: batch_tokens, batch_tokens }
}

/** Tokens of the longest text. */
export function embeddedTokensMax(model: Pick<Model, 'context_length' | 'reads_both_ways'>): number {
  return Math.min(model.context_length, embeddingShape(model).batch_tokens)
}

export type Embedder = {
  /**
   * The vectors of `texts` (tokens each, none longer than `embeddedTokensMax`), of length 1. Fails when `signal`
   * aborts.
   */
  embed(served: ServedModel, texts: readonly number[][], signal: AbortSignal): Promise<Float32Array[]>
  /** Frees what there is for the model. */
  release(served: ServedModel): Promise<void>
}

type Job = {
  tokens: readonly number[]
  signal: AbortSignal
  done(vector: Float32Array): void
  failed(error: unknown): void
}
type Line = { context: Promise<Context>; jobs: Job[]; working: boolean; released: boolean }

export function createEmbedder(
  makeContext: (served: ServedModel, shape: EmbeddingShape) => Promise<Context>,
  rests: Rests,
  headway: Pick<Headway, 'begin' | 'note'>,
  beside: Beside,
): Embedder {
  const lines = new Map<ServedModel, Line>()
  const left = () => new ApiError('engine_unavailable', 'The caller has left.')

  const takeBatch = (line: Line, { sequences, batch_tokens }: EmbeddingShape): Job[] => {
    const batch: Job[] = []
    // Answers under way wait for the whole batch; one text has to be computed whole.
    let room = beside.isBusy() ? besideTokens : batch_tokens
    line.jobs = line.jobs.filter((job) => {
      if (job.signal.aborted) {
        job.failed(left())
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
    return batch
  }

  const compute = (context: Context, batch: readonly Job[]) => {
    for (const [sequence, { tokens }] of batch.entries()) {
      context.truncate(sequence, 0)
      for (const [position, token] of tokens.entries()) context.add(token, position, sequence, true)
    }
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these embeddings.')
    for (const [sequence, job] of batch.entries()) job.done(normalized(context.embedding(sequence)))
  }

  const work = async (served: ServedModel, line: Line) => {
    line.working = true
    const idle = headway.begin()
    try {
      const context = await line.context
      while (line.jobs.length > 0 && !line.released) {
        const began_ms = performance.now()
        const batch = takeBatch(line, embeddingShape(served.model))
        try {
          if (batch.length > 0) compute(context, batch)
          rests.computed(performance.now() - began_ms)
        } catch (error) {
          for (const job of batch) job.failed(error)
        }
        const worked_ms = performance.now() - began_ms
        headway.note()
        await (rests.due() ?? nextTurn())
        await beside.rest(worked_ms)
      }
    } catch (error) {
      // The context could not be made; the next request tries again.
      if (lines.get(served) === line) lines.delete(served)
      for (const job of line.jobs.splice(0)) job.failed(error)
    }
    idle()
    line.working = false
  }

  return {
    async embed(served, texts, signal) {
      if (signal.aborted) throw left()
      const line = lines.get(served) ?? {
        context: makeContext(served, embeddingShape(served.model)),
        jobs: [],
        working: false,
        released: false,
      }
      lines.set(served, line)
      const vectors = texts.map(
        (tokens) => new Promise<Float32Array>((done, failed) => line.jobs.push({ tokens, signal, done, failed })),
      )
      if (!line.working) void work(served, line)
      return Promise.all(vectors)
    },
    async release(served) {
      const line = lines.get(served)
      if (!line) return
      lines.delete(served)
      line.released = true
      for (const job of line.jobs.splice(0)) job.failed(new ApiError('engine_unavailable', 'The model was unloaded.'))
      await line.context.then(
        (context) => context.free(),
        () => {},
      )
    },
  }
}

/** The vector of the same direction with length 1. */
export function normalized(vector: Float32Array): Float32Array {
  let sum = 0
  for (const value of vector) sum += value * value
  const length = Math.sqrt(sum) || 1
  return vector.map((value) => value / length)
}
