// Features of pictures: the vectors that a projector makes of them. A picture is encoded once for all requests that
// show it, and stays cached under the SHA-256 of its bytes.
import { createHash } from 'node:crypto'
import { ApiError } from '../../contract/errors.ts'
import { abortable } from '../../lib/abortable.ts'
import { createFairQueue } from '../../lib/fair-queue.ts'
import type { PictureDecoder } from '../../pictures/decoder.ts'
import { PictureError } from '../../pictures/formats.ts'
import type { PicturePart } from '../llama/mtmd.ts'
import type { Encoder } from './encoder.ts'
import { type PictureSpan, pictureTokens } from './picture-tokens.ts'
import type { LoadedProjector, UseProjector } from './projectors.ts'

/** A picture as a prompt shows it: its tokens, text and vectors, and where the vectors are among them. */
export interface PictureFeatures {
  tokens: number[]
  spans: PictureSpan[]
}

export interface Features {
  /** Tokens of a picture in a prompt. Throws PictureError. */
  tokensOf(projector: LoadedProjector, file: Buffer, signal: AbortSignal): Promise<number>
  /**
   * Throws PictureError; ApiError engine_failed, overloaded if too many pictures of the account wait. Rejects
   * when `signal` aborts; the encoding then stops after its current tile, unless another request waits for it.
   */
  of(
    projector: LoadedProjector,
    file: Buffer,
    caller: { account: string; signal: AbortSignal },
  ): Promise<PictureFeatures>
  /** Drops what is cached for a projector. */
  forget(projector: LoadedProjector): void
  bytes(): number
}

interface Hooks {
  /** A request's picture was encoded, which took `seconds`, or came from the cache. */
  onPicture(source: 'encoded' | 'cached', seconds: number): void
}
interface Job {
  features: Promise<PictureFeatures>
  waiting: number
  controller: AbortController
}

const waitingMax = 64
/** Pictures whose numbers are remembered, so that the prefix cache knows them after their features were dropped. */
const knownMax = 100_000

