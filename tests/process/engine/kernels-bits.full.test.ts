// The kernels for few and for many tokens against each other, in C++: a token's numbers do not depend on its batch.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../../lib/root.ts'
// @ts-expect-error: set-up is plain JavaScript, without types
import { engineFlags } from '../../../scripts/setup/kernels.mjs'
import { ownKernels } from './engine-process.ts'

const skip = ownKernels ? false : 'our own kernels are not installed here, or not for this processor'
const skipWithoutAvx512 = ownKernels === 'avx512' ? false : 'the processor has no AVX-512 VNNI'
const library = path.join(root, '.local/llama/lib')
const folder = mkdtempSync(path.join(tmpdir(), 'tunery-kernels-'))
after(() => rmSync(folder, { recursive: true }))

/** Compiles a program of `kernels`, with the other half of what it compares if it has one, and runs it. */
function run(name: string, ...others: string[]) {
  const program = path.join(folder, name)
  const sources = [
    path.join(root, `tests/process/engine/kernels/${name}.cpp`),
    ...others.map((other) => path.join(root, `engine/kernels/${other}.cpp`)),
  ]
  const linked = ['-L', library, '-lggml-base', `-Wl,-rpath,${library},--unresolved-symbols=ignore-all`]
  execFileSync('g++', [...engineFlags[ownKernels!], '-o', program, ...sources, ...linked])
  return spawnSync(program, { encoding: 'utf8' })
}

test('attention gives the same bits for few rows and for many, without tiles and in them', { skip }, () => {
  const { status, stdout } = run('attention', 'attention-many', 'attention-amx')
  assert.deepEqual([status, stdout], [0, ''])
})

test('products give the same bits in VNNI and in AMX', { skip: skipWithoutAvx512 }, (context) => {
  const { status, stdout } = run('amx', 'quantized-amx')
  if (status === 2) return context.skip('this processor has no AMX')
  assert.deepEqual([status, stdout], [0, ''])
})

test('products with quantized weights are those of the numbers in the file, whatever is beside', { skip }, () => {
  const ways = { avx512: ['quantized-vnni', 'quantized-amx'], avx2: ['eight-bit-avx2'] }
  const { status, stdout } = run('quantized', ...ways[ownKernels!])
  assert.deepEqual([status, stdout], [0, ''])
})

test('outliers take no precision from the other activations of a token', { skip: skipWithoutAvx512 }, () => {
  const { status, stdout } = run('outliers')
  const [plain, withOutliers] = stdout.split(' ').map(Number)
  assert.equal(status, 0)
  // A product with outliers is larger.
  assert.ok(plain! < 0.01 && withOutliers! < plain!, stdout)
})

test('products in bfloat16 give the same bits for any number of tokens', { skip }, () => {
  const { status, stdout } = run('bfloat16')
  assert.deepEqual([status, stdout], [0, ''])
})

test('factors of an adapter give the same bits with any number of threads and tokens', { skip }, () => {
  const { status, stdout } = run('low-rank')
  assert.deepEqual([status, stdout], [0, ''])
})
