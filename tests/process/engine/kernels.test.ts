// Our own kernels against those of the library, and against themselves in other batches.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { addKernels, exponentials, largest } from '../../../engine/llama/kernels.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import { quantize } from '../../../engine/llama/quantize.ts'
import { logSumExp } from '../../../engine/sampling/logprobs.ts'
import { createDraw, createTopK } from '../../../engine/sampling/sampler.ts'
import { tiny, tinyModelsDir, wide } from '../../support/tiny.ts'
import { type Engine, modelName, modelPath, ownKernels, root, startEngine } from './engine-process.ts'

const text =
  'A ferry crosses the bay every morning at six. On board are bakers, nurses and two carpenters, who share one ' +
  'newspaper and argue about the weather until the harbour of the other side comes into sight. '
const skip = ownKernels ? false : 'our own kernels are not installed here, or not for this processor'
const eightBits = ['--model', `${modelName}=${modelPath}`]
const folder = mkdtempSync(path.join(tmpdir(), 'tunery-kernels-'))
after(() => rmSync(folder, { recursive: true }))
/** A model whose weights stay in the form of its file. */
const keptIn = (type: string) => ['--model', `${modelName}=${path.join(folder, `${type}.gguf`)}`, '--no-eight-bits']
// The third number is how far a prompt may be from itself in another batch: the library computes the router of a
// mixture, in an order that depends on the batch and on the processor. A number that is then rounded otherwise in
// attention, to eight bits in tiles, makes 3e-4 of it.
const kinds: [name: string, args: string[], allowed: number][] = [
  ['in eight bits', eightBits, 0],
  ['with experts in eight bits', keptIn('Q8_0'), 2e-3],
  ['in bfloat16', keptIn('BF16'), 0],
  ['with a cache in eight bits', [...eightBits, '--eight-bit-cache'], 0],
  ['with experts, and a cache in eight bits', [...keptIn('Q8_0'), '--eight-bit-cache'], 2e-3],
  ['in four and six bits', keptIn('Q4_K_M'), 0],
  ['with experts in four and six bits', keptIn('Q4_K_M-experts'), 2e-3],
]
const engines = new Map<string, Engine>()
before(async () => {
  if (skip) return
  // Heads of another length than those of the other models, which our attention has too.
  const experts = { family: 'Qwen3Moe', head_dim: 256, num_experts: 8, num_experts_per_tok: 2 }
  // A block of four or six bits is 256 weights of a row.
  const wider = { ...wide, hidden_size: 512, num_attention_heads: 8 }
  for (const [name, type, config] of [
    ['BF16', 'BF16', wide],
    ['Q8_0', 'Q8_0', { ...wide, ...experts, moe_intermediate_size: 96 }],
    ['Q4_K_M', 'Q4_K_M', wider],
    ['Q4_K_M-experts', 'Q4_K_M', { ...wider, ...experts, moe_intermediate_size: 256 }],
  ] as const) {
    const source = path.join(tinyModelsDir(config), tiny, 'model.gguf')
    const options = { source, out: path.join(folder, `${name}.gguf`), type, threads: 1, importance: undefined }
    await quantize(openLibrary(`${root}/.local/llama/lib`), { ...options, onProgress() {} })
  }
  for (const [kind, args] of kinds) engines.set(kind, await startEngine(args))
})
after(() => Promise.all([...engines.values()].map((engine) => engine.stop())))

/** Log-probabilities of five tokens after a prompt; with `echo` of the prompt's tokens too. */
async function logprobs(engine: Engine, prompt: string, echo: boolean, account = 'a'): Promise<number[]> {
  const body = { model: modelName, prompt, max_tokens: 5, temperature: 0, logprobs: 1, echo }
  const { json } = await engine.ask('POST', '/v1/completions', body, { 'x-tunery-account': account })
  return (json.choices[0].logprobs.token_logprobs as (number | null)[]).filter((logprob) => logprob !== null)
}

for (const [kind, args] of kinds)
  test(`answers of a model ${kind} are as probable as with the kernels of the library`, { skip }, async () => {
    const library = await startEngine([...args, '--no-kernels'])
    try {
      const [ours, theirs] = [await logprobs(engines.get(kind)!, text, true), await logprobs(library, text, true)]
      const differences = ours.map((value, index) => Math.abs(value - theirs[index]!))
      const mean = differences.reduce((sum, difference) => sum + difference, 0) / differences.length
      // Each is 0.08 from sums in 32 bits: activations have eight bits in both (decision 010).
      assert.ok(mean < 0.2, `${mean} nats on average: ${differences}`)
      assert.ok(mean > 0, 'two engines with the same kernels')
    } finally {
      await library.stop()
    }
  })

