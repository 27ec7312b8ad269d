// What a step of the engine costs: the library's kernels and ours, with and without an adapter, beside what one thread
// of this machine can read and multiply. `npm run bench -- steps [--threads 2] [--only 'sequences 8,prompt 256']` Exits
// with 1 where ours are slower than the library's.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync, statSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { callAsync, openLibrary } from '../../engine/llama/library.ts'
import type { Measurement } from './measure.ts'

const root = path.resolve(import.meta.dirname, '../..')
const source = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/model.gguf')
const folder = path.join(root, '.local/bench/steps')
const [model, adapter] = [path.join(folder, 'eight-bits.gguf'), path.join(folder, 'adapter.gguf')]
/** Two runs of the same program differ by this share. */
const tolerance = 0.05

const { values } = parseArgs({ options: { threads: { type: 'string', default: '1' }, only: { type: 'string' } } })
const threads = Number(values.threads)
if (!Number.isInteger(threads) || threads < 1) throw new Error('--threads is a number from 1 on.')
const steps = values.only?.split(',') ?? [
  ...[1, 2, 3, 4, 6, 8, 12, 16, 24, 32].map((count) => `sequences ${count}`),
  ...[2, 3, 4, 6, 8, 12, 16, 24].map((count) => `draft ${count}`),
  'prompt 256',
  'prompt 2000',
]

await makeFiles()
const weights = statSync(model).size
const peak = measurePeak()
const columns = (['library', 'own'] as const).flatMap((kernels) =>
  [null, adapter].map((attached) => ({
    name: `${kernels}${attached ? ', adapter' : ''}`,
    times: run({ model, adapter: attached, kernels, threads, steps }),
  })),
)
const [library, libraryAdapter, own, ownAdapter] = columns.map(({ times }) => times)

console.log(`\nMilliseconds of ${threads === 1 ? 'processor time' : `${threads} threads`} a step\n`)
console.log(`| step | ${columns.map(({ name }) => name).join(' | ')} | own / library | base / adapter |`)
console.log(`|---|${'---|'.repeat(columns.length + 2)}`)
for (const step of steps) {
  const cells = columns.map(({ times }) => times[step]!.toFixed(1))
  const gain = library![step]! / own![step]!
  const kept = own![step]! / ownAdapter![step]!
  console.log(`| ${step} | ${cells.join(' | ')} | ${gain.toFixed(2)} | ${kept.toFixed(2)} |`)
}
console.log(
  `\nOne thread reads ${peak.read_gb} GB/s: the weights in ${(weights / peak.read_gb / 1e6).toFixed(1)} ms. It ` +
    `multiplies ${peak.vnni_products} billion pairs of eight bits a second with AVX-512 VNNI, ` +
    `${peak.amx_products} with AMX.`,
)
const one = own!['sequences 1']
if (one !== undefined && threads === 1)
  console.log(`A step of one token uses ${Math.round(weights / peak.read_gb / 1e4 / one)} % of that bandwidth.`)
const slower = steps.filter(
  (step) =>
    own![step]! > library![step]! * (1 + tolerance) || ownAdapter![step]! > libraryAdapter![step]! * (1 + tolerance),
)
if (slower.length > 0) {
  console.log(`Slower than the library: ${slower.join(', ')}.`)
  process.exitCode = 1
}

function run(measurement: Measurement): Record<string, number> {
  const args = [path.join(import.meta.dirname, 'measure.ts'), JSON.stringify(measurement)]
  return JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }))
}

function measurePeak(): { read_gb: number; vnni_products: number; amx_products: number } {
  const program = path.join(folder, 'peak')
  execFileSync('g++', ['-O2', '-march=native', '-o', program, path.join(import.meta.dirname, 'peak.cpp')])
  return JSON.parse(execFileSync(program, { encoding: 'utf8' }))
}

/** The base in eight bits, and an adapter of rank 16 on all layers. */
async function makeFiles(): Promise<void> {
  mkdirSync(folder, { recursive: true })
  if (existsSync(adapter)) return
  const llama = openLibrary(path.join(root, '.local/llama/lib'))
  const params = { ...llama.llama_model_quantize_default_params(), nthread: 2, ftype: 7, allow_requantize: true }
  const status = await callAsync<number>((done) => llama.llama_model_quantize.async(source, model, params, done))
  if (status !== 0) throw new Error(`The library could not write ${source} in eight bits.`)
  try {
    execFileSync(path.join(root, '.local/python/bin/python'), ['-m', 'bench.steps.make_adapter', model, adapter], {
      cwd: root,
      stdio: 'inherit',
    })
  } catch (error) {
    rmSync(adapter, { force: true })
    throw error
  }
}
