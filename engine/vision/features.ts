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

export class Features {
  private readonly encoder: Encoder
  private readonly decoder: Pick<PictureDecoder, 'measure' | 'decode'>
  private readonly using: UseProjector
  private readonly bytes_max: number
  private readonly hooks: Hooks
  // In order of use.
  private readonly cache = new Map<string, PictureFeatures>()
  private readonly jobs = new Map<string, Job>()
  private readonly firstIds = new Map<string, number>()
  private nextId = 1
  private pictures = 0
  /** The size of all cached vectors. */
  bytes = 0
  // One at a time: a decoded picture takes up to 150 MB, and encodings compete for the same cores.
  private readonly inTurn = createFairQueue({
    waiting_max: waitingMax,
    tooMany: () =>
      new ApiError('overloaded', `${waitingMax} pictures of yours are waiting to be read. Try again in a moment.`),
  })

  constructor(
    encoder: Encoder,
    decoder: Pick<PictureDecoder, 'measure' | 'decode'>,
    using: UseProjector,
    bytes_max: number,
    hooks: Hooks,
  ) {
    this.encoder = encoder
    this.decoder = decoder
    this.using = using
    this.bytes_max = bytes_max
    this.hooks = hooks
  }

  /** Tokens of a picture in a prompt. Throws PictureError. */
  async tokensOf(projector: LoadedProjector, file: Buffer, signal: AbortSignal): Promise<number> {
    const cached = this.cache.get(this.keyOf(projector, file))
    if (cached) return cached.tokens.length
    const size = await this.decoder.measure(file, signal)
    const parts = await this.using(projector, () =>
      this.encoder.call({ kind: 'measure', projector: projector.id, size }),
    ).catch((error) => throwFailure(error, signal))
    return parts.reduce((sum, part) => sum + (part.kind === 'text' ? part.tokens.length : part.n_tokens), 0)
  }

  /**
   * Throws PictureError; ApiError engine_failed, overloaded if too many pictures of the account wait. Rejects
   * when `signal` aborts; the encoding then stops after its current tile, unless another request waits for it.
   */
  async of(
    projector: LoadedProjector,
    file: Buffer,
    { account, signal }: { account: string; signal: AbortSignal },
  ): Promise<PictureFeatures> {
    const key = this.keyOf(projector, file)
    const cached = this.cache.get(key)
    if (cached) {
      this.cache.delete(key)
      this.cache.set(key, cached)
      this.hooks.onPicture('cached', 0)
      return cached
    }
    const job = this.jobs.get(key) ?? this.startJob(key, projector, file, account)
    job.waiting++
    try {
      return await abortable(job.features, signal)
    } finally {
      if (--job.waiting === 0) {
        job.controller.abort()
        if (this.jobs.get(key) === job) this.jobs.delete(key)
      }
    }
  }

  /** Drops what is cached for a projector. */
  forget(projector: LoadedProjector): void {
    for (const [key, features] of this.cache) {
      if (!key.startsWith(`${projector.id} `)) continue
      this.cache.delete(key)
      this.bytes -= this.bytesOf(features)
    }
  }

  private bytesOf({ spans }: PictureFeatures) {
    return spans.reduce((sum, { vectors }) => sum + vectors.byteLength, 0)
  }

  private firstIdOf(key: string, count: number): number {
    const firstId = this.firstIds.get(key)
    if (firstId !== undefined) return firstId
    if (this.firstIds.size >= knownMax) this.firstIds.delete(this.firstIds.keys().next().value!)
    const first = this.nextId
    this.nextId += count
    this.firstIds.set(key, first)
    return first
  }

  private async encode(key: string, projector: LoadedProjector, file: Buffer, signal: AbortSignal) {
    signal.throwIfAborted()
    const pixels = await this.decoder.decode(file, signal)
    signal.throwIfAborted()
    const began = performance.now()
    const picture = ++this.pictures
    try {
      const buffer = pixels.rgb.buffer as ArrayBuffer
      const isWhole = pixels.rgb.byteLength === buffer.byteLength
      const parts = await this.encoder.call(
        { kind: 'prepare', projector: projector.id, picture, pixels },
        isWhole ? [buffer] : [],
      )
      const vectors: (Float32Array | null)[] = []
      for (const [index, part] of parts.entries()) {
        signal.throwIfAborted()
        vectors.push(part.kind === 'text' ? null : await this.encoder.call({ kind: 'encode', picture, part: index }))
      }
      const count = parts.reduce((sum, part) => sum + (part.kind === 'text' ? 0 : part.n_tokens), 0)
      const features = featuresOf(projector, parts, vectors, this.firstIdOf(key, count))
      this.hooks.onPicture('encoded', (performance.now() - began) / 1000)
      return features
    } finally {
      void this.encoder.call({ kind: 'forget', picture })
    }
  }

  private store(key: string, features: PictureFeatures) {
    const size = this.bytesOf(features)
    if (size > this.bytes_max) return
    this.cache.set(key, features)
    this.bytes += size
    for (const [oldest, entry] of this.cache) {
      if (this.bytes <= this.bytes_max) break
      this.cache.delete(oldest)
      this.bytes -= this.bytesOf(entry)
    }
  }

  private startJob(key: string, projector: LoadedProjector, file: Buffer, account: string): Job {
    const controller = new AbortController()
    const { signal } = controller
    const features = this.inTurn(
      account,
      () =>
        this.using(projector, () => this.encode(key, projector, file, signal)).catch((error) =>
          throwFailure(error, signal),
        ),
      signal,
    )
    const job = { features, waiting: 0, controller }
    this.jobs.set(key, job)
    features
      .then((features) => this.store(key, features))
      .catch(() => {})
      .finally(() => {
        if (this.jobs.get(key) === job) this.jobs.delete(key)
      })
    return job
  }

  private keyOf(projector: LoadedProjector, file: Buffer) {
    return `${projector.id} ${createHash('sha256').update(file).digest('hex')}`
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