// Attention to more than 512 keys is computed in parts: as work of their own where there are few sequences. The short
// prompts are few tokens alone and part of many beside others, for which there are other kernels.
for (const [kind, , allowed] of kinds)
  test(`a prompt has the same probabilities alone and beside others, ${kind}`, { skip }, async () => {
    const engine = engines.get(kind)!
    const prompts = [
      'A ferry crosses the bay',
      ...[1, 12, 1, 2].map((times, index) => `${index}. ${text.repeat(times)}`),
      'On board are bakers',
    ]
    const alone: number[][] = []
    for (const prompt of prompts) alone.push(await logprobs(engine, prompt, false))
    // Accounts share no cache, so all of it is computed again.
    const together = await Promise.all(
      prompts.map((prompt, index) => logprobs(engine, prompt, false, `other ${index}`)),
    )
    if (allowed === 0) return assert.deepEqual(together, alone)
    const differences = together.flatMap((row, at) => row.map((value, token) => Math.abs(value - alone[at]![token]!)))
    assert.ok(Math.max(...differences) < allowed, `${differences}`)
  })

test('a cache in eight bits is another one, and moves to a runner with longer slots', { skip }, async () => {
  const engine = engines.get('with a cache in eight bits')!
  const prompt = `Once. ${text.repeat(5)}`
  const ask = async (more: string) => {
    const body = { model: modelName, prompt: prompt + more, max_tokens: 1, temperature: 0 }
    return (await engine.ask('POST', '/v1/completions', body, { 'x-tunery-account': 'mover' })).json.usage
  }
  const before = await ask('')
  const after = await ask(text.repeat(8))
  assert.ok(before.prompt_tokens < 250 && after.prompt_tokens > 512, JSON.stringify([before, after]))
  assert.ok(after.prompt_tokens_details.cached_tokens >= before.prompt_tokens - 1, JSON.stringify(after))
  const [eight, sixteen] = [engine, engines.get('in eight bits')!].map((each) => logprobs(each, prompt, true, 'b'))
  assert.notDeepEqual(await eight, await sixteen)
})

test('tokens are drawn, and log-probabilities told, as by the sums in TypeScript', { skip }, () => {
  addKernels(openLibrary(`${root}/.local/llama/lib`))
  assert.ok(exponentials, 'the kernels compute weights too')
  const noise = Float32Array.from({ length: 49_157 }, (_, at) => Math.fround(Math.sin(at * 12.9898) * 9))
  const cases = [
    noise,
    Float32Array.from(noise.subarray(0, 1001), (value, at) => (at % 3 === 0 ? -Infinity : value)),
    Float32Array.from([-500, 3, 3, -500, 2]),
    Float32Array.from([1, Number.NaN, 2, Infinity]),
  ]
  for (const logits of cases) {
    const [native, own] = [logSumExp(logits), logSumExp(logits, null)]
    assert.ok(Object.is(native, own) || Math.abs(native - own) < 1e-5, `${native} and ${own}`)
    for (const temperature of [0.3, 1]) {
      const [fast, slow] = [createDraw(temperature, exponentials), createDraw(temperature, null)]
      const places = Array.from({ length: 50 }, (_, at) => (at + 0.5) / 50)
      const unequal = places.filter((at) => fast(logits, null, at) !== slow(logits, null, at))
      // A place may lie between two sums that differ in their last bits.
      assert.ok(unequal.length <= 1, `${unequal.length} of ${places.length} are others`)
    }
  }
  const masked = Uint32Array.from([0b10])
  assert.equal(createDraw(1, exponentials)(Float32Array.from([9, 1, 9]), masked, 0.99), 1)
  assert.equal(createDraw(1, exponentials)(Float32Array.from([9, 1, 9]), new Uint32Array(1), 0.5), -1)
})

test('the largest logits are those that the search in TypeScript finds', { skip }, () => {
  addKernels(openLibrary(`${root}/.local/llama/lib`))
  assert.ok(largest, 'the kernels search too')
  const noise = (at: number) => Math.fround(Math.sin(at * 12.9898) * 40)
  const cases: [numbers: Float32Array, mask: Uint32Array | null][] = [
    [Float32Array.from({ length: 49_157 }, (_, at) => noise(at)), null],
    [
      Float32Array.from({ length: 1001 }, (_, at) => Math.round(noise(at) / 10)),
      Uint32Array.from({ length: 32 }, (_, at) => (at * 0x9e3779b9) >>> 0),
    ],
    [Float32Array.from({ length: 40 }, (_, at) => [Number.NaN, -Infinity, 3, Infinity][at % 4]!), null],
    [new Float32Array(50).fill(1), new Uint32Array(2)],
    [new Float32Array(0), null],
  ]
  for (const size of [1, 3, 100])
    for (const [numbers, mask] of cases) {
      const find = (native: typeof largest) => {
        const { values, tokens, count } = createTopK(size, native).find(numbers, mask)
        return [values.slice(0, count), tokens.slice(0, count)]
      }
      assert.deepEqual(find(largest), find(null))
    }
})
