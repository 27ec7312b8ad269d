// The adapters of an upstream that loads them at run time, as vLLM does.
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import { modelFiles } from '../../fine-tuning/artifacts.ts'
import type { ModelStatus, Target } from './replica.ts'

type Adapter = NonNullable<Target['adapter']>

export interface Adapters {
  /** Has it loaded, once in what is known of the server's life. Throws engine_failed where the server refuses it. */
  ensure(adapter: Adapter): Promise<void>
  forget(id: string): void
  /** Frees it there, where it is known to be loaded. */
  unload(id: string): Promise<void>
  /** The server may have been started anew. */
  forgetAll(): void
  status(id: string): ModelStatus
}

interface Options {
  /** The folder that the server sees the folder of tuned models as, or undefined where it is the same. */
  root: string | undefined
  ask(path: string, body: { lora_name: string; lora_path?: string }): Promise<{ status: number; text: string }>
  refused(status: number, text: string): void
}

export function createAdapters({ root, ask, refused }: Options): Adapters {
  const loaded = new Map<string, { done: Promise<void>; status: ModelStatus }>()

  async function loadNow({ id, gguf }: Adapter): Promise<void> {
    const folder = path.dirname(gguf)
    const lora_path = path.join(root ? path.join(root, path.basename(folder)) : folder, modelFiles.adapter.folder)
    const { status, text } = await ask('/load_lora_adapter', { lora_name: id, lora_path })
    if (status === 200 || /already been loaded/i.test(text)) return
    refused(status, text)
    const hint =
      status === 404
        ? 'It does not take adapters at run time: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.'
        : 'The log of the service has its reason; it must see the folder of the adapter (adapter_root).'
    throw new ApiError('engine_failed', `The server of this model did not load the adapter. ${hint}`)
  }

  return {
    ensure(adapter) {
      const known = loaded.get(adapter.id)
      if (known) return known.done
      const entry = { done: loadNow(adapter), status: 'loading' as ModelStatus }
      loaded.set(adapter.id, entry)
      entry.done.then(
        () => {
          entry.status = 'loaded'
        },
        () => loaded.get(adapter.id) === entry && loaded.delete(adapter.id),
      )
      return entry.done
    },
    async unload(id) {
      if (loaded.delete(id)) await ask('/unload_lora_adapter', { lora_name: id })
    },
    forget: (id) => void loaded.delete(id),
    forgetAll: () => loaded.clear(),
    status: (id) => loaded.get(id)?.status ?? 'not_loaded',
  }
}
