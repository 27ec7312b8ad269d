// Struct layouts of the binding against the C compiler's.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import koffi, { type TypeObject } from 'koffi'
import { assertDefaultParams } from '../../../engine/llama/default-params.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import { mtmdParamsFields, mtmdPositionFields, mtmdStructs, mtmdTextFields } from '../../../engine/llama/mtmd.ts'
import {
  batchFields,
  contextParamsFields,
  modelParamsFields,
  quantizeParamsFields,
  structs,
  threadpoolParamsFields,
} from '../../../engine/llama/structs.ts'
import { noVision } from '../../support/tiny-vision.ts'
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
  compareLayouts('llama.h', structs, fields)
})

test('so has every struct of libmtmd', {
  skip: noVision || (hasCompiler ? false : 'there is no C compiler (cc) here'),
}, () => {
  compareLayouts('mtmd.h', mtmdStructs, {
    mtmd_context_params: Object.keys(mtmdParamsFields),
    mtmd_input_text: Object.keys(mtmdTextFields),
    mtmd_decoder_pos: Object.keys(mtmdPositionFields),
  })
})

function compareLayouts<Name extends string>(
  header: string,
  types: Record<Name, TypeObject>,
  fieldsOf: Record<Name, string[]>,
): void {
  const folder = mkdtempSync(join(tmpdir(), 'tunery-structs-'))
  try {
    const entries = Object.entries(fieldsOf) as [Name, string[]][]
    const lines = entries.flatMap(([name, members]) => [
      `printf("${name} %zu\\n", sizeof(struct ${name}));`,
      ...members.map((member) => `printf("${name}.${member} %zu\\n", offsetof(struct ${name}, ${member}));`),
    ])
    const includes = `#include <stdio.h>\n#include <stddef.h>\n#include "${header}"\n`
    writeFileSync(join(folder, 'layout.c'), `${includes}int main(void) {\n${lines.join('\n')}\nreturn 0; }\n`)
    const folders = ['source/include', 'source/ggml/include', 'mtmd'].map((name) => join(root, '.local/llama', name))
    const options = folders.flatMap((folder) => ['-I', folder])
    execFileSync('cc', ['-w', ...options, join(folder, 'layout.c'), '-o', join(folder, 'layout')])
    const ours = entries.flatMap(([name, members]) => [
      `${name} ${koffi.sizeof(types[name])}`,
      ...members.map((member) => `${name}.${member} ${koffi.offsetof(types[name], member)}`),
    ])
    assert.deepEqual(ours, execFileSync(join(folder, 'layout'), { encoding: 'utf8' }).trim().split('\n'))
  } finally {
    rmSync(folder, { recursive: true })
  }
}

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
