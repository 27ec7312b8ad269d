// The real bases of the tests: the packaged one, and one of another family where set-up has brought it.
import { existsSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface RealBase {
  id: string
  /** Its TUNERY_MODELS_DIR. */
  models: string
  /** What ends a turn in its template. */
  end: string
  /** Why tests on it cannot run; false if they can. */
  skip: string | false
}

export const packaged: RealBase = {
  id: 'HuggingFaceTB/SmolLM2-135M-Instruct',
  models: path.join(root, '.local/models'),
  end: '<|im_end|>',
  skip: false,
}

const gemma = 'google/gemma-3-270m'
const gemmaModels = path.join(root, '.local/peers/gemma3')

/** Sliding windows, normalized queries and keys, and a SentencePiece vocabulary of 262,144 tokens. */
export const gemma3: RealBase = {
  id: gemma,
  models: gemmaModels,
  end: '<end_of_turn>',
  skip: existsSync(path.join(gemmaModels, gemma, 'model.json'))
    ? false
    : 'needs the second base: `node scripts/setup.mjs --with gemma3`',
}
