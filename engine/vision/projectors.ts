// Projector files of vision models, loaded beside their language model.
import { createHash } from 'node:crypto'
import { createReadStream, existsSync } from 'node:fs'
import { isAbsolute } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { microBatchTokensMax } from '../llama/context.ts'
import type { Library } from '../llama/library.ts'
import type { Model } from '../llama/model.ts'
import { mtmdFile, type PicturePart } from '../llama/mtmd.ts'
import type { Encoder } from './encoder.ts'

/** `sha256`: of its file, in hex. */
export type LoadedProjector = {
  id: number
  path: string
  sha256: string
  vector_length: number
  is_non_causal: boolean
}

export type Projectors = {
  /** Whether the library for pictures is installed, without which nothing can be loaded. */
  isInstalled(): boolean
  /**
   * Throws an Error for the user: not a projector, one of another model, or another file than `sha256` (hex) says: one
   * of another training fits the model too.
   */
  load(model: Model, path: string, sha256?: string): Promise<LoadedProjector>
  unload(projector: LoadedProjector): Promise<void>
}

export function createProjectors(library: Library, encoder: Encoder, threads: number): Projectors {
  let count = 0
  return {
    isInstalled: () => existsSync(mtmdFile(library.dir)),
    async load(model, path, expected) {
      if (!isAbsolute(path)) throw new Error(`the path of a projector is absolute, not '${path}'`)
      const sha256 = await hashOf(path)
      if (expected !== undefined && sha256 !== expected)
        throw new Error(
          `it is not the file that belongs to the model (SHA-256 ${sha256.slice(0, 16)}… instead of ` +
            `${expected.slice(0, 16)}…)`,
        )
      const id = ++count
      const { vector_length } = model
      const options = {
        path,
        model: model.handle as bigint,
        vector_length,
        threads,
        use_gpu: library.llama_supports_gpu_offload(),
      }
      const { is_non_causal, probe } = await encoder.call({ kind: 'load', projector: id, options })
      const projector = { id, path, sha256, vector_length, is_non_causal }
      const problem = problemOf(model, probe, is_non_causal)
      if (!problem) return projector
      await encoder.call({ kind: 'unload', projector: id })
      throw new Error(problem)
    },
    async unload({ id }) {
      await encoder.call({ kind: 'unload', projector: id })
    },
  }
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash)
  return hash.digest('hex')
}

/** Why the parts of a small picture show that this projector is not the model's; null if they do not. */
function problemOf({ vocab }: Model, parts: readonly PicturePart[], is_non_causal: boolean): string | null {
  const special = new Set(vocab.special_tokens.map(({ token }) => token))
  // The tokens around a picture are special ones of the model's family, or line breaks.
  const isMarker = (token: number) =>
    special.has(token) || (token >= 0 && vocab.bytes(token).toString('utf8').trim() === '')
  for (const part of parts) {
    if (part.kind === 'text' && !part.tokens.every(isMarker))
      return 'the model has no tokens for the marks that it sets around a picture: it belongs to another model'
    if (part.kind === 'vectors' && part.n_positions > part.n_tokens)
      return 'it gives a picture more positions than tokens'
    // Vectors that attend to each other must be in one micro-batch.
    if (part.kind === 'vectors' && is_non_causal && part.n_tokens > microBatchTokensMax)
      return `it makes ${part.n_tokens} vectors at once; this engine takes ${microBatchTokensMax}`
  }
  return null
}
