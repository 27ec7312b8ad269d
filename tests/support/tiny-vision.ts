import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'
import { modelsDir, prepare, runPython } from './tiny.ts'

export const visionFamilies = ['smolvlm', 'qwen2_5_vl', 'qwen3_vl', 'gemma3'] as const
export type VisionFamily = (typeof visionFamilies)[number]

/** Why tests with pictures are skipped here; false if they are not. */
export const noVision = existsSync(path.join(root, '.local/llama/lib/libmtmd.so'))
  ? false
  : 'the library for pictures is not built here: npm run setup -- --with vision'

/**
 * A folder with a tiny vision model: `hf/`, `model.gguf` and `mmproj-model.gguf`, and `mmproj-model-f16.gguf` in 16
 * bits. Cached for later runs by a hash of the sources that make it.
 */
export function tinyVision(family: VisionFamily): string {
  const sources = ['trainer/tests/make_tiny_vision.py', 'trainer/runtime/converters.py', 'scripts/setup/pins.json']
  const hash = createHash('sha256').update(family)
  for (const file of sources) hash.update(readFileSync(path.join(root, file)))
  const folder = path.join(root, '.local/test-models', hash.digest('hex').slice(0, 12))
  if (existsSync(folder)) return folder
  mkdirSync(path.dirname(folder), { recursive: true })
  const temporary = mkdtempSync(`${folder}-`)
  const converters = path.join(root, '.local/llama/source')
  runPython('-m', 'trainer.tests.make_tiny_vision', family, temporary, '--gguf', converters)
  try {
    renameSync(temporary, folder)
  } catch {
    // Another test file has made it meanwhile.
    rmSync(temporary, { recursive: true })
  }
  return folder
}

/** The id of a tiny vision model in the folder of `visionModelsDir`. */
export const tinyEye = 'test/tiny-eye'

/** A models folder with a tiny vision model; cached for later runs. */
export const visionModelsDir = (family: VisionFamily): string =>
  modelsDir(tinyEye, 'trainer/tests/make_tiny_vision.py', family, (_, out) =>
    prepare(tinyEye, path.join(tinyVision(family), 'hf'), out),
  )
