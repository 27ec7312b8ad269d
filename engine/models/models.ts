// Registry of loaded base models and adapters, by name.
import { access } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import { createMutex, type Mutex } from '../../lib/mutex.ts'
import type { Library } from '../llama/library.ts'
import { freeModel, type Model } from '../llama/model.ts'
import type { LoadedProjector, Projectors } from '../vision/projectors.ts'
import type { Adapter, Adapters, ReadDrafts } from './adapters.ts'
import type { Drafts } from './draft-file.ts'
import type { LoadedFile } from './file-hashes.ts'

/** `projector`: the path of the file with which the model reads pictures, and the SHA-256 that it must have, in hex. */
interface ProjectorFile {
  projector?: string | undefined
  projector_sha256?: string | undefined
}
/** `drafts`: the path of the model's draft file. One that cannot be used only leaves out its speed. */
interface AdapterOptions extends ProjectorFile {
  drafts?: string | undefined
  /** The folder with the same weights in the format of Hugging Face, for another server that computes the base. */
  checkpoint?: string | undefined
}
/** `keep_original`: the weights are served as they are in the file. */
interface BaseOptions extends AdapterOptions {
  matryoshka?: boolean | undefined
  keep_original?: boolean | undefined
}

// How long an unload waits for running requests before it aborts them.
const drain_ms_max = 30_000
const drain_check_ms = 20

/** Loaded base models and adapters, by name. */
export class Models {
  private readonly library: Library
  private readonly load: LoadBase
  private readonly projectors: Projectors
  private readonly adapters: Adapters
  private readonly readDrafts: ReadDrafts
  private readonly nativeMutex: Mutex
  private readonly onFree: (served: ServedModel) => Promise<void>
  private readonly onGain: (served: ServedModel) => void
  private readonly served = new Map<string, ServedModel>()
  private readonly draining = new Map<ServedModel, Promise<void>>()
  // Serialized, so that two loads of one name cannot both find it free.
  private readonly serialize = createMutex()

  /**
   * `load` reads the file of a base, and tells whether its eight-bit form is the faster one: `onGain` is called with a
   * base that has or should get it. `projectors` reads its projector, and where they cannot be loaded at all the base
   * reads text only. `nativeMutex` serializes loading and freeing of adapters with context creation. `onFree` must free
   * what uses the model (its batch runners) before the model's own memory is freed.
   */
  constructor(
    library: Library,
    load: LoadBase,
    projectors: Projectors,
    adapters: Adapters,
    readDrafts: ReadDrafts,
    nativeMutex: Mutex,
    onFree: (served: ServedModel) => Promise<void>,
    onGain: (served: ServedModel) => void,
  ) {
    this.library = library
    this.load = load
    this.projectors = projectors
    this.adapters = adapters
    this.readDrafts = readDrafts
    this.nativeMutex = nativeMutex
    this.onFree = onFree
    this.onGain = onGain
  }

  /** Throws ApiError model_not_found. */
  get(name: string): ServedModel {
    const model = this.served.get(name)
    if (!model) throw new ApiError('model_not_found', `The model '${name}' is not loaded.`, { param: 'model' })
    return model
  }

  list(): ServedModel[] {
    return [...this.served.values()]
  }

  /**
   * Idempotent for the same name and path. Throws ApiError: invalid_request for a bad file, name_taken;
   * engine_unavailable where a training has the memory.
   */
  loadBase(
    name: string,
    path: string,
    { matryoshka = false, keep_original = false, drafts, checkpoint, ...sight }: BaseOptions = {},
  ): Promise<void> {
    return this.serialize(async () => {
      if (this.isLoaded(name, path, null, sight.projector ?? null)) return
      await assertReadable(path, 'path')
      if (sight.projector !== undefined) await assertReadable(sight.projector, 'projector')
      const opened = await this.load(path, keep_original, checkpoint).catch((error) => {
        if (error instanceof ApiError) throw error
        throw cannotLoad(`The model '${name}'`, error, 'path')
      })
      try {
        const seeing = await this.openProjector(name, opened.model, sight, false)
        this.add(name, path, { ...opened, ...seeing }, null, null, this.readDrafts(opened.model, drafts), matryoshka)
        if (opened.gains) this.onGain(this.get(name))
      } catch (error) {
        await opened.remote?.stop()
        freeModel(this.library, opened.model)
        throw error
      }
    })
  }

