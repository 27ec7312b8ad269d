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

export interface Models {
  list(): ServedModel[]
  /** Throws ApiError model_not_found. */
  get(name: string): ServedModel
  /** Idempotent for the same name and path. Throws ApiError: invalid_request for a bad file, name_taken. */
  loadBase(name: string, path: string, options?: BaseOptions): Promise<void>
  /** An adapter whose `options` name no projector has its base's. */
  loadAdapter(name: string, path: string, baseName: string, options?: AdapterOptions): Promise<void>
  /**
   * Rejects new requests for the name, waits for the running ones, then frees the memory. Throws ApiError
   * model_not_found, in_use.
   */
  unload(name: string, kind: 'base' | 'adapter'): Promise<void>
  /**
   * Gives a base, and its adapters, another form of its weights: new requests get it, and the former one is freed when
   * its last answer has ended. `open` reads it; null: there is none. Returns false, and changes nothing, if the base
   * was unloaded meanwhile or nothing was read.
   */
  replace(former: ServedModel, open: () => Promise<OpenedFile | null>): Promise<boolean>
}

/** `projector`: the path of the file with which the model reads pictures, and the SHA-256 that it must have, in hex. */
interface ProjectorFile {
  projector?: string | undefined
  projector_sha256?: string | undefined
}
/** `drafts`: the path of the model's draft file. One that cannot be used only leaves out its speed. */
interface AdapterOptions extends ProjectorFile {
  drafts?: string | undefined
}
/** `keep_original`: the weights are served as they are in the file. */
interface BaseOptions extends AdapterOptions {
  matryoshka?: boolean | undefined
  keep_original?: boolean | undefined
}

// How long an unload waits for running requests before it aborts them.
const drain_ms_max = 30_000
const drain_check_ms = 20

/**
 * `load` reads the file of a base, and tells whether its eight-bit form is the faster one: `onGain` is called with a
 * base that has or should get it. `projectors` reads its projector, and where they cannot be loaded at all the base
 * reads text only. `nativeMutex` serializes loading and freeing of adapters with context creation. `onFree` must free
 * what uses the model (its batch runners) before the model's own memory is freed.
 */
