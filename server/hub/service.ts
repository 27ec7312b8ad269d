import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import type { Download, Model } from '../../contract/hub.ts'
import type { Config } from '../config.ts'
import catalogue from './catalogue.json' with { type: 'json' }
import { methodsFor, shapesOf, trainingMemoryBytes } from './methods.ts'

/** A base model whose weights are here. */
export interface LocalBase {
  id: string
  /** Whether it writes text or makes embeddings; only what writes can be trained. */
  kind: 'text' | 'embedding'
  parameters: number
  context_length: number
  /** The file that the engine serves. */
  gguf: string
  /** The checkpoint folder that the trainer loads. */
  hf: string
}

/** Longest row that is trained on, in tokens; longer ones are cut. */
const max_length = 2048
export const maxRowTokens = (base: { context_length: number }) => Math.min(max_length, base.context_length)

/**
 * The length at which rows are cut: what was asked for, or the default. Throws invalid_request for more than the base's
 * context.
 */
export function requireRowTokens(
  base: { id: string; context_length: number },
  asked: number | undefined,
  field: string,
): number {
  if (asked !== undefined && asked > base.context_length)
    throw new ApiError(
      'invalid_request',
      `'${field}' must be at most ${base.context_length}, the context of ${base.id}, and is ${asked}.`,
      {
        details: { field, max: base.context_length },
      },
    )
  return asked ?? maxRowTokens(base)
}

export interface Hub {
  list(): Model[]
  featured(): Model[]
  get(id: string): Model
  /** The files of a base on this machine. Throws model_not_found or model_not_available. */
  local(id: string): LocalBase
  localOrUndefined(id: string): LocalBase | undefined
  /**
   * The files of a base that can be trained. Throws as `local` does, and invalid_request for a model that makes
   * embeddings.
   */
  trainable(id: string): LocalBase
  /**
   * What is known of a base of the catalogue before its weights are here; undefined for one that cannot be downloaded.
   */
  downloadable(id: string): Downloadable | undefined
  /** The names of the linear layers of a base that an adapter can take. */
  linearModules(base: LocalBase): string[]
  has(id: string): boolean
}

export interface Downloadable {
  kind: 'text' | 'embedding'
  parameters: number
  context_length: number
  size_mb: number
}

interface HubOptions {
  memory_bytes?: number
  /** Who may have base models downloaded. */
  policy?: Config['model_downloads']
  /** The last download of each model. */
  downloads?: ReadonlyMap<string, Download>
}

const ModelFile = z.object({
  id: z.string(),
  kind: z.enum(['text', 'embedding']).default('text'),
  parameters: z.number(),
  context_length: z.number(),
  gguf: z.string(),
  hf: z.string(),
})

/**
 * The catalogue and what of it lies in the models folder; a folder with a model.json that the catalogue does not know
 * counts too.
 */
