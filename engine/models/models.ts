// The base models and adapters that are loaded, by name.
import { access } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import { createMutex, type Mutex } from '../../lib/mutex.ts'
import type { Library } from '../llama/library.ts'
import { freeModel, type Model } from '../llama/model.ts'
import type { Adapter, Adapters } from './adapters.ts'

export type Models = {
  list(): ServedModel[]
  /** Throws ApiError model_not_found. */
  get(name: string): ServedModel
  /** Idempotent for the same name and path. Throws ApiError: invalid_request for a bad file, name_taken. */
  loadBase(name: string, path: string, options?: { matryoshka?: boolean }): Promise<void>
  loadAdapter(name: string, path: string, baseName: string): Promise<void>
  /**
   * Takes no new requests for the name, lets the running ones end, then frees the memory. Throws model_not_found,
   * in_use.
   */
  unload(name: string, kind: 'base' | 'adapter'): Promise<void>
}

// How long an unload waits for running requests before it ends them.
const drainMsMax = 30_000
const drainCheckMs = 20

/**
 * `load` reads a base's file. In `nativeTurn`, nothing else reads or frees adapters or makes contexts. `onFree` must
 * free whatever was made of the model (its lanes) before the model's own memory goes.
 */
export function createModels(
  library: Library,
  load: (path: string) => Promise<Model>,
  adapters: Adapters,
  nativeTurn: Mutex,
  onFree: (served: ServedModel) => Promise<void>,
): Models {
  const served = new Map<string, ServedModel>()
  const draining = new Map<ServedModel, Promise<void>>()
  // Loads take their turn: two for one name must not both find it free.
  const inTurn = createMutex()

  const get = (name: string): ServedModel => {
    const found = served.get(name)
    if (!found) throw new ApiError('model_not_found', `The model '${name}' is not loaded.`, { param: 'model' })
    return found
  }

  /** Whether exactly this is loaded already. */
  const isLoaded = (name: string, path: string, baseName: string | null): boolean => {
    const found = served.get(name)
    if (!found) return false
    if (found.path === path && found.base_name === baseName) return true
    throw new ApiError('name_taken', `The name '${name}' is in use for ${found.path}. Unload it first.`, {
      details: { path: found.path },
    })
  }

  const add = (
    name: string,
    path: string,
    model: ServedModel['model'],
    adapter: Adapter | null,
    base_name: string | null,
    matryoshka = false,
  ) =>
    served.set(name, {
      name,
      path,
      created: Math.floor(Date.now() / 1000),
      model,
      kind: model.makes_embeddings ? 'embedding' : 'text',
      adapter,
      base_name,
      matryoshka,
      users: 0,
      used_at_ms: performance.now(),
      closing: new AbortController(),
    })

  const free = async (entry: ServedModel) => {
    await onFree(entry)
    draining.delete(entry)
    const { adapter } = entry
    if (adapter) await nativeTurn(() => adapters.close(adapter))
    else freeModel(library, entry.model)
  }

  return {
    get,
    list: () => [...served.values()],
    loadBase: (name, path, { matryoshka = false } = {}) =>
      inTurn(async () => {
        if (isLoaded(name, path, null)) return
        await assertReadable(path, 'path')
        try {
          add(name, path, await load(path), null, null, matryoshka)
        } catch (error) {
          throw new ApiError('invalid_request', `The model '${name}' can't be loaded: ${(error as Error).message}`, {
            param: 'path',
          })
        }
      }),
    loadAdapter: (name, path, baseName) =>
      inTurn(async () => {
        const base = get(baseName)
        if (base.base_name !== null)
          throw new ApiError('invalid_request', `'${baseName}' is an adapter, not a base model.`, {
            param: 'base_model_name',
          })
        if (isLoaded(name, path, baseName)) return
        await assertReadable(path, 'lora_path')
        try {
          add(name, path, base.model, await nativeTurn(() => adapters.open(base.model, path)), baseName)
        } catch (error) {
          throw new ApiError(
            'invalid_request',
            `${path} can't be loaded as an adapter of '${baseName}': ${(error as Error).message}`,
            { param: 'lora_path' },
          )
        }
      }),
    unload: async (name, kind) => {
      const { gone } = await inTurn(async () => {
        const entry = get(name)
        if ((entry.base_name === null) !== (kind === 'base'))
          throw new ApiError('model_not_found', `The ${kind} '${name}' is not loaded.`)
        const onIt = [...served.values()].filter(
          (other) => other !== entry && other.model === entry.model && kind === 'base',
        )
        if (onIt.length > 0)
          throw new ApiError(
            'in_use',
            `Adapters of '${name}' are loaded: ${onIt.map((other) => other.name).join(', ')}.`,
            {
              details: { adapters: onIt.map((other) => other.name) },
            },
          )
        served.delete(name)
        // An adapter that is still draining needs the weights of its base.
        const before = [...draining].filter(([other]) => other.model === entry.model).map(([, gone]) => gone)
        const gone = Promise.all([drained(entry), ...before]).then(() => free(entry))
        draining.set(entry, gone)
        return { gone }
      })
      await gone
    },
  }
}

async function assertReadable(path: string, param: string): Promise<void> {
  await access(path).catch(() => {
    throw new ApiError('invalid_request', `The file ${path} does not exist or can't be read.`, { param })
  })
}

/** Resolves when no request uses the model any more; asks the last ones to end when the time is up. */
async function drained(entry: ServedModel): Promise<void> {
  const endAt = performance.now() + drainMsMax
  while (entry.users > 0) {
    if (performance.now() > endAt) entry.closing.abort()
    await sleep(drainCheckMs)
  }
}

// What can be asked for by name: a base model, or an adapter on one.

export type ServedModel = {
  name: string
  path: string
  /** Unix seconds. */
  created: number
  model: Model
  kind: 'text' | 'embedding'
  /** Null for the base itself. */
  adapter: Adapter | null
  /** The base's name, of an adapter; null for a base. */
  base_name: string | null
  /** Whether the first part of its embeddings is an embedding too (Matryoshka representation learning). */
  matryoshka: boolean
  /** Requests that are using it, from validation to the last byte. Its memory is freed at 0 only. */
  users: number
  used_at_ms: number
  /** Aborted when an unload will wait no longer for the requests. */
  closing: AbortController
}
