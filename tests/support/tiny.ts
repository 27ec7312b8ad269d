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

/** Makes a checkpoint if the first argument is its configuration, and prepares a base of it with the others. */
const program = `if True:
  import json, pathlib, sys
  from trainer.runtime.process import importing, leave_out_quantized_layers
  from trainer.tests.make_tiny import make_tiny
  config = sys.argv.pop(1)
  leave_out_quantized_layers()
  with importing():
    if config: make_tiny(pathlib.Path(sys.argv[3]), **json.loads(config))
  if len(sys.argv) > 4:
    from trainer.cli import prepare_base
    prepare_base.main()
`

/**
 * A models folder with a tiny real checkpoint, made with `./tunery models add`. Cached for later runs by a hash of the
 * sources that make it. `config`: fields of the checkpoint's config that are to be others; `family`: its class in
 * transformers, without `ForCausalLM`. Such a one is prepared by one program, which does not compare it.
 */
export function tinyModelsDir(config: Record<string, number | string> = {}): string {
  const source = 'trainer/tests/make_tiny.py'
  if (Object.keys(config).length === 0) return modelsDir(tiny, source, '', (checkpoint) => makeTiny(checkpoint))
  const json = JSON.stringify(config)
  return modelsDir(tiny, source, json, (checkpoint, out) => prepare(tiny, checkpoint, out, json))
}

/** Prepares a base of a checkpoint as `./tunery models add` does, but does not compare what the engine computes. */
export function prepare(id: string, checkpoint: string, out: string, config = ''): void {
  const converters = path.join(root, '.local/llama/source')
  const options = ['--source', checkpoint, '--id', id, '--out', out, '--converters', converters]
  runPython('-c', program, config, 'folder', ...options)
}

export const makeTiny = (checkpoint: string, config: Record<string, number | string> = {}) =>
  runPython('-c', program, JSON.stringify(config), 'folder', '--source', checkpoint)

export const runPython = (...args: string[]) =>
  void execFileSync(path.join(root, '.local/python/bin/python'), args, { cwd: root, stdio: 'pipe' })

/**
 * A models folder with the checkpoint that `make` writes with a Python program, added under `id` unless `make` has
 * prepared the base in `out`. `name` tells apart what one program makes.
 */
export function modelsDir(
  id: string,
  program: string,
  name: string,
  make: (checkpoint: string, out: string) => void,
): string {
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
  const out = path.join(temporary, id)
  make(checkpoint, out)
  if (!existsSync(out))
    execFileSync(path.join(root, 'tunery'), ['models', 'add', id, '--from', checkpoint], {
      env: { ...process.env, TUNERY_MODELS_DIR: temporary },
      stdio: 'pipe',
    })
  rmSync(checkpoint, { recursive: true, force: true })
  try {
    renameSync(temporary, folder)
  } catch (error) {
    // Another process has made it meanwhile, and may read it already.
    if (!existsSync(path.join(folder, id, 'model.json'))) throw error
    rmSync(temporary, { recursive: true })
  }
  return folder
}
