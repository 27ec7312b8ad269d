// Struct layouts of the binding against the C compiler's.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import koffi from 'koffi'
import { assertDefaultParams } from '../../../engine/llama/default-params.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import {
  batchFields,
  contextParamsFields,
  modelParamsFields,
  quantizeParamsFields,
  structs,
  threadpoolParamsFields,
} from '../../../engine/llama/structs.ts'
import { root } from './engine-process.ts'

const fields = {
  llama_model_params: Object.keys(modelParamsFields),
  llama_context_params: Object.keys(contextParamsFields),
  llama_model_quantize_params: Object.keys(quantizeParamsFields),
  llama_batch: Object.keys(batchFields),
  ggml_threadpool_params: Object.keys(threadpoolParamsFields),
}

const hasCompiler = spawnSync('cc', ['--version']).status === 0

test('every struct has the size and offsets of the C compiler', {
  skip: hasCompiler ? false : 'there is no C compiler (cc) here',
}, () => {
  const folder = mkdtempSync(join(tmpdir(), 'tunery-structs-'))
  try {
    const lines = Object.entries(fields).flatMap(([name, members]) => [
      `printf("${name} %zu\\n", sizeof(struct ${name}));`,
      ...members.map((member) => `printf("${name}.${member} %zu\\n", offsetof(struct ${name}, ${member}));`),
    ])
    writeFileSync(join(folder, 'layout.c'), `#include "llama.h"\nint main(void) {\n${lines.join('\n')}\nreturn 0; }\n`)
    const source = join(root, '.local/llama/source')
    execFileSync('cc', [
      '-I',
      join(source, 'include'),
      '-I',
      join(source, 'ggml/include'),
      join(folder, 'layout.c'),
      '-o',
      join(folder, 'layout'),
    ])
    const ours = Object.entries(fields).flatMap(([name, members]) => [
      `${name} ${koffi.sizeof(structs[name as keyof typeof structs])}`,
      ...members.map((member) => `${name}.${member} ${koffi.offsetof(structs[name as keyof typeof structs], member)}`),
    ])
    assert.deepEqual(ours, execFileSync(join(folder, 'layout'), { encoding: 'utf8' }).trim().split('\n'))
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('a library with other default parameters is rejected, naming the field', () => {
  const library = openLibrary(join(root, '.local/llama/lib'))
  assert.doesNotThrow(() => assertDefaultParams(library))
  const shifted = {
    ...library,
    llama_context_default_params: () => ({ ...library.llama_context_default_params(), n_ctx: 2048 }),
  }
  assert.throws(() => assertDefaultParams(shifted), /llama_context_params\.n_ctx is 2048, not 512/)
})

test('a folder without the libraries is rejected with what to do', () => {
  assert.throws(() => openLibrary(tmpdir()), /libggml-base\.\w+ is missing in .*npm run setup/)
})
