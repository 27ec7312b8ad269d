// What attention costs at long contexts, the library's kernels and ours, with a KV cache in 16 and in eight bits: `npm
// run bench -- attention [--threads 2] [--rounds 3]`. Milliseconds of processor time of one layer's operation, the
// least of all rounds, which take the kernels in turn: other programs only ever make a run slower.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { instructionSets, kernelsFile } from '../../engine/llama/kernels.ts'

const root = path.resolve(import.meta.dirname, '../..')
const library = path.join(root, '.local/llama/lib')
const folder = path.join(root, '.local/bench/steps')
const { values } = parseArgs({
  options: { threads: { type: 'string', default: '1' }, rounds: { type: 'string', default: '3' } },
})
const [threads, rounds] = [Number(values.threads), Number(values.rounds)]
if (!(Number.isInteger(threads) && threads >= 1 && Number.isInteger(rounds) && rounds >= 1))
  throw new Error('--threads and --rounds are numbers from 1 on.')

/** Numbers of a head, query heads, heads of keys: of Qwen3-0.6B and of SmolLM2-135M. */
const shapes = { 'Qwen3-0.6B': '128,16,8', 'SmolLM2-135M': '64,9,3' }
/** Tokens of each sequence, keys, sequences. */
const steps = {
  'a token after 2,000': '1,2048,1',
  'a token after 16,000': '1,16384,1',
  'a token after 32,000': '1,32768,1',
  'a token of 8 sequences after 2,000': '1,2048,8',
  '80 tokens after 8,000': '80,8192,1',
  '512 tokens after 16,000': '512,16384,1',
}
const caches = { 'in 16 bits': 'f16', 'in eight bits': 'q8_0' }
const file = instructionSets.map((set) => path.join(library, kernelsFile(set))).find(existsSync)
if (!file) throw new Error("The engine's own kernels are not installed: run npm run setup.")

const program = path.join(folder, 'attention')
mkdirSync(folder, { recursive: true })
execFileSync('g++', ['-O2', '-o', program, path.join(import.meta.dirname, 'attention.cpp'), '-ldl'])
const least = new Map<string, number>()
for (let round = 0; round < rounds; round++)
  for (const shape of Object.values(shapes))
    for (const step of Object.values(steps))
      for (const cache of Object.values(caches))
        for (const kernels of ['library', file]) {
          // The library takes minutes for a prompt with a cache in eight bits.
          if (kernels === 'library' && cache === 'q8_0' && step.startsWith('512')) continue
          const key = `${kernels} ${cache},${shape},${step}`
          const args = [library, kernels, String(threads), `${cache},${shape},${step}`]
          const out = execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] })
          least.set(key, Math.min(least.get(key) ?? Number.POSITIVE_INFINITY, Number(out)))
        }

for (const [name, shape] of Object.entries(shapes)) {
  console.log(`\n${name}, milliseconds of processor time of a layer, ${threads} threads\n`)
  console.log(`| step | library | own | ${Object.keys(caches)[1]}: library | own |`)
  console.log('|---|---|---|---|---|')
  for (const [what, step] of Object.entries(steps)) {
    const cells = Object.values(caches).flatMap((cache) =>
      ['library', file].map((kernels) => least.get(`${kernels} ${cache},${shape},${step}`)?.toFixed(2) ?? '–'),
    )
    console.log(`| ${what} | ${cells.join(' | ')} |`)
  }
}
