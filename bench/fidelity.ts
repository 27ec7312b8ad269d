// How far answers are from sums in 32 bits: `npm run bench -- fidelity [--model FILE.gguf] [--texts FILE,…]
// [--types Q8_0,…]`. Each form of a model's weights is served with our kernels and with the library's, which
// llama-server computes with. A table has the mean difference of a token's log-probability from that of the same
// weights in F32, and of the model's own.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { callAsync, openLibrary } from '../engine/llama/library.ts'
import { startEngine } from '../tests/process/engine/engine-process.ts'

const root = path.resolve(import.meta.dirname, '..')
const { values } = parseArgs({
  options: {
    model: { type: 'string', default: path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/model.gguf') },
    types: { type: 'string' },
    texts: { type: 'string', default: 'README.md,docs/decisions/010-weights-in-eight-bits.md,docs/guides/start.md' },
  },
})
/** llama.cpp's numbers of file types. */
const types = { BF16: 32, Q8_0: 7, Q6_K: 18, Q4_K_M: 15, Q4_0: 2 }
/** Characters of each text: about a thousand tokens. */
const length = 3000

const library = openLibrary(path.join(root, '.local/llama/lib'))
const folder = mkdtempSync(path.join(tmpdir(), 'tunery-fidelity-'))
try {
  await main()
} finally {
  rmSync(folder, { recursive: true })
}
// The library's threads would keep the process for a while.
process.exit(0)

async function main(): Promise<void> {
  mkdirSync(folder, { recursive: true })
  const texts = values.texts.split(',').map((file) => readFileSync(path.resolve(root, file), 'utf8').slice(0, length))
  const own = await logprobs(await written(values.model, 'own', 0), texts, ['--no-kernels'])
  console.log(`${own.length} tokens of ${texts.length} texts\n`)
  console.log('| weights | kernels | difference from the same weights in F32, nats | from the model in F32 | mean |')
  console.log('|---|---|---|---|---|')
  const requested = values.types?.split(',')
  for (const [type, number] of Object.entries(types)) {
    if (requested && !requested.includes(type)) continue
    const file = await written(values.model, type, number)
    const same = await logprobs(await written(file, `${type}-F32`, 0), texts, ['--no-kernels'])
    for (const kernels of ['own', "the library's"]) {
      const found = await logprobs(file, texts, kernels === 'own' ? [] : ['--no-kernels'])
      const cells = [difference(found, same), difference(found, own), mean(found.map((each) => -each))]
      console.log(`| ${type} | ${kernels} | ${cells.map((cell) => cell.toFixed(4)).join(' | ')} |`)
    }
  }
}

/** A file with the weights of another in a form. */
async function written(source: string, name: string, type: number): Promise<string> {
  const out = path.join(folder, `${name}.gguf`)
  if (existsSync(out)) return out
  const params = { ...library.llama_model_quantize_default_params(), nthread: 2, ftype: type, allow_requantize: true }
  const status = await callAsync<number>((done) => library.llama_model_quantize.async(source, out, params, done))
  if (status !== 0) throw new Error(`The library could not write ${source} as ${name}.`)
  return out
}

/** The log-probability of each token of the texts, but the first of each. */
async function logprobs(file: string, texts: string[], options: string[]): Promise<number[]> {
  const engine = await startEngine(['--model', `m=${file}`, '--no-eight-bits', ...options])
  try {
    const found: number[] = []
    for (const prompt of texts) {
      const body = { model: 'm', prompt, max_tokens: 1, temperature: 0, logprobs: 1, echo: true }
      const { json } = await engine.ask('POST', '/v1/completions', body, { 'x-tunery-account': 'bench' })
      found.push(...json.choices[0].logprobs.token_logprobs.slice(1, -1))
    }
    return found
  } finally {
    await engine.stop()
  }
}

function difference(one: number[], other: number[]): number {
  return mean(one.map((each, index) => Math.abs(each - other[index]!)))
}

function mean(numbers: number[]): number {
  return numbers.reduce((sum, each) => sum + each, 0) / numbers.length
}