  /** An adapter whose `options` name no projector has its base's. */
  loadAdapter(
    name: string,
    path: string,
    baseName: string,
    { drafts, checkpoint, ...sight }: AdapterOptions = {},
  ): Promise<void> {
    return this.serialize(async () => {
      const base = this.get(baseName)
      if (base.base_name !== null)
        throw new ApiError('invalid_request', `'${baseName}' is an adapter, not a base model.`, {
          param: 'base_model_name',
        })
      if (this.isLoaded(name, path, baseName, sight.projector ?? base.projector_path)) return
      await assertReadable(path, 'lora_path')
      if (sight.projector !== undefined) await assertReadable(sight.projector, 'projector')
      const opening = base.remote
        ? this.openRemotely(base.remote, name, path, base.model, checkpoint)
        : this.nativeMutex(() => this.adapters.open(base.model, path, drafts))
      const adapter = await opening.catch((error) => {
        throw new ApiError(
          'invalid_request',
          `${path} can't be loaded as an adapter of '${baseName}': ${(error as Error).message}`,
          { param: 'lora_path' },
        )
      })
      try {
        const projector = await this.openProjector(name, base.model, sight, true)
        this.add(
          name,
          path,
          { ...base, ...(projector.owns_projector ? projector : { owns_projector: false }) },
          adapter,
          baseName,
        )
      } catch (error) {
        await base.remote?.unloadAdapter(name)
        await this.nativeMutex(() => this.adapters.close(adapter))
        throw error
      }
    })
  }

  /**
   * Gives a base, and its adapters, another form of its weights: new requests get it, and the former one is freed when
   * its last answer has ended. `open` reads it; null: there is none. Returns false, and changes nothing, if the base
   * was unloaded meanwhile or nothing was read.
   */
  replace(former: ServedModel, open: () => Promise<OpenedFile | null>): Promise<boolean> {
    return this.serialize(async () => {
      if (this.served.get(former.name) !== former) return false
      const opened = await open()
      if (!opened) return false
      const earlier = [...this.served.values()].filter(({ model }) => model === former.model)
      const seeing = new Map<ServedModel, Seeing>()
      try {
        for (const servedModel of earlier) {
          const { name, projector, projector_path, owns_projector } = servedModel
          if (!owns_projector) continue
          const file = { projector: projector_path ?? undefined, projector_sha256: projector?.sha256 }
          seeing.set(servedModel, await this.openProjector(name, opened.model, file, servedModel !== former))
        }
      } catch (error) {
        for (const { projector } of seeing.values()) if (projector) await this.projectors.unload(projector)
        freeModel(this.library, opened.model)
        throw error
      }
      const ofBase = seeing.get(former) ?? { projector: null, projector_path: null, owns_projector: false }
      for (const servedModel of earlier) {
        const { name, path, adapter, base_name, drafts, matryoshka } = servedModel
        const sight = seeing.get(servedModel) ?? { ...ofBase, owns_projector: false }
        const next = adapter && this.adapters.reopen(adapter, opened.model)
        this.add(name, path, { ...opened, ...sight }, next, base_name, adapter ? null : drafts, matryoshka)
      }
      // The former base is freed after its adapters. Nothing is aborted: answers may take as long as they do.
      const freed = earlier
        .filter((servedModel) => servedModel !== former)
        .map((servedModel) => waitUntilUnused(servedModel, Number.POSITIVE_INFINITY).then(() => this.free(servedModel)))
      for (const [index, other] of earlier.filter((servedModel) => servedModel !== former).entries())
        this.draining.set(other, freed[index]!)
      this.draining.set(
        former,
        Promise.all([waitUntilUnused(former, Number.POSITIVE_INFINITY), ...freed]).then(() => this.free(former)),
      )
      return true
    })
  }

  /**
   * Rejects new requests for the name, waits for the running ones, then frees the memory. Throws ApiError
   * model_not_found, in_use.
   */
  async unload(name: string, kind: 'base' | 'adapter'): Promise<void> {
    const { freed } = await this.serialize(async () => {
      const entry = this.get(name)
      if ((entry.base_name === null) !== (kind === 'base'))
        throw new ApiError('model_not_found', `The ${kind} '${name}' is not loaded.`)
      const dependents = [...this.served.values()].filter(
        (other) => other !== entry && other.model === entry.model && kind === 'base',
      )
      if (dependents.length > 0)
        throw new ApiError(
          'in_use',
          `Adapters of '${name}' are loaded: ${dependents.map((other) => other.name).join(', ')}.`,
          { details: { adapters: dependents.map((other) => other.name) } },
        )
      this.served.delete(name)
      // Adapters that are still draining need the weights of their base.
      const earlier = [...this.draining].filter(([other]) => other.model === entry.model).map(([, freed]) => freed)
      const freed = Promise.all([waitUntilUnused(entry), ...earlier]).then(() => this.free(entry))
      this.draining.set(entry, freed)
      return { freed }
    })
    await freed
  }

  /** Whether these files are loaded already under this name. Throws name_taken if the name has other files. */
  private isLoaded(name: string, path: string, baseName: string | null, projector: string | null): boolean {
    const model = this.served.get(name)
    if (!model) return false
    if (model.path === path && model.base_name === baseName) {
      if (model.projector_path === projector) return true
      throw new ApiError('name_taken', `The name '${name}' is in use with another projector. Unload it first.`)
    }
    throw new ApiError('name_taken', `The name '${name}' is in use for ${model.path}. Unload it first.`, {
      details: { path: model.path },
    })
  }

