// The hub: base models of the catalogue, and those in the models folder.
import { existsSync, readdirSync, readFileSync, statfsSync, statSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { Download, HubMachine, Model } from '../../../contract/hub.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { type EightBits, eightBitsProblem, readEightBits } from '../../../lib/eight-bits.ts'
import { usableMemory } from '../../../lib/usable-memory.ts'
import type { Config } from '../../config.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { shapesOf } from '../../platform/storage/safetensors.ts'
import catalogue from './catalogue.json' with { type: 'json' }
import { mayWork, readFamilies } from './families.ts'
import { type Machine, needsOf, type Shape, type Sized, shapeOf } from './memory.ts'
import { methodsFor, projectorProblem, sightOf } from './methods.ts'
import { type Candidate, machineResponse } from './recommend.ts'

/** The file with which the engine shows pictures to a language model. */
export interface Projector {
  path: string
  /** In hex, as it was when the model was added: a projector of another training has the same shape. */
  sha256: string
}

const expertsField = 'config.lora_config.experts'

/** Whether a base generates text, reads pictures too, or makes embeddings, which cannot be trained. */
type BaseKind = 'text' | 'vision' | 'embedding'

/** A base model whose weights are here. */
export interface LocalBase {
  id: string
  kind: BaseKind
  parameters: number
  context_length: number
  /** The file that the engine serves. */
  gguf: string
  /** Set for a vision model; null for others. */
  projector: Projector | null
  /** Whether it is served as it is in its file, by its own setting or that of all. */
  keep_original: boolean
  /** The form in which it is served instead of the original; null if there is none, or the original is kept. */
  eight_bits: EightBits | null
  /** Why the original answers though its eight-bit form would be faster; null where nothing hinders that form. */
  eight_bits_problem: string | null
  /** The checkpoint folder that the trainer loads; null if it is not here, so that the base can only be served. */
  hf: string | null
  /** Names of the layers that an adapter can change as it is served; null where the base was added without a look. */
  linear_modules: string[] | null
  /** Weights that a rank of an adapter of its experts takes; null where an adapter cannot change experts. */
  expert_weights: number | null
  /** Whether a trained adapter ends in its weights, as a whole model: the engine cannot serve adapters of it. */
  merges_adapters: boolean
  /** Why it can be served alone, as a part of a sentence; null where its checkpoint is here, or set-up makes it. */
  untrainable: string | null
  /** Why it reads no pictures though its checkpoint does, as a part of a sentence. */
  blind: string | null
}

/** Weights that a rank of an adapter takes for all experts of a base, and bytes of memory for training. */
export interface Mixture {
  expert_weights: number
  memory_bytes: number
}

/** A base that can be trained. */
export interface TrainableBase extends LocalBase {
  hf: string
}

/** Default length limit of training rows in tokens; longer rows are truncated. */
const max_length = 2048
export const maxRowTokens = (base: { context_length: number }) => Math.min(max_length, base.context_length)

/**
 * The length in tokens at which rows are truncated: the requested one or the default. Throws invalid_request for more
 * than the base's context.
 */
export function requireRowTokens(
  base: { id: string; context_length: number },
  requested: number | undefined,
  field: string,
): number {
  if (requested !== undefined && requested > base.context_length)
    throw new ApiError(
      'invalid_request',
      `'${field}' must be at most ${base.context_length}, the context of ${base.id}, and is ${requested}.`,
      { details: { field, max: base.context_length } },
    )
  return requested ?? maxRowTokens(base)
}

interface Downloadable {
  kind: BaseKind
  /** Whether it can be trained, given the memory. */
  trainable: boolean
  parameters: number
  context_length: number
  size_mb: number
}

interface HubOptions {
  /** Default: the memory of `machine`. */
  memory_bytes?: number
  /** What trains and serves here. */
  machine?: Machine
  /** What was tried of each family, by its name. */
  families?: ReadonlyMap<string, Record<string, string>>
  min_free_mb?: number
  /** Who may start downloads of base models. */
  policy?: Config['model_downloads']
  /** The last download of each model, by id. */
  downloads?: ReadonlyMap<string, Download>
  /** Set-up, which brings the checkpoint of the default base after its GGUF file, and the embedding model. */
  trainingSetup?: Pick<TrainingSetup, 'ready' | 'requireReady'>
  /** Names that stand for a base. */
  names?: ReadonlyMap<string, string>
  /** Whether all bases are served as they are in their files. */
  keep_original?: boolean
}

const ModelFile = z
  .object({
    id: z.string(),
    kind: z.enum(['text', 'vision', 'embedding']).default('text'),
    parameters: z.number(),
    context_length: z.number(),
    gguf: z.string(),
    projector: z.string().optional(),
    projector_sha256: z
      .string()
      .regex(/^[0-9a-f]{64}$/)
      .optional(),
    hf: z.string().nullable(),
    keep_original_weights: z.boolean().default(false),
    linear_modules: z.array(z.string()).optional(),
    expert_weights: z.int().positive().optional(),
    merges_adapters: z.boolean().default(false),
    untrainable: z.string().optional(),
    blind: z.string().optional(),
  })
  .refine(({ kind, projector, projector_sha256 }) => kind !== 'vision' || (projector && projector_sha256))

/** A base of the catalogue. */
interface Entry {
  id: string
  name: string
  category: string
  family: string
  tasks: string[]
  parameters: number
  active_parameters?: number
  context_length: number
  license: string
  license_url?: string
  gated?: boolean
  /** What its download takes; by default two bytes a weight. */
  size_mb?: number
  shape?: Shape
  description: string
}
const entries: readonly Entry[] = catalogue.models
const sizeOf = ({ size_mb, parameters }: Entry) => size_mb ?? Math.round((2 * parameters) / 1e6)

/**
 * Disk of a download: the weights, as much again for the GGUF file, and, where it has fewer than two bytes a weight,
 * the whole weights that are written of its quantized ones.
 */
function downloadBytes(entry: Entry): number {
  const bytes = sizeOf(entry) * 1e6
  const whole_bytes = 2 * entry.parameters
  return 2 * bytes + (bytes < 0.9 * whole_bytes ? whole_bytes : 0)
}

/** The largest count of weights of each class of sizes, in billions. */
const sizes = { '1b': 1, '4b': 5, '9b': 10, '30b': 40, larger: Number.POSITIVE_INFINITY } as const
const sizeClass = (parameters: number) =>
  (Object.entries(sizes) as [Model['size'], number][]).find(([, most]) => parameters <= most * 1e9)![0]

const categories = { text: 'language', vision: 'multimodal', embedding: 'embedding' } as const
/** What a base that the catalogue does not have is asked for. */
const tasks = { text: ['chat'], vision: ['chat', 'pictures'], embedding: ['embeddings'] } as const
const kinds = { language: 'text', code: 'text', multimodal: 'vision', embedding: 'embedding' } as const

/** The base that comes with the service. */
export const defaultBase = 'HuggingFaceTB/SmolLM2-135M-Instruct'

/** Bases that set-up installs with what training needs. */
const installedForTraining = ['sentence-transformers/all-MiniLM-L6-v2']

/** The models of the catalogue, and any model in the models folder that has a model.json. */
export class Hub {
  private readonly modelsDir: string
  private readonly pricing: (id: string) => Model['pricing']
  private readonly options: HubOptions & Required<Omit<HubOptions, 'trainingSetup'>>
  private readonly entries = new Map(entries.map((entry) => [entry.id, entry]))

  constructor(modelsDir: string, pricing: (id: string) => Model['pricing'], options: HubOptions = {}) {
    this.modelsDir = modelsDir
    this.pricing = pricing
    const memory_bytes = options.machine?.memory_bytes ?? options.memory_bytes ?? usableMemory()
    this.options = {
      memory_bytes,
      machine: { device: 'cpu', bf16: true, cores: 1, memory_bytes },
      families: readFamilies(),
      min_free_mb: 0,
      policy: 'off',
      downloads: new Map(),
      names: new Map(),
      keep_original: false,
      ...options,
    }
  }

  list(): Model[] {
    const recommended = this.recommendedId()
    const free_disk_bytes = this.freeDiskBytes()
    const ids = new Set([...this.entries.keys(), ...this.localIds()])
    return [...ids].map((id) => this.describe(id, recommended, free_disk_bytes)).filter((model) => model !== undefined)
  }

  /** This machine, and the bases recommended for it and for others. */
  machine(): HubMachine {
    const { machine, families } = this.options
    const candidates = entries.flatMap(({ id, category, gated, tasks, family }): Candidate[] => {
      const sized = this.sizedOf(id)
      if (!sized || gated || category !== 'language' || !tasks.includes('chat')) return []
      return [{ ...sized, id, tested: families.get(family) }]
    })
    return machineResponse(candidates, machine, this.freeDiskBytes())
  }

  featured(): Model[] {
    return catalogue.featured.map((id) => this.get(id))
  }

  has(id: string): boolean {
    return this.entries.has(id) || this.localOrUndefined(id) !== undefined
  }

  localOrUndefined(id: string): LocalBase | undefined {
    // The id becomes a path: reject anything that is not a valid hub id.
    if (!/^[\w.-]+(\/[\w.-]+)?$/.test(id) || id.split('/').some((part) => part.startsWith('.'))) return undefined
    const folder = path.join(this.modelsDir, id)
    try {
      const file = ModelFile.parse(JSON.parse(readFileSync(path.join(folder, 'model.json'), 'utf8')))
      const gguf = path.join(folder, file.gguf)
      const hf = file.hf === null ? null : path.join(folder, file.hf)
      if (!existsSync(gguf)) return undefined
      const { kind, parameters, context_length, projector, projector_sha256 } = file
      const keep_original = this.options.keep_original || file.keep_original_weights
      const eight_bits_problem = keep_original ? null : eightBitsProblem(gguf)
      return {
        id,
        kind,
        parameters,
        context_length,
        gguf,
        keep_original,
        eight_bits: keep_original || eight_bits_problem !== null ? null : readEightBits(gguf),
        eight_bits_problem,
        // Not whether it exists: a model whose projector is lost must say so, instead of reading text only.
        projector: kind === 'vision' ? { path: path.join(folder, projector!), sha256: projector_sha256! } : null,
        hf: hf !== null && existsSync(hf) ? hf : null,
        linear_modules: file.linear_modules ?? null,
        expert_weights: file.expert_weights ?? null,
        merges_adapters: file.merges_adapters,
        untrainable: file.untrainable ?? null,
        blind: file.blind ?? null,
      }
    } catch {
      // A folder without a readable model.json is no model, and must not break the list.
      return undefined
    }
  }

  /** Whether a base is served as it is in its file. True for everything else, such as tuned models. */
  keepsOriginal(id: string): boolean {
    return this.localOrUndefined(id)?.keep_original ?? true
  }

  /** What the catalogue knows of a base without its weights; undefined if it cannot be downloaded. */
  downloadable(id: string): Downloadable | undefined {
    const entry = this.entries.get(id)
    if (!entry) return undefined
    const { parameters, context_length } = entry
    const size_mb = sizeOf(entry)
    const kind = kinds[entry.category as Model['category']]
    const trainable = kind !== 'embedding'
    return { kind, trainable, parameters, context_length, size_mb }
  }

  /** The base that the operator maps a name to, otherwise the name itself. */
  mapped(name: string): string {
    return this.has(name) ? name : (this.options.names.get(name) ?? name)
  }

  /** The names that the operator maps. */
  mappedNames(): string[] {
    return [...this.options.names.keys()]
  }

  get(id: string): Model {
    const model = this.describe(id)
    if (!model)
      throw new ApiError('model_not_found', `The hub has no model '${id}'. GET /v1/hub/ lists those it has.`, {
        param: 'model',
      })
    return model
  }

  /** The files of a base on this machine. Throws model_not_found or model_not_available. */
  local(id: string): LocalBase {
    const base = this.localOrUndefined(id)
    if (base) return base
    if (installedForTraining.includes(id)) this.options.trainingSetup?.requireReady()
    throw this.notAvailableError(id)
  }

  /**
   * The files of a base to train. Throws as `local` does, invalid_request for an embedding model, and
   * training_not_ready while set-up still makes its checkpoint.
   */
  trainable(id: string): TrainableBase {
    const base = this.local(id)
    const { kind, hf, untrainable } = base
    if (untrainable !== null)
      throw new ApiError('invalid_request', `'${id}' can be served, but not trained: ${untrainable}.`, {
        param: 'model_id',
      })
    if (kind !== 'embedding' && hf !== null) return { ...base, hf }
    if (kind !== 'embedding') {
      this.options.trainingSetup?.requireReady()
      throw new ApiError(
        'model_not_available',
        `The checkpoint of '${id}' is not on this machine (hf/ in its folder), so it can be served but not trained. ` +
          'Remove the folder of the model and add it again.',
        { param: 'model' },
      )
    }
    throw new ApiError(
      'invalid_request',
      `'${id}' makes embeddings; only models that write text can be trained here.`,
      { param: 'model_id' },
    )
  }

  /** Names of the layers of a base that an adapter can change: the possible target modules of a job. */
  linearModules(base: TrainableBase): string[] {
    return base.linear_modules ?? linearModules(base.hf)
  }

  /** What decides whether a job trains the experts of a base: null if it has none that an adapter can change. */
  mixture({ id, expert_weights }: TrainableBase): Mixture | null {
    return expert_weights === null || this.problemOf(id, 'experts') !== null
      ? null
      : { expert_weights, memory_bytes: this.options.memory_bytes }
  }

  /** Throws invalid_request with the table's sentence where a job wants what failed with all models of its family. */
  requireTried(id: string, { method, lora_config }: JobConfig): void {
    const wanted = { 'config.method': method ?? 'lora', ...(lora_config?.experts && { [expertsField]: 'experts' }) }
    for (const [field, what] of Object.entries(wanted)) {
      const problem = this.problemOf(id, what)
      if (problem !== null)
        throw new ApiError('invalid_request', `'${field}': ${what} cannot be trained with ${id}. ${problem}`, {
          details: { field },
        })
    }
  }

  /** What came of a trial that failed with all models of a base's family; null where it may work. */
  private problemOf(id: string, what: string): string | null {
    const tested = this.options.families.get(this.familyOfModel(id) ?? '')
    return mayWork(tested, what) ? null : tested![what]!
  }

  /** Why the projector of a base cannot be trained, as a part of a sentence; null if it can. */
  projectorProblem(id: string): string | null {
    const { category } = this.get(id)
    return category === 'multimodal' ? projectorProblem(id, this.familyOfModel(id)) : `${id} reads text only`
  }

  private localIds(): string[] {
    if (!existsSync(this.modelsDir)) return []
    const folders = (dir: string) =>
      readdirSync(dir, { withFileTypes: true })
        // Names of models begin with no dot; folders in which one is being made do.
        .filter((entry) => entry.isDirectory() && !entry.name.startsWith('.'))
        .map((entry) => entry.name)
    return folders(this.modelsDir).flatMap((owner) =>
      folders(path.join(this.modelsDir, owner)).map((name) => `${owner}/${name}`),
    )
  }

  private familyOfModel(id: string, base = this.localOrUndefined(id)): string | undefined {
    return base?.hf ? familyOf(base.hf) : this.entries.get(id)?.family
  }

  /** Bytes of the disk of the models that a download may take. */
  private freeDiskBytes(): number {
    let folder = this.modelsDir
    while (!existsSync(folder) && path.dirname(folder) !== folder) folder = path.dirname(folder)
    const { bavail, bsize } = statfsSync(folder)
    return bavail * bsize - this.options.min_free_mb * 1e6
  }

  /** The sizes of a base: of its checkpoint, else of the catalogue. */
  private sizedOf(id: string, base = this.localOrUndefined(id)): Sized | undefined {
    const entry = this.entries.get(id)
    const family = this.familyOfModel(id, base)
    const parameters = base?.parameters ?? entry?.parameters
    const shape = entry?.shape ?? (base?.hf ? shapeOf(readConfig(base.hf)) : undefined)
    if (!shape || parameters === undefined) return undefined
    return { family, parameters, active_parameters: entry?.active_parameters ?? parameters, shape }
  }

  /** The base that comes with the service or, where it is not here, the smallest that can be trained. */
  private recommendedId(): string | undefined {
    const { memory_bytes } = this.options
    if (this.localOrUndefined(defaultBase)) return defaultBase
    const others = this.localIds().flatMap((id) => this.localOrUndefined(id) ?? [])
    const trainable = others.filter(
      ({ kind, parameters, untrainable }) =>
        kind === 'text' && untrainable === null && methodsFor(parameters, memory_bytes).length > 0,
    )
    return trainable.sort((a, b) => a.parameters - b.parameters || (a.id < b.id ? -1 : 1))[0]?.id
  }

  private describe(
    id: string,
    recommended = this.recommendedId(),
    free_disk_bytes = this.freeDiskBytes(),
  ): Model | undefined {
    const { memory_bytes, machine, families, keep_original } = this.options
    const entry = this.entries.get(id)
    const base = this.localOrUndefined(id)
    if (!entry && !base) return undefined
    const category = (base?.blind ? 'language' : (entry?.category ?? categories[base!.kind])) as Model['category']
    const parameters = base?.parameters ?? entry!.parameters
    const family = this.familyOfModel(id, base)
    const tested = family === undefined ? undefined : families.get(family)
    const trainable = category !== 'embedding' && (base?.untrainable ?? null) === null
    const sized = this.sizedOf(id, base)
    const billions = (count: number) => Number((count / 1e9).toPrecision(4))
    const weights_bytes = base ? statSync(base.gguf).size : entry && sizeOf(entry) * 1e6
    return {
      id,
      name: entry?.name ?? id,
      description: [
        entry?.description ?? 'Added on this machine.',
        ...(base?.untrainable ? [`It cannot be trained: ${base.untrainable}.`] : []),
        ...(base?.blind ? [`It reads no pictures: ${base.blind}.`] : []),
      ].join(' '),
      category,
      family: family ?? null,
      tasks: ((base?.blind ? undefined : entry?.tasks) ?? tasks[base!.kind]) as Model['tasks'],
      pictures: category === 'multimodal' ? sightOf(family, tested) : null,
      params_billions: billions(entry?.parameters ?? parameters),
      active_params_billions: billions(sized?.active_parameters ?? entry?.active_parameters ?? parameters),
      size: sizeClass(entry?.parameters ?? parameters),
      context_length: base?.context_length ?? entry!.context_length,
      license: entry?.license ?? 'unknown',
      license_url: entry?.license_url ?? null,
      gated: entry?.gated ?? false,
      huggingface_id: entry ? id : null,
      methods: trainable ? methodsFor(parameters, memory_bytes).filter((method) => mayWork(tested, method)) : [],
      merges_adapters: base?.merges_adapters ?? false,
      needs: needsOf({
        base: sized,
        trainable,
        weights_bytes,
        download_bytes: base || !entry ? null : downloadBytes(entry),
        machine,
        free_disk_bytes,
      }),
      tested: tested ?? null,
      recommended: id === recommended,
      pricing: this.pricing(id),
      weights: {
        available: base !== undefined,
        size_mb: weights_bytes === undefined ? null : Math.round(weights_bytes / 1e6),
        how_to_get: base ? null : this.howToGet(id),
        keep_original: base?.keep_original ?? keep_original,
        eight_bits: base?.eight_bits
          ? {
              size_mb: Math.round(base.eight_bits.bytes / 1e6),
              original_type: base.eight_bits.original_type,
              distance: base.eight_bits.distance,
            }
          : null,
        eight_bits_problem: base?.eight_bits_problem ?? null,
      },
      download: this.downloadOf(id, base !== undefined),
    }
  }

  private howToGet(id: string): string {
    const { policy } = this.options
    const { size_mb } = this.downloadable(id)!
    const command = `Run ./tunery models add ${id} on the machine of the service`
    const size = `it downloads about ${size_mb} MB from Hugging Face`
    if (policy === 'off') return `${command}; ${size}.`
    const scope = policy === 'operator' ? ' with a key that has the scope operator' : ''
    return `${command}, or POST /v1/hub/models/${id}/download${scope}; ${size}.`
  }

  /** The last download, unless it is completed but its weights were removed since. */
  private downloadOf(id: string, available: boolean): Download | null {
    const download = this.options.downloads.get(id)
    return download && (available || download.status !== 'completed') ? download : null
  }

  private notAvailableError(id: string): ApiError {
    const { weights, download } = this.get(id)
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
}

/** The configuration of a checkpoint; empty where it cannot be read. */
function readConfig(hf: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(path.join(hf, 'config.json'), 'utf8'))
  } catch {
    return {}
  }
}

/** The name of a checkpoint's architecture in transformers. */
function familyOf(hf: string): string | undefined {
  const { model_type } = readConfig(hf)
  return typeof model_type === 'string' ? model_type : undefined
}

/** Parts of vision-language models that the trainer leaves as they are (trainer/model/vision.py). */
const seeingPart = /(^|\.)(visual|vision_model|connector)\./

/** The module names of all two-dimensional weights inside the layers of the language model. */
export function linearModules(folder: string): string[] {
  const names = new Set<string>()
  for (const [key, shape] of shapesOf(folder)) {
    const inLayer = /\.layers\.\d+\.(.*)/s.exec(key)?.[1]
    const name = inLayer && /(?<!\w)(\w+)\.weight$/.exec(inLayer)?.[1]
    if (name && shape.length === 2 && !seeingPart.test(key)) names.add(name)
  }
  return [...names].sort()
}
