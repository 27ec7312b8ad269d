// The files of weights: what an engine must know of them beside their paths.
import { existsSync } from 'node:fs'
import path from 'node:path'
import { chooseEngine, type EngineSettings } from '../../../../lib/engine-choice.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import type { Hub } from '../../hub/index.ts'

/** What an engine needs to know of the models that it loads. */
export interface WeightFiles {
  /** Fetches weights that are not on this machine. */
  artifacts: Pick<Artifacts, 'hold'>
  /** Whether a base is served as it is in its file. Tuned and merged models have no other form. */
  keepsOriginal(base_id: string): boolean
  /** The checkpoint folder of whole weights that vLLM may compute; undefined if there is none. Null: without vLLM. */
  checkpoint: ((base_id: string, gguf: string) => string | undefined) | null
  /** The draft file of a tuned model. Called at each load, as the file may be gone by then. */
  draftFile(model_id: string): Promise<string | undefined>
}

/** For models whose files are all on this machine. */
export const filesHere: WeightFiles = {
  artifacts: { hold: async () => ({ release() {} }) },
  keepsOriginal: () => true,
  checkpoint: null,
  draftFile: async () => undefined,
}

/** Where vLLM finds the checkpoints of whole weights; null where our own engine computes. */
export function createCheckpoints(
  config: EngineSettings,
  hub: Pick<Hub, 'localOrUndefined'>,
): WeightFiles['checkpoint'] {
  if (chooseEngine(config).vllm === null) return null
  return (id, gguf) => {
    const base = hub.localOrUndefined(id)
    // A tuned model's are beside its file. What reads pictures or makes embeddings is for our own engine.
    if (base) return base.kind === 'text' ? (base.hf ?? undefined) : undefined
    const folder = path.join(path.dirname(gguf), modelFolder)
    return existsSync(folder) ? folder : undefined
  }
}

const modelFolder = 'hf'
