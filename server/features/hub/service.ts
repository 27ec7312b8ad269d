// The hub: base models of the catalogue, and those in the models folder.
import { existsSync, statfsSync, statSync } from 'node:fs'
import path from 'node:path'
import type { Method } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Download, HubMachine, Model } from '../../../contract/hub.ts'
import type { JobConfig } from '../../../contract/job-config.ts'
import { usableMemory } from '../../../lib/usable-memory.ts'
import type { Config } from '../../config.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { categories, downloadBytes, entries, featuredIds, kinds, sizeClass, sizeOf, tasks } from './catalogue.ts'
import { mayWork, readFamilies } from './families.ts'
import {
  type BaseKind,
  familyOf,
  type LocalBase,
  linearModules,
  localIds,
  readConfig,
  readLocalBase,
} from './local-base.ts'
import {
  type Machine,
  needsOf,
  type RunSizes,
  type Sized,
  servingBytes,
  shapeOf,
  trainingBytes,
  withSizes,
} from './memory.ts'
import { methodsFor, projectorProblem, sightOf } from './methods.ts'
import { type Candidate, machineResponse } from './recommend.ts'

const expertsField = 'config.lora_config.experts'

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
    const ids = new Set([...this.entries.keys(), ...localIds(this.modelsDir)])
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
    return featuredIds.map((id) => this.get(id))
  }

  has(id: string): boolean {
    return this.entries.has(id) || this.localOrUndefined(id) !== undefined
  }

  localOrUndefined(id: string): LocalBase | undefined {
    return readLocalBase(this.modelsDir, id, this.options.keep_original)
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

  /** Bytes of memory that a training takes on a device; undefined where the sizes of its base are not known. */
  trainingBytes(id: string, method: Method, device: 'cpu' | 'gpu', run: RunSizes): number | undefined {
    const base = this.sizedOf(id)
    const bf16 = device === 'gpu' || this.options.machine.bf16
    return base && trainingBytes(base, method, { device, bf16 }, run)
  }

  /** Bytes of memory for the weights of a base in 16 bits and the first conversations; undefined as above. */
  servingBytes(id: string): number | undefined {
    const base = this.sizedOf(id)
    return base && servingBytes(base.shape, 2 * base.parameters)
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
    const active_parameters = entry?.active_parameters ?? parameters
    return { family, parameters, active_parameters, shape: base?.sizes ? withSizes(shape, base.sizes) : shape }
  }

  /** The base that comes with the service or, where it is not here, the smallest that can be trained. */
  private recommendedId(): string | undefined {
    const { memory_bytes } = this.options
    if (this.localOrUndefined(defaultBase)) return defaultBase
    const others = localIds(this.modelsDir).flatMap((id) => this.localOrUndefined(id) ?? [])
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
      methods: trainable
        ? methodsFor(parameters, memory_bytes, machine.devices).filter((method) => mayWork(tested, method))
        : [],
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