  private add(
    name: string,
    path: string,
    { model, file, remote = null, problem = null, projector, projector_path, owns_projector }: OpenedModel,
    adapter: Adapter | null,
    base_name: string | null,
    drafts: Drafts | null = null,
    matryoshka = false,
  ): void {
    this.served.set(name, {
      name,
      path,
      created: Math.floor(Date.now() / 1000),
      model,
      file,
      remote,
      remote_problem: problem,
      projector,
      projector_path,
      owns_projector,
      kind: model.is_embedding_model ? 'embedding' : 'text',
      adapter,
      get drafts() {
        return adapter ? adapter.drafts : drafts
      },
      base_name,
      matryoshka,
      active_requests: 0,
      used_at_ms: performance.now(),
      closing: new AbortController(),
    })
  }

  private async free(entry: ServedModel): Promise<void> {
    await this.onFree(entry)
    this.draining.delete(entry)
    const { adapter } = entry
    if (entry.projector && entry.owns_projector) await this.projectors.unload(entry.projector)
    if (adapter) {
      await entry.remote?.unloadAdapter(entry.name)
      return this.nativeMutex(() => this.adapters.close(adapter))
    }
    await entry.remote?.stop()
    freeModel(this.library, entry.model)
  }

  private async openRemotely(
    remote: RemoteBase,
    name: string,
    path: string,
    model: Model,
    checkpoint: string | undefined,
  ): Promise<Adapter> {
    if (checkpoint === undefined) throw new Error('its checkpoint is not on this machine')
    await remote.loadAdapter(name, checkpoint)
    return this.adapters.openElsewhere(model, path, checkpoint)
  }

  /** Reads a projector, if the library for pictures is installed. Throws ApiError invalid_request. */
  private async openProjector(
    name: string,
    model: Model,
    { projector, projector_sha256 }: ProjectorFile,
    evictable: boolean,
  ): Promise<Seeing> {
    if (projector === undefined) return { projector: null, projector_path: null, owns_projector: false }
    const loaded = this.projectors.isInstalled()
      ? await this.projectors.load(model, projector, { sha256: projector_sha256, evictable }).catch((error) => {
          throw cannotLoad(`The projector of '${name}', ${projector},`, error, 'projector')
        })
      : null
    return { projector: loaded, projector_path: projector, owns_projector: true }
  }
}

const cannotLoad = (what: string, error: unknown, param: string) =>
  new ApiError('invalid_request', `${what} can't be loaded: ${(error as Error).message}`, { param })

async function assertReadable(path: string, param: string): Promise<void> {
  await access(path).catch(() => {
    throw new ApiError('invalid_request', `The file ${path} does not exist or can't be read.`, { param })
  })
}

/** Resolves when no request uses the model. Aborts the last ones after `max_ms`. */
async function waitUntilUnused(entry: ServedModel, max_ms = drain_ms_max): Promise<void> {
  const endAt = performance.now() + max_ms
  while (entry.active_requests > 0) {
    if (performance.now() > endAt) entry.closing.abort()
    await sleep(drain_check_ms)
  }
}

/** Another server that computes a base: vLLM. */
export interface RemoteBase {
  loadAdapter(name: string, checkpoint: string): Promise<void>
  unloadAdapter(name: string): Promise<void>
  stop(): Promise<void>
}

/**
 * A base in memory, and the file that it was read from. With `remote` the model has its vocabulary alone. `problem`:
 * why no other server computes it, where one was to.
 */
export interface OpenedFile {
  model: Model
  file: LoadedFile
  remote?: RemoteBase | null
  problem?: string | null
}
type LoadBase = (
  path: string,
  keepOriginal: boolean,
  checkpoint: string | undefined,
) => Promise<OpenedFile & { gains: boolean }>
type Seeing = Pick<ServedModel, 'projector' | 'projector_path' | 'owns_projector'>
type OpenedModel = OpenedFile & Seeing

/** What a request can name as its model: a base model, or an adapter on one. */
export interface ServedModel {
  name: string
  path: string
  /** Unix seconds. */
  created: number
  model: Model
  /** The file of the base's weights. */
  file: LoadedFile
  /** What computes it; null: this process. */
  remote: RemoteBase | null
  /** Why no other server computes it, where one was to. */
  remote_problem: string | null
  /** With which the model reads pictures; null: it reads text only. An adapter has its base's, or its own. */
  projector: LoadedProjector | null
  /** Where it is to come from. Without the library for pictures it is not loaded. */
  projector_path: string | null
  /** Whether it was loaded for this model alone: not for an adapter that has its base's. */
  owns_projector: boolean
  kind: 'text' | 'embedding'
  /** Null for the base itself. */
  adapter: Adapter | null
  /** What speculative decoding may draft answers from. An adapter has them while it is in memory. */
  readonly drafts: Drafts | null
  /** For an adapter, the name of its base; null for a base. */
  base_name: string | null
  /** Its embeddings can be truncated (Matryoshka representation learning). */
  matryoshka: boolean
  /** Requests that use it, from validation to the last byte. Its memory is freed only at 0. */
  active_requests: number
  used_at_ms: number
  /** Aborted when an unload stops waiting for running requests. */
  closing: AbortController
}