export function createHub(
  modelsDir: string,
  pricing: (id: string) => Model['pricing'],
  { memory_bytes = trainingMemoryBytes(), policy = 'off', downloads = new Map() }: HubOptions = {},
): Hub {
  const entries = new Map(catalogue.models.map((entry) => [entry.id, entry]))

  function local(id: string): LocalBase | undefined {
    // The id becomes a path: only what a hub id can look like may reach the file system.
    if (!/^[\w.-]+(\/[\w.-]+)?$/.test(id) || id.split('/').some((part) => /^\.+$/.test(part))) return undefined
    const folder = path.join(modelsDir, id)
    try {
      const file = ModelFile.parse(JSON.parse(readFileSync(path.join(folder, 'model.json'), 'utf8')))
      const base = { ...file, id, gguf: path.join(folder, file.gguf), hf: path.join(folder, file.hf) }
      return existsSync(base.gguf) && existsSync(base.hf) ? base : undefined
    } catch {
      // A folder without a readable model.json is no model, and must not take the others down with it.
      return undefined
    }
  }

  function localIds(): string[] {
    if (!existsSync(modelsDir)) return []
    const folders = (dir: string) =>
      readdirSync(dir, { withFileTypes: true })
        .filter((entry) => entry.isDirectory())
        .map((entry) => entry.name)
    return folders(modelsDir).flatMap((owner) => folders(path.join(modelsDir, owner)).map((name) => `${owner}/${name}`))
  }

  function describe(id: string): Model | undefined {
    const entry = entries.get(id)
    const base = local(id)
    if (!entry && !base) return undefined
    const category = (entry?.category ?? (base?.kind === 'embedding' ? 'embedding' : 'language')) as Model['category']
    const parameters = base?.parameters ?? entry!.parameters
    const trainable = base ? base.kind === 'text' : category === 'language' || category === 'code'
    return {
      id,
      name: entry?.name ?? id,
      description: entry?.description ?? 'Added on this machine.',
      category,
      params_billions: Number(((entry?.parameters ?? parameters) / 1e9).toPrecision(4)),
      context_length: base?.context_length ?? entry!.context_length,
      license: entry?.license ?? 'unknown',
      huggingface_id: entry ? id : null,
      methods: trainable ? methodsFor(parameters, memory_bytes) : [],
      pricing: pricing(id),
      weights: {
        available: base !== undefined,
        size_mb: base ? Math.round(statSync(base.gguf).size / 1e6) : (entry?.size_mb ?? null),
        how_to_get: base ? null : howToGet(id),
      },
      download: downloadOf(id, base !== undefined),
    }
  }

  function downloadable(id: string): Downloadable | undefined {
    const entry = entries.get(id)
    if (!entry || entry.category === 'multimodal') return undefined
    const { parameters, context_length, size_mb } = entry
    return { kind: entry.category === 'embedding' ? 'embedding' : 'text', parameters, context_length, size_mb }
  }

  function howToGet(id: string): string {
    const found = downloadable(id)
    if (!found) return 'Models that read images cannot be served or trained by this version yet.'
    const command = `Run ./tunery models add ${id} on the machine of the service`
    const size = `it downloads about ${found.size_mb} MB from Hugging Face`
    if (policy === 'off') return `${command}; ${size}.`
    return `${command}, or POST /v1/hub/models/${id}/download${policy === 'operator' ? ' with a key that has the scope operator' : ''}; ${size}.`
  }

  /** A completed download says nothing of weights that were removed since. */
  function downloadOf(id: string, available: boolean): Download | null {
    const download = downloads.get(id)
    return download && (available || download.status !== 'completed') ? download : null
  }

  function missing(id: string): ApiError {
    const { weights, download } = hub.get(id)
    const { how_to_get } = weights
    const details = { how_to_get, download }
    const refuse = (why: string) =>
      new ApiError('model_not_available', `The weights of '${id}' are not on this machine. ${why}`, {
        details,
        param: 'model',
      })
    if (!download || download.status === 'cancelled') return refuse(how_to_get!)
    if (download.status === 'failed') return refuse(`Their download failed: ${download.error?.message} ${how_to_get}`)
    const share =
      download.status === 'converting'
        ? 'they are being converted'
        : `${Math.floor(100 * download.progress)}% of them are here`
    return refuse(
      `They are being downloaded (${share}). Try again when GET /v1/hub/models/${id} tells that they are available.`,
    )
  }

  const hub: Hub = {
    list: () => [...new Set([...entries.keys(), ...localIds()])].map(describe).filter((model) => model !== undefined),
    featured: () => catalogue.featured.map((id) => hub.get(id)),
    has: (id) => entries.has(id) || local(id) !== undefined,
    localOrUndefined: local,
    downloadable,
    get(id) {
      const model = describe(id)
      if (!model)
        throw new ApiError('model_not_found', `The hub has no model '${id}'. GET /v1/hub/ lists those it has.`, {
          param: 'model',
        })
      return model
    },
    local(id) {
      const base = local(id)
      if (base) return base
      throw missing(id)
    },
    trainable(id) {
      const base = hub.local(id)
      if (base.kind === 'text') return base
      throw new ApiError(
        'invalid_request',
        `'${id}' makes embeddings; only models that write text can be trained here.`,
        { param: 'model_id' },
      )
    },
    linearModules: (base) => linearModules(base.hf),
  }
  return hub
}

/** The last names of all two-dimensional weights inside the layers. */
function linearModules(folder: string): string[] {
  const names = new Set<string>()
  for (const [key, shape] of shapesOf(folder)) {
    const name = /\.layers\.\d+\..*?(\w+)\.weight$/.exec(key)?.[1]
    if (name && shape.length === 2) names.add(name)
  }
  return [...names].sort()
}
