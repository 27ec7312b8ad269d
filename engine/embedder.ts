// Embeddings: the texts of all requests for a model are computed together, as many at once as a batch holds.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ApiError } from '../contract/errors.ts'
import type { Context } from './llama/context.ts'
import type { ServedModel } from './served-model.ts'

export const sequencesMax = 32
/** A text must fit a batch whole, since every token may look at every other. */
export const batchTokens = (contextLength: number) => Math.min(8192, Math.max(1024, contextLength))

export type Embedder = {
  /** The vectors of `texts` (tokens each, none longer than the model's context), of length 1. Fails when `signal` aborts. */
  embed(served: ServedModel, texts: readonly number[][], signal: AbortSignal): Promise<Float32Array[]>
  release(served: ServedModel): void
}

type Job = { tokens: readonly number[]; signal: AbortSignal; done(vector: Float32Array): void; failed(error: unknown): void }
type Line = { context: Context; jobs: Job[]; working: boolean }

export function createEmbedder(makeContext: (served: ServedModel, sequences: number, batchTokens: number) => Context): Embedder {
  const lines = new Map<ServedModel, Line>()

  const takeBatch = (line: Line, room: number): Job[] => {
    const batch: Job[] = []
    line.jobs = line.jobs.filter((job) => {
      if (job.signal.aborted) {
        job.failed(new ApiError('engine_unavailable', 'The caller has left.'))
        return false
      }
      if (batch.length === sequencesMax || job.tokens.length > room) return true
      room -= job.tokens.length
      batch.push(job)
      return false
    })
    return batch
  }

  const compute = ({ context }: Line, batch: readonly Job[]) => {
    batch.forEach(({ tokens }, sequence) => {
      context.truncate(sequence, 0)
      for (const [position, token] of tokens.entries()) context.add(token, position, sequence, true)
    })
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these embeddings.')
    for (const [sequence, job] of batch.entries()) job.done(normalized(context.embedding(sequence)))
  }

  const work = async (served: ServedModel, line: Line) => {
    line.working = true
    while (line.jobs.length > 0 && lines.get(served) === line) {
      const batch = takeBatch(line, batchTokens(served.model.context_length))
      try {
        if (batch.length > 0) compute(line, batch)
      } catch (error) {
        for (const job of batch) job.failed(error)
      }
      await nextTurn()
    }
    line.working = false
  }

  return {
    embed(served, texts, signal) {
      const found = lines.get(served)
      const line = found ?? { context: makeContext(served, sequencesMax, batchTokens(served.model.context_length)), jobs: [], working: false }
      lines.set(served, line)
      const vectors = texts.map((tokens) => new Promise<Float32Array>((done, failed) => line.jobs.push({ tokens, signal, done, failed })))
      if (!line.working) void work(served, line)
      return Promise.all(vectors)
    },
    release(served) {
      const line = lines.get(served)
      if (!line) return
      lines.delete(served)
      for (const job of line.jobs) job.failed(new ApiError('engine_unavailable', 'The model was unloaded.'))
      line.context.free()
    },
  }
}

function normalized(vector: Float32Array): Float32Array {
  let sum = 0
  for (const value of vector) sum += value * value
  const length = Math.sqrt(sum) || 1
  return vector.map((value) => value / length)
}
