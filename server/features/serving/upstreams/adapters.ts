// Loads LoRA adapters into an upstream at run time, over vLLM's API.
import path from 'node:path'
import { ApiError } from '../../../../contract/errors.ts'
import type { Artifacts, Hold } from '../../../platform/storage/objects/index.ts'
import { modelFiles } from '../../models/index.ts'
import type { ModelStatus, Target } from '../requests/replica.ts'

type Adapter = NonNullable<Target['adapter']>

export interface Adapters {
  /** Loads the adapter unless it is known to be loaded. Throws engine_failed if the server refuses it. */
  ensureLoaded(adapter: Adapter): Promise<void>
  /** The server does not have it any more. */
  forget(id: string): void
  /** Unloads the adapter if it is known to be loaded. */
  unload(id: string): Promise<void>
  /** The server may have restarted, which loses all adapters. */
  forgetAll(): void
  status(id: string): ModelStatus
}

interface Options {
  /** Path of the models' folder on the server; undefined if it is the same as here. */
  root: string | undefined
  post(path: string, body: { lora_name: string; lora_path?: string }): Promise<{ status: number; text: string }>
  onRefused(status: number, text: string): void
  /** Keeps adapters on this disk while a server has them: it may read them again. Without it, they stay anyway. */
  artifacts?: Pick<Artifacts, 'hold'> | undefined
}

export function createAdapters({ root, post, onRefused, artifacts }: Options): Adapters {
  const loaded = new Map<string, { done: Promise<void>; status: ModelStatus; hold?: Hold | undefined }>()
  const drop = (id: string) => {
    loaded.get(id)?.hold?.release()
    return loaded.delete(id)
  }

  async function load({ id, gguf }: Adapter): Promise<void> {
    const folder = path.dirname(gguf)
    const lora_path = path.join(root ? path.join(root, path.basename(folder)) : folder, modelFiles.adapter.folder)
    const { status, text } = await post('/load_lora_adapter', { lora_name: id, lora_path })
    if (status === 200 || /already been loaded/i.test(text)) return
    onRefused(status, text)
    const hint =
      status === 404
        ? 'It does not take adapters at run time: start vLLM with --enable-lora and ' +
          'VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.'
        : 'The log of the service has its reason; it must see the folder of the adapter (adapter_root).'
    throw new ApiError('engine_failed', `The server of this model did not load the adapter. ${hint}`)
  }

  return {
    ensureLoaded(adapter) {
      const existing = loaded.get(adapter.id)
      if (existing) return existing.done
      const entry: { done: Promise<void>; status: ModelStatus; hold?: Hold | undefined } = {
        done: Promise.resolve(),
        status: 'loading',
      }
      entry.done = (async () => {
        entry.hold = await artifacts?.hold([adapter.gguf])
        await load(adapter)
      })()
      loaded.set(adapter.id, entry)
      entry.done.then(
        () => {
          entry.status = 'loaded'
          // Forgotten meanwhile.
          if (loaded.get(adapter.id) !== entry) entry.hold?.release()
        },
        () => {
          entry.hold?.release()
          if (loaded.get(adapter.id) === entry) loaded.delete(adapter.id)
        },
      )
      return entry.done
    },
    async unload(id) {
      if (drop(id)) await post('/unload_lora_adapter', { lora_name: id })
    },
    forget: (id) => void drop(id),
    forgetAll: () => {
      for (const id of [...loaded.keys()]) drop(id)
    },
    status: (id) => loaded.get(id)?.status ?? 'not_loaded',
  }
}