export function createModels(
  library: Library,
  load: (path: string, keepOriginal: boolean) => Promise<OpenedFile & { gains: boolean }>,
  projectors: Projectors,
  adapters: Adapters,
  readDrafts: ReadDrafts,
  nativeMutex: Mutex,
  onFree: (served: ServedModel) => Promise<void>,
  onGain: (served: ServedModel) => void,
): Models {
  const served = new Map<string, ServedModel>()
  const draining = new Map<ServedModel, Promise<void>>()
  // Serialized, so that two loads of one name cannot both find it free.
  const serialize = createMutex()

  const get = (name: string): ServedModel => {
    const model = served.get(name)
    if (!model) throw new ApiError('model_not_found', `The model '${name}' is not loaded.`, { param: 'model' })
    return model
  }

  /** Whether these files are loaded already under this name. Throws name_taken if the name has other files. */
  const isLoaded = (name: string, path: string, baseName: string | null, projector: string | null): boolean => {
    const model = served.get(name)
    if (!model) return false
    if (model.path === path && model.base_name === baseName) {
      if (model.projector_path === projector) return true
      throw new ApiError('name_taken', `The name '${name}' is in use with another projector. Unload it first.`)
    }
    throw new ApiError('name_taken', `The name '${name}' is in use for ${model.path}. Unload it first.`, {
      details: { path: model.path },
    })
  }

  const add = (
    name: string,
    path: string,
    { model, file, projector, projector_path, owns_projector }: OpenedModel,
    adapter: Adapter | null,
    base_name: string | null,
    drafts: Drafts | null = null,
    matryoshka = false,
  ) =>
    served.set(name, {
      name,
      path,
      created: Math.floor(Date.now() / 1000),
      model,
      file,
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

  const free = async (entry: ServedModel) => {
    await onFree(entry)
    draining.delete(entry)
    const { adapter } = entry
    if (entry.projector && entry.owns_projector) await projectors.unload(entry.projector)
    if (adapter) return nativeMutex(() => adapters.close(adapter))
    freeModel(library, entry.model)
  }

  /** Reads a projector, if the library for pictures is installed. Throws ApiError invalid_request. */
  const openProjector = async (
    name: string,
    model: Model,
    { projector, projector_sha256 }: ProjectorFile,
    evictable: boolean,
  ): Promise<Seeing> => {
    if (projector === undefined) return { projector: null, projector_path: null, owns_projector: false }
    const loaded = projectors.isInstalled()
      ? await projectors.load(model, projector, { sha256: projector_sha256, evictable }).catch((error) => {
          throw cannotLoad(`The projector of '${name}', ${projector},`, error, 'projector')
        })
      : null
    return { projector: loaded, projector_path: projector, owns_projector: true }
  }

  return {
    get,
    list: () => [...served.values()],
    loadBase: (name, path, { matryoshka = false, keep_original = false, drafts, ...sight } = {}) =>
      serialize(async () => {
        if (isLoaded(name, path, null, sight.projector ?? null)) return
        await assertReadable(path, 'path')
        if (sight.projector !== undefined) await assertReadable(sight.projector, 'projector')
        const opened = await load(path, keep_original).catch((error) => {
          throw cannotLoad(`The model '${name}'`, error, 'path')
        })
        try {
          const seeing = await openProjector(name, opened.model, sight, false)
          add(name, path, { ...opened, ...seeing }, null, null, readDrafts(opened.model, drafts), matryoshka)
          if (opened.gains) onGain(get(name))
        } catch (error) {
          freeModel(library, opened.model)
          throw error
        }
      }),
    loadAdapter: (name, path, baseName, { drafts, ...sight } = {}) =>
      serialize(async () => {
        const base = get(baseName)
        if (base.base_name !== null)
          throw new ApiError('invalid_request', `'${baseName}' is an adapter, not a base model.`, {
            param: 'base_model_name',
          })
        if (isLoaded(name, path, baseName, sight.projector ?? base.projector_path)) return
        await assertReadable(path, 'lora_path')
        if (sight.projector !== undefined) await assertReadable(sight.projector, 'projector')
        const adapter = await nativeMutex(() => adapters.open(base.model, path, drafts)).catch((error) => {
          throw new ApiError(
            'invalid_request',
            `${path} can't be loaded as an adapter of '${baseName}': ${(error as Error).message}`,
            { param: 'lora_path' },
          )
        })
        try {
          const projector = await openProjector(name, base.model, sight, true)
          add(
            name,
            path,
            { ...base, ...(projector.owns_projector ? projector : { owns_projector: false }) },
            adapter,
            baseName,
          )
        } catch (error) {
          await nativeMutex(() => adapters.close(adapter))
          throw error
        }
      }),
    replace: (former, open) =>
      serialize(async () => {
        if (served.get(former.name) !== former) return false
        const opened = await open()
        if (!opened) return false
        const earlier = [...served.values()].filter(({ model }) => model === former.model)
        const seeing = new Map<ServedModel, Seeing>()
        try {
          for (const servedModel of earlier) {
            const { name, projector, projector_path, owns_projector } = servedModel
            if (!owns_projector) continue
            const file = { projector: projector_path ?? undefined, projector_sha256: projector?.sha256 }
            seeing.set(servedModel, await openProjector(name, opened.model, file, servedModel !== former))
          }
        } catch (error) {
          for (const { projector } of seeing.values()) if (projector) await projectors.unload(projector)
          freeModel(library, opened.model)
          throw error
        }
        const ofBase = seeing.get(former) ?? { projector: null, projector_path: null, owns_projector: false }
        for (const servedModel of earlier) {
          const { name, path, adapter, base_name, drafts, matryoshka } = servedModel
          const sight = seeing.get(servedModel) ?? { ...ofBase, owns_projector: false }
          const next = adapter && adapters.reopen(adapter, opened.model)
          add(name, path, { ...opened, ...sight }, next, base_name, adapter ? null : drafts, matryoshka)
        }
        // The former base is freed after its adapters. Nothing is aborted: answers may take as long as they do.
        const freed = earlier
          .filter((servedModel) => servedModel !== former)
          .map((servedModel) => waitUntilUnused(servedModel, Number.POSITIVE_INFINITY).then(() => free(servedModel)))
        for (const [index, each] of earlier.filter((other) => other !== former).entries())
          draining.set(each, freed[index]!)
        draining.set(
          former,
          Promise.all([waitUntilUnused(former, Number.POSITIVE_INFINITY), ...freed]).then(() => free(former)),
        )
        return true
      }),
    unload: async (name, kind) => {
      const { freed } = await serialize(async () => {
        const entry = get(name)
        if ((entry.base_name === null) !== (kind === 'base'))
          throw new ApiError('model_not_found', `The ${kind} '${name}' is not loaded.`)
        const dependents = [...served.values()].filter(
          (other) => other !== entry && other.model === entry.model && kind === 'base',
        )
        if (dependents.length > 0)
          throw new ApiError(
            'in_use',
            `Adapters of '${name}' are loaded: ${dependents.map((other) => other.name).join(', ')}.`,
            {
              details: { adapters: dependents.map((other) => other.name) },
            },
          )
        served.delete(name)
        // Adapters that are still draining need the weights of their base.
        const earlier = [...draining].filter(([other]) => other.model === entry.model).map(([, freed]) => freed)
        const freed = Promise.all([waitUntilUnused(entry), ...earlier]).then(() => free(entry))
        draining.set(entry, freed)
        return { freed }
      })
      await freed
    },
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

/** A base in memory, and the file that it was read from. */
export interface OpenedFile {
  model: Model
  file: LoadedFile
}
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
