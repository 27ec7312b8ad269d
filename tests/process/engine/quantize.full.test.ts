// Quantization with an importance matrix: weights of important inputs are rounded less.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { readImportanceMatrix } from '../../../engine/llama/importance.ts'
import { tiny, tinyModelsDir } from '../../support/tiny.ts'
import { modelPath, root } from './engine-process.ts'

const program = path.join(root, 'engine/quantize.ts')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-quantize-'))
after(() => rmSync(folder, { recursive: true }))

const python = (program: string, ...args: string[]) =>
  JSON.parse(
    execFileSync(path.join(root, '.local/python/bin/python'), ['-c', program, ...args], {
      cwd: root,
      encoding: 'utf8',
    }),
  )

/** A safetensors file of float32 vectors. */
function writeVectors(file: string, vectors: Record<string, number[]>): void {
  let end = 0
  const header = Object.entries(vectors).map(([name, values]) => {
    const begin = end
    end += 4 * values.length
    return [name, { dtype: 'F32', shape: [values.length], data_offsets: [begin, end] }]
  })
  const text = Buffer.from(JSON.stringify({ __metadata__: { format: 'pt' }, ...Object.fromEntries(header) }))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(text.length))
  writeFileSync(
    file,
    Buffer.concat([
      length,
      text,
      ...Object.values(vectors).map((values) => Buffer.from(new Float32Array(values).buffer)),
    ]),
  )
}

/** Mean squared quantization errors of a matrix: of the columns before `split`, and of the rest. */
const errors = (quantized: string, name: string, split: number): [number, number] =>
  python(
    `
import json, sys
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
def matrix(file):
    tensor = next(each for each in GGUFReader(file).tensors if each.name == sys.argv[3])
    return dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
apart = (matrix(sys.argv[1]) - matrix(sys.argv[2])) ** 2
print(json.dumps([float(apart[:, :int(sys.argv[4])].mean()), float(apart[:, int(sys.argv[4]):].mean())]))
`,
    source,
    quantized,
    name,
    String(split),
  )
const source = path.join(folder, 'source.gguf')

/** Writes a checkpoint as a GGUF file in float32. */
function convert(hf: string, file: string): void {
  execFileSync(
    path.join(root, '.local/python/bin/python'),
    [path.join(root, '.local/llama/source/convert_hf_to_gguf.py'), hf, '--outfile', file, '--outtype', 'f32'],
    { stdio: 'ignore', env: { ...process.env, PYTHONPATH: path.join(root, '.local/llama/source/gguf-py') } },
  )
}

async function quantized(name: string, importance: string[]): Promise<string> {
  const out = path.join(folder, name)
  const child = spawn(process.execPath, [program, source, out, 'Q4_0', '1', ...importance], {
    stdio: ['pipe', 'ignore', 'inherit'],
  })
  assert.deepEqual(await once(child, 'exit'), [0, null])
  return out
}

test('weights of important inputs are rounded less, only in the matrices that the importance file names', async () => {
  convert(path.join(tinyModelsDir(), tiny, 'hf'), source)
  const name = 'blk.0.ffn_down.weight'
  const importance = path.join(folder, 'importance.safetensors')
  // Only the first 16 of the 32 columns in the first block are important.
  writeVectors(importance, {
    [name]: Array.from({ length: 128 }, (_, column) => (column < 16 ? 1 : 1e-6)),
    'nobody.weight': [1, 2],
  })
  const [plain, weighted] = [await quantized('plain.gguf', []), await quantized('weighted.gguf', [importance])]
  const [before, after] = [errors(plain, name, 16), errors(weighted, name, 16)]
  assert.ok(after[0] < 0.9 * before[0], `${after[0]} of ${before[0]}`)
  assert.deepEqual(errors(weighted, 'blk.1.ffn_down.weight', 16), errors(plain, 'blk.1.ffn_down.weight', 16))
})

test('it ends with its parent, in the middle of its work', async () => {
  // Minutes of work for one thread: the default model, in float32.
  const large = path.join(folder, 'large.gguf')
  convert(path.join(path.dirname(modelPath), 'hf'), large)
  const child = spawn(process.execPath, [program, large, path.join(folder, 'left.gguf'), 'IQ4_NL', '1'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  let output = ''
  child.stdout.on('data', (text) => (output += text))
  await once(child.stdout, 'data')
  const ended = once(child, 'exit')
  child.stdin.end()
  assert.deepEqual(await ended, [null, 'SIGKILL'])
  assert.match(output, /progress/)
  assert.doesNotMatch(output, /result/)
})

test('a file without float32 vectors is rejected', () => {
  const file = path.join(folder, 'wrong.safetensors')
  const text = Buffer.from(JSON.stringify({ a: { dtype: 'F16', shape: [2], data_offsets: [0, 4] } }))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(text.length))
  writeFileSync(file, Buffer.concat([length, text, Buffer.alloc(4)]))
  assert.throws(() => readImportanceMatrix(file), /F32/)
})
