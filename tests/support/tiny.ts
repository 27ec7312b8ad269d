import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export const tiny = 'test/tiny'

/** Request fields that prevent the tiny model from ending an answer by itself: they ban its 17 special tokens. */
export const endless = { logit_bias: Object.fromEntries(Array.from({ length: 17 }, (_, token) => [token, -100])) }

/** A shape that our kernels have a way of their own for, and that gains from eight bits. */
export const wide = { hidden_size: 384, intermediate_size: 512, num_attention_heads: 6 }

const program =
  'import json, pathlib, sys; from trainer.tests.make_tiny import make_tiny; ' +
  'from trainer.runtime.process import importing\n' +
  'with importing(): make_tiny(pathlib.Path(sys.argv[1]), **json.loads(sys.argv[2]))'

/**
 * A models folder with a tiny real checkpoint, made with `./tunery models add`. Cached for later runs by a hash of the
 * sources that make it. `config`: fields of the checkpoint's config that are to be others; `family`: its class in
 * transformers, without `ForCausalLM`.
 */
export function tinyModelsDir(config: Record<string, number | string> = {}): string {
  const named = Object.keys(config).length > 0 ? JSON.stringify(config) : ''
  return modelsDir(tiny, 'trainer/tests/make_tiny.py', named, (checkpoint) => makeTiny(checkpoint, config))
}

export const makeTiny = (checkpoint: string, config: Record<string, number | string> = {}) =>
  runPython('-c', program, checkpoint, JSON.stringify(config))

export const runPython = (...args: string[]) =>
  void execFileSync(path.join(root, '.local/python/bin/python'), args, { cwd: root, stdio: 'pipe' })

/**
 * A models folder with the checkpoint that `make` writes with a Python program, added under `id`. `name` tells apart
 * what one program makes.
 */
export function modelsDir(id: string, program: string, name: string, make: (checkpoint: string) => void): string {
  const sources = [
    program,
    'trainer/cli/prepare_base.py',
    'trainer/model/targets.py',
    'trainer/model/adapter_gguf.py',
    'trainer/runtime/converters.py',
  ]
  const hash = createHash('sha256')
  for (const file of sources) hash.update(readFileSync(path.join(root, file)))
  hash.update(name)
  const folder = path.join(root, '.local/test-models', hash.digest('hex').slice(0, 12))
  if (existsSync(path.join(folder, id, 'model.json'))) return folder
  mkdirSync(path.dirname(folder), { recursive: true })
  const temporary = mkdtempSync(`${folder}-`)
  const checkpoint = path.join(temporary, 'checkpoint')
  make(checkpoint)
  execFileSync(path.join(root, 'tunery'), ['models', 'add', id, '--from', checkpoint], {
    env: { ...process.env, TUNERY_MODELS_DIR: temporary },
    stdio: 'pipe',
  })
  rmSync(checkpoint, { recursive: true })
  try {
    renameSync(temporary, folder)
  } catch (error) {
    // Another process has made it meanwhile, and may read it already.
    if (!existsSync(path.join(folder, id, 'model.json'))) throw error
    rmSync(temporary, { recursive: true })
  }
  return folder
}
