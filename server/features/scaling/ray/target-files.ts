// The files of a model that replicas in the cluster fetch, each with the hash that it must have.

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import type { VllmFile } from '../../../platform/ray/vllm-application.ts'
import { createFileHashes, hashTree } from '../../../platform/storage/durable-files.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import { servesPictures } from '../../hub/index.ts'
import { modelFiles, type TunedModels } from '../../models/index.ts'
import type { Target } from '../../serving/index.ts'

/** A file that our engine loads. */
export interface TargetFile {
  id: string
  path: string
  sha256: string
}

/** What vLLM loads: folders in the form of Hugging Face, of base and adapter. */
interface VllmFiles {
  /** Base and adapter, each with a hash of all that is in its folder. */
  weights: { id: string; sha256: string }[]
  files: (VllmFile & { source: string })[]
  lora_rank: number | undefined
}

interface EngineFiles {
  base: TargetFile
  /** With which the base reads pictures; undefined if it reads none, or if the engine has no library for them. */
  projector: TargetFile | undefined
  adapter: TargetFile | undefined
  /** That of the adapter, if it has its own. */
  own_projector: TargetFile | undefined
}

export interface TargetFiles {
  /** Throws an ApiError if they are not with this service. */
  forEngine(target: Target): Promise<EngineFiles>
  /** Throws an ApiError if a folder is not with this service. */
  forVllm(target: Target): Promise<VllmFiles>
  /** The path of a file that a replica of the target may fetch. */
  find(target: Target, sha256: string): Promise<string | undefined>
}

const AdapterConfig = z.looseObject({ r: z.int().min(1), rank_pattern: z.record(z.string(), z.int()).nullish() })

interface Needs {
  models: Pick<TunedModels, 'expected'>
  artifacts: Pick<Artifacts, 'ensureLocal'>
  models_dir: string
}

export function createTargetFiles({ models, artifacts, models_dir }: Needs): TargetFiles {
  const hashed = createFileHashes()

  const fileOf = async ({ id, gguf }: { id: string; gguf: string }): Promise<TargetFile> => ({
    id,
    path: gguf,
    sha256: (await models.expected(id))?.sha256 ?? (await hashed(await artifacts.ensureLocal(gguf))).sha256,
  })

  function requireGguf({ id, gguf }: Target['base']): { id: string; gguf: string } {
    if (gguf === undefined)
      throw new ApiError('model_not_callable', `The weights of '${id}' are not with this service.`)
    return { id, gguf }
  }

  async function folderOf(name: 'base' | 'adapter', { id, gguf }: { id: string; gguf: string }) {
    await artifacts.ensureLocal(gguf)
    const folder = path.join(path.dirname(gguf), modelFiles[name === 'base' ? 'model' : 'adapter'].folder)
    const { sha256, files } = existsSync(folder) ? await hashTree(folder, hashed) : { sha256: '', files: [] }
    if (files.length === 0)
      throw new ApiError(
        'invalid_request',
        `vLLM needs the checkpoint of '${id}', and this service has only what its own engine serves. Install the ` +
          "model with its checkpoint (./tunery models add), or take the instance type 'ray'.",
        { param: 'instance_type' },
      )
    const expected = (await models.expected(id))?.folder_sha256
    if (expected && expected !== sha256)
      throw new ApiError(
        'engine_failed',
        `The files of '${id}' for vLLM are not those that the model was made with: one was changed after that. ` +
          'Restore them from a backup.',
      )
    const served = files.map((file) => {
      const source = path.join(folder, file.path)
      return {
        ...file,
        path: path.posix.join(name, file.path),
        cache: source.startsWith(models_dir + path.sep),
        source,
      }
    })
    return { weights: { id, sha256 }, files: served, folder }
  }

  async function rankOf(folder: string): Promise<number> {
    const { r, rank_pattern } = AdapterConfig.parse(
      JSON.parse(await readFile(path.join(folder, 'adapter_config.json'), 'utf8')),
    )
    return Math.max(r, ...Object.values(rank_pattern ?? {}))
  }

  async function forEngine({ base, adapter }: Target): Promise<EngineFiles> {
    const { id, projector } = base
    const adapterProjector = adapter?.projector
    const sees = servesPictures()
    return {
      base: await fileOf(requireGguf(base)),
      projector: projector && sees ? { id, ...projector } : undefined,
      adapter: adapter && (await fileOf(adapter)),
      own_projector: adapterProjector && sees ? { id: adapter.id, ...adapterProjector } : undefined,
    }
  }

  async function forVllm({ base, adapter }: Target): Promise<VllmFiles> {
    if (adapter && base.projector)
      throw new ApiError(
        'invalid_request',
        `'${adapter.id}' was trained on a base that reads pictures. What vLLM answers for such a model cannot be ` +
          "compared with its training, so it is not served there. Take the instance type 'ray', which runs this " +
          "service's engine.",
        { param: 'instance_type' },
      )
    const bases = await folderOf('base', requireGguf(base))
    if (!adapter) return { weights: [bases.weights], files: bases.files, lora_rank: undefined }
    const adapters = await folderOf('adapter', adapter)
    return {
      weights: [bases.weights, adapters.weights],
      files: [...bases.files, ...adapters.files],
      lora_rank: await rankOf(adapters.folder),
    }
  }

  return {
    forEngine,
    forVllm,
    async find(target, sha256) {
      const ofEngine = Object.values(await forEngine(target)).find((file) => file?.sha256 === sha256)
      if (ofEngine) return ofEngine.path
      const ofVllm = await forVllm(target).catch(() => undefined)
      return ofVllm?.files.find((file) => file.sha256 === sha256)?.source
    },
  }
}