export function createFeatures(
  encoder: Encoder,
  decoder: Pick<PictureDecoder, 'measure' | 'decode'>,
  using: UseProjector,
  bytes_max: number,
  { onPicture }: Hooks,
): Features {
  // In order of use.
  const cache = new Map<string, PictureFeatures>()
  const jobs = new Map<string, Job>()
  const firstIds = new Map<string, number>()
  let nextId = 1
  let pictures = 0
  let bytes = 0
  const bytesOf = ({ spans }: PictureFeatures) => spans.reduce((sum, { vectors }) => sum + vectors.byteLength, 0)
  // One at a time: a decoded picture takes up to 150 MB, and encodings compete for the same cores.
  const inTurn = createFairQueue({
    waiting_max: waitingMax,
    tooMany: () =>
      new ApiError('overloaded', `${waitingMax} pictures of yours are waiting to be read. Try again in a moment.`),
  })

  const firstIdOf = (key: string, count: number): number => {
    const firstId = firstIds.get(key)
    if (firstId !== undefined) return firstId
    if (firstIds.size >= knownMax) firstIds.delete(firstIds.keys().next().value!)
    const first = nextId
    nextId += count
    firstIds.set(key, first)
    return first
  }

  const encode = async (key: string, projector: LoadedProjector, file: Buffer, signal: AbortSignal) => {
    signal.throwIfAborted()
    const pixels = await decoder.decode(file, signal)
    signal.throwIfAborted()
    const began = performance.now()
    const picture = ++pictures
    try {
      const buffer = pixels.rgb.buffer as ArrayBuffer
      const isWhole = pixels.rgb.byteLength === buffer.byteLength
      const parts = await encoder.call(
        { kind: 'prepare', projector: projector.id, picture, pixels },
        isWhole ? [buffer] : [],
      )
      const vectors: (Float32Array | null)[] = []
      for (const [index, part] of parts.entries()) {
        signal.throwIfAborted()
        vectors.push(part.kind === 'text' ? null : await encoder.call({ kind: 'encode', picture, part: index }))
      }
      const count = parts.reduce((sum, part) => sum + (part.kind === 'text' ? 0 : part.n_tokens), 0)
      const features = featuresOf(projector, parts, vectors, firstIdOf(key, count))
      onPicture('encoded', (performance.now() - began) / 1000)
      return features
    } finally {
      void encoder.call({ kind: 'forget', picture })
    }
  }

  const store = (key: string, features: PictureFeatures) => {
    const size = bytesOf(features)
    if (size > bytes_max) return
    cache.set(key, features)
    bytes += size
    for (const [oldest, entry] of cache) {
      if (bytes <= bytes_max) break
      cache.delete(oldest)
      bytes -= bytesOf(entry)
    }
  }

  const startJob = (key: string, projector: LoadedProjector, file: Buffer, account: string): Job => {
    const controller = new AbortController()
    const { signal } = controller
    const features = inTurn(
      account,
      () => using(projector, () => encode(key, projector, file, signal)).catch((error) => throwFailure(error, signal)),
      signal,
    )
    const job = { features, waiting: 0, controller }
    jobs.set(key, job)
    features
      .then((features) => store(key, features))
      .catch(() => {})
      .finally(() => {
        if (jobs.get(key) === job) jobs.delete(key)
      })
    return job
  }

  const keyOf = (projector: LoadedProjector, file: Buffer) =>
    `${projector.id} ${createHash('sha256').update(file).digest('hex')}`

  return {
    async tokensOf(projector, file, signal) {
      const cached = cache.get(keyOf(projector, file))
      if (cached) return cached.tokens.length
      const size = await decoder.measure(file, signal)
      const parts = await using(projector, () =>
        encoder.call({ kind: 'measure', projector: projector.id, size }),
      ).catch((error) => throwFailure(error, signal))
      return parts.reduce((sum, part) => sum + (part.kind === 'text' ? part.tokens.length : part.n_tokens), 0)
    },
    async of(projector, file, { account, signal }) {
      const key = keyOf(projector, file)
      const cached = cache.get(key)
      if (cached) {
        cache.delete(key)
        cache.set(key, cached)
        onPicture('cached', 0)
        return cached
      }
      const job = jobs.get(key) ?? startJob(key, projector, file, account)
      job.waiting++
      try {
        return await abortable(job.features, signal)
      } finally {
        if (--job.waiting === 0) {
          job.controller.abort()
          if (jobs.get(key) === job) jobs.delete(key)
        }
      }
    },
    forget(projector) {
      for (const [key, features] of cache) {
        if (!key.startsWith(`${projector.id} `)) continue
        cache.delete(key)
        bytes -= bytesOf(features)
      }
    },
    bytes: () => bytes,
  }
}

function throwFailure(error: unknown, signal: AbortSignal): never {
  if (signal.aborted || error instanceof ApiError || error instanceof PictureError) throw error
  throw new ApiError('engine_failed', `The engine could not read a picture: ${(error as Error).message}`)
}

function featuresOf(
  { vector_length, is_non_causal }: LoadedProjector,
  parts: readonly PicturePart[],
  vectors: readonly (Float32Array | null)[],
  first_id: number,
): PictureFeatures {
  const features: PictureFeatures = { tokens: [], spans: [] }
  let id = first_id
  for (const [index, part] of parts.entries()) {
    if (part.kind === 'text') {
      features.tokens.push(...part.tokens)
      continue
    }
    const { n_tokens, n_positions, positions } = part
    features.spans.push({
      start: features.tokens.length,
      n_tokens,
      vectors: vectors[index]!,
      vector_length,
      positions,
      is_non_causal,
    })
    features.tokens.push(...pictureTokens(id, n_tokens, n_positions))
    id += n_tokens
  }
  return features
}
