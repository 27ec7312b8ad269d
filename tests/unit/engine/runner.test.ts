// Batch runner and prefill budget, on a fake context that records its calls.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  createPartTime,
  createPrefillSpeed,
  prefillBudget,
  sharePrefillBudget,
} from '../../../engine/batching/chunked-prefill.ts'
import { createGeneration, type Generation } from '../../../engine/batching/generation.ts'
import { Runner } from '../../../engine/batching/runner.ts'
import type { Context } from '../../../engine/llama/context.ts'
import type { Vocab } from '../../../engine/llama/vocab.ts'
import { createDrafting } from '../../../engine/sampling/drafts/drafter.ts'
import { type PictureSpan, pictureTokens } from '../../../engine/vision/picture-tokens.ts'
import { plainSampling } from './plain-sampling.ts'

const endToken = 0
const vocab: Vocab = {
  size: 256,
  bos: null,
  eos: null,
  bos_text: '',
  eos_text: '',
  wants_bos: false,
  isEndOfGeneration: (token) => token === endToken,
  text: (token) => String.fromCharCode(token),
  bytes: (token) => Buffer.from([token]),
  kind: 'other',
  special_tokens: [],
  longest_token_bytes: 1,
  adds_space_prefix: false,
  fim: null,
  affixes: { before: [], after: [] },
  hasBytePair: () => false,
  tokenize: (text) => [...Buffer.from(text)],
}

const budget = (ms: number) => ({ whole_ms: ms, part_ms: ms })

/** One decode, with the copies and the truncations (sequence and tokens kept) since the one before it. */
interface Call {
  computed: { token: number; position: number; sequence: number }[]
  copies: [number, number][]
  truncations: [number, number][]
}

/** One decode of vectors. */
interface PictureCall {
  vectors: { n_tokens: number; first_position: number; sequence: number }[]
  is_causal: boolean
}

/** A context whose next token is always 'x'. `decodes`: results of the next decodes; then 0. */
function fakeContext(calls: Call[], decodes: number[], pictures: PictureCall[]): Context {
  let vectors: PictureCall['vectors'] = []
  let batch: Call['computed'] = []
  let copies: Call['copies'] = []
  let truncations: Call['truncations'] = []
  return {
    tokens_per_sequence: 2048,
    batchLength: () => batch.length,
    add: (token, position, sequence) => batch.push({ token, position, sequence }) - 1,
    decode() {
      calls.push({ computed: batch, copies, truncations })
      batch = []
      copies = []
      truncations = []
      return decodes.shift() ?? 0
    },
    logits: () => new Float32Array(256).fill(1, 'x'.charCodeAt(0), 'x'.charCodeAt(0) + 1),
    addVectors: ({ n_tokens, first_position }, sequence) => vectors.push({ n_tokens, first_position, sequence }),
    decodeVectors(is_causal) {
      pictures.push({ vectors, is_causal })
      vectors = []
      return 0
    },
    embedding: () => new Float32Array(),
    truncate: (sequence, keep) => truncations.push([sequence, keep]) > 0,
    save: () => null,
    restore: () => true,
    copy: (from, to) => void copies.push([from, to]),
    attach: () => {},
    free: () => {},
  }
}

function makeRunner(
  options: { slots?: number; tokens_per_slot?: number; decodes?: number[]; speculate?: boolean } = {},
) {
  const { slots = 2, tokens_per_slot = 4096, decodes = [], speculate = false } = options
  const calls: Call[] = []
  const pictures: PictureCall[] = []
  let tokens = 0
  const makeContext = () => {
    tokens++
    return fakeContext(calls, decodes, pictures)
  }
  const outgrown: Generation[] = []
  const runner = new Runner({
    vocab,
    context: makeContext(),
    slots,
    tokens_per_slot,
    batch_tokens: 512,
    can_share_prefix: true,
    uses_mrope: false,
    drafting: speculate ? createDrafting(() => null) : null,
    makeContext,
    onFault: (error) => assert.fail(String(error)),
    onOutgrown: (generation) => outgrown.push(generation),
    importPrefix: () => null,
  })
  return { runner, calls, pictures, outgrown, makeLargerContext: makeContext, made: () => tokens }
}

const noPictures: PictureSpan[] = []

interface Request {
  generation: Generation
  text: string
  outcome: string
}

function submit(
  runner: Runner,
  prompt: string | number[],
  { max_tokens = 3, account = '', seed = null as bigint | null, background = false, pictures = noPictures } = {},
): Request {
  const request = { text: '', outcome: 'open' } as Request
  request.generation = createGeneration(
    {
      prompt: typeof prompt === 'string' ? [...Buffer.from(prompt)] : prompt,
      pictures,
      max_tokens,
      stop: [],
      sampling: { ...plainSampling, seed },
      top_logprobs: null,
      control_texts: null,
      grammar: null,
      account,
      background,
    },
    {
      onStart: () => {},
      onText: (text) => {
        request.text += text
        return false
      },
      onEnd: ({ finish_reason }) => {
        request.outcome = finish_reason
      },
      onError: (error) => {
        request.outcome = error.code
      },
    },
  )
  runner.waiting.push(request.generation)
  return request
}

function runToEnd(runner: Runner): void {
  while (runner.step(budget(100)));
}

test('a failed decode fails only the requests in its batch; the rebuilt runner answers the waiting ones', () => {
  const { runner, made } = makeRunner({ slots: 1, decodes: [0, -3] })
  const first = submit(runner, 'abc')
  const second = submit(runner, 'def')
  runToEnd(runner)
  assert.deepEqual([first.outcome, second.outcome, second.text], ['engine_failed', 'length', 'xxx'])
  assert.equal(made(), 2)
})

test('vectors that attend to each other are computed at once, whatever the budget, and beside as many others', () => {
  for (const ms of [1, 1000]) {
    const { runner, pictures } = makeRunner({ slots: 4 })
    const lengths = [200, 200, 300, 200]
    const requests = lengths.map((n_tokens, index) => {
      const prompt = [
        ...Buffer.from('ab'),
        ...pictureTokens(1 + 1000 * index, n_tokens, n_tokens),
        ...Buffer.from('cd'),
      ]
      const vectors = new Float32Array(n_tokens)
      const span = { start: 2, n_tokens, vectors, vector_length: 1, positions: null, is_non_causal: true }
      return submit(runner, prompt, { pictures: [span] })
    })
    while (runner.step(budget(ms)));
    assert.deepEqual(
      requests.map(({ outcome, text }) => [outcome, text]),
      lengths.map(() => ['length', 'xxx']),
    )
    const batches = pictures.map(({ vectors }) => vectors.map(({ n_tokens }) => n_tokens))
    assert.deepEqual(batches.flat().toSorted(), lengths.toSorted(), 'each is whole')
    for (const batch of batches) assert.equal(new Set(batch).size, 1, `${batch} are of one length`)
    // What a step of a small budget takes depends on the time that the ones before it took.
    if (ms > 1) assert.ok(batches.length < lengths.length, 'some are computed together')
    for (const { vectors, is_causal } of pictures) {
      assert.equal(is_causal, false)
      for (const { first_position } of vectors) assert.equal(first_position, 2)
    }
  }
})

test('a cancelled request frees its slot before the next step, even during prefill', () => {
  const { runner, calls } = makeRunner({ slots: 1 })
  const long = submit(runner, 'a'.repeat(1000))
  const next = submit(runner, 'zzz')
  runner.step(budget(100))
  assert.ok(calls[0]!.computed.length < 1000)
  long.generation.cancelled = true
  runner.step(budget(100))
  assert.deepEqual(calls[1]!.computed.map(({ token }) => String.fromCharCode(token)).join(''), 'zzz')
  runToEnd(runner)
  assert.deepEqual([long.outcome, next.outcome], ['open', 'length'])
})

test('the last prefill step drafts the start of the answer, and a rejected draft leaves nothing in the cache', () => {
  for (const [prompt, steps] of [
    ['abcdxxxyyabcd', 1],
    ['abcdqqqyyabcd', 3],
  ] as const) {
    const { runner, calls } = makeRunner({ speculate: true })
    const request = submit(runner, prompt, { max_tokens: 4 })
    runToEnd(runner)
    assert.deepEqual([request.text, calls.length], ['xxxx', steps])
    assert.ok(calls[0]!.computed.length > prompt.length, 'the step that ends the prompt has a draft')
    if (steps === 1) continue
    assert.deepEqual(calls[1]!.truncations, [[0, 13]], 'only the prompt stays in the cache')
    const { token, position } = calls[1]!.computed[0]!
    assert.deepEqual(
      [String.fromCharCode(token), position],
      ['x', 13],
      'the sampled token takes the place of the draft',
    )
  }
})

test('the next request of a conversation computes only its new tokens', () => {
  const { runner, calls } = makeRunner()
  submit(runner, 'a'.repeat(200))
  runToEnd(runner)
  calls.length = 0
  submit(runner, `${'a'.repeat(200)}xxb`)
  runToEnd(runner)
  assert.deepEqual(
    calls[0]!.computed.map(({ position }) => position),
    [202],
  )
})

test('a prefix shared by several requests is computed once and copied', () => {
  const { runner, calls } = makeRunner({ slots: 4 })
  const shared = 's'.repeat(100)
  const requests = ['1', '2', '3'].map((last) => submit(runner, shared + last))
  runToEnd(runner)
  assert.deepEqual(
    requests.map(({ text }) => text),
    ['xxx', 'xxx', 'xxx'],
  )
  const promptTokens = calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0))
  assert.equal(promptTokens.length, 100)
  assert.equal(calls.flatMap(({ copies }) => copies).length, 2)
})

test('no prefix is shared between accounts', () => {
  const { runner, calls } = makeRunner({ slots: 4 })
  for (const account of ['one', 'two']) submit(runner, 's'.repeat(100), { account })
  runToEnd(runner)
  for (const account of ['one', 'three']) submit(runner, 's'.repeat(100), { account })
  runToEnd(runner)
  const promptTokens = calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0))
  // The second request of `one` recomputes only the last token, to sample from it. The other three compute all 100.
  assert.equal(promptTokens.length, 301)
})

test('chunked prefill: prompts advance in bounded chunks while other sequences decode', () => {
  const { runner, calls } = makeRunner({ slots: 2 })
  submit(runner, 'abc', { max_tokens: 50 })
  runner.step(budget(100))
  submit(runner, 'b'.repeat(3000))
  calls.length = 0
  for (let step = 0; step < 3; step++) runner.step(budget(1))
  assert.equal(calls.length, 3)
  for (const { computed } of calls) assert.equal(computed.filter(({ sequence }) => sequence === 0).length, 1)
  assert.ok(calls[0]!.computed.length <= 65, 'the first chunk, before any measurement, is small')
  assert.ok(calls.every(({ computed }) => computed.length <= 512))
})

test('the batch is in ascending order of sequences, as the library requires', () => {
  const { runner, calls } = makeRunner({ slots: 4 })
  submit(runner, 'aaa', { max_tokens: 1 })
  for (const prompt of ['bbb', 'ccc', 'ddd']) submit(runner, prompt, { max_tokens: 5 })
  runner.step(budget(100))
  submit(runner, 'eee', { max_tokens: 5 })
  runToEnd(runner)
  assert.ok(calls.some(({ computed }) => new Set(computed.map(({ sequence }) => sequence)).size > 2))
  for (const { computed } of calls) {
    const sequences = computed.map(({ sequence }) => sequence)
    assert.deepEqual(
      sequences,
      sequences.toSorted((a, b) => a - b),
    )
  }
})

test('a request with a seed computes its whole prompt each time', () => {
  const { runner, calls } = makeRunner()
  for (let round = 0; round < 2; round++) {
    submit(runner, 's'.repeat(100), { seed: 1n })
    runToEnd(runner)
  }
  assert.equal(calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0)).length, 200)
})

test('prompts that delay no stream get the full prefill budget, and runners with prompts get equal shares', () => {
  const runner = (prefilling: number, decoding: number) => ({
    prefilling: () => prefilling,
    decoding: () => decoding,
    decode_ms: () => 10 * decoding,
  })
  const whole = (...runners: ReturnType<typeof runner>[]) => prefillBudget(runners).whole_ms
  const long = whole(runner(1, 0))
  assert.equal(whole(runner(8, 0)), long)
  assert.ok(whole(runner(1, 1)) < long / 2, 'while a stream decodes, the budget is small')
  assert.equal(whole(runner(8, 3)), long)
  assert.equal(whole(runner(1, 0), runner(8, 3), runner(0, 5)), long / 2)
  // Bounds how late a disconnect is noticed.
  assert.ok(long <= 400)
})

test('a long prompt at most doubles the streams’ time per token; one that ends with the step does not wait', () => {
  const streams = { prefilling: () => 1, decoding: () => 2, decode_ms: () => 20 }
  const { part_ms } = prefillBudget([streams])
  assert.ok(part_ms > 10 && part_ms < 20)
  assert.equal(prefillBudget([streams, streams]).part_ms, part_ms, 'two runners with prompts share the time of all')
  const partTime = createPartTime()
  const parts = Array.from({ length: 300 }, () => partTime({ whole_ms: 150, part_ms: 10 }))
  assert.equal(
    parts.reduce((sum, ms) => sum + ms),
    3000,
    'no more than the share of all steps',
  )
  assert.ok(parts.filter((ms) => ms > 0).length <= 150, 'few parts instead of many small ones')
  assert.equal(createPartTime()({ whole_ms: 350, part_ms: 350 }), 350, 'at once while nothing streams')
  const shares = (left: number[], tokens: number, part: number, in_parts = false) => {
    const prompts = left.map((tokens_left, since_ms) => ({ tokens_left, since_ms, in_parts }))
    const shares = sharePrefillBudget(prompts, tokens, part)
    return prompts.map((prompt) => shares.get(prompt) ?? 0)
  }
  assert.deepEqual(shares([2000], 150, 20), [20])
  assert.deepEqual(shares([150], 150, 20), [150])
  assert.deepEqual(shares([150], 150, 20, true), [20], 'the last part of a long one')
  assert.deepEqual(shares([2000, 60, 40], 150, 20), [20, 60, 40])
  assert.deepEqual(shares([2000, 900], 150, Infinity), [38, 112], 'no stream waits')
})

test('the chunk size follows the measured prefill speed, without the cost of the other streams', () => {
  const speed = createPrefillSpeed()
  speed.record(1, 0, 50)
  assert.equal(speed.tokensIn(100), 64)
  speed.record(1, 64, 178)
  assert.equal(speed.tokensIn(100), 50)
  for (let step = 0; step < 20; step++) speed.record(8, 50, 5000)
  assert.equal(speed.tokensIn(100), 16)
})

test('an answer that outgrows its slot migrates with all its tokens and resumes in a longer slot', () => {
  const short = makeRunner({ tokens_per_slot: 8 })
  const request = submit(short.runner, 'abcde', { max_tokens: 10 })
  runToEnd(short.runner)
  assert.deepEqual([short.outgrown.length, request.outcome, request.text], [1, 'open', 'xxxx'])
  const long = makeRunner()
  long.runner.waiting.push(short.outgrown[0]!)
  runToEnd(long.runner)
  assert.deepEqual([request.outcome, request.text], ['length', 'x'.repeat(10)])
  // Its cache could not be moved, so all its tokens were computed again, then the token sampled last.
  assert.equal(long.calls[0]!.computed.map(({ token }) => String.fromCharCode(token)).join(''), 'abcdexxx')
})

test('a runner that grows resumes its sequences, even if their caches cannot be moved', () => {
  const { runner, makeLargerContext } = makeRunner({ slots: 1 })
  const first = submit(runner, 'abc', { max_tokens: 6 })
  runner.step(budget(100))
  runner.step(budget(100))
  const second = submit(runner, 'def', { max_tokens: 6 })
  runner.growInto(makeLargerContext(), 2)
  runToEnd(runner)
  assert.deepEqual([first.outcome, first.text, second.outcome, second.text], ['length', 'xxxxxx', 'length', 'xxxxxx'])
})

test('requests gather in adjacent slots, so that one decode computes them all', () => {
  const { runner, calls } = makeRunner({ slots: 8 })
  const requests = Array.from({ length: 8 }, (_, index) =>
    submit(runner, `${index}${index}`, { max_tokens: index % 3 === 0 ? 60 : 2, account: String(index) }),
  )
  runToEnd(runner)
  assert.ok(requests.every(({ outcome }) => outcome === 'length'))
  const last = calls.at(-1)!.computed.map(({ sequence }) => sequence)
  assert.equal(last.length, 3)
  assert.equal(Math.max(...last) - Math.min(...last), 2)
})

test('a paused background request gives its slot to another one and continues later where it was', () => {
  const { runner, calls } = makeRunner({ slots: 1 })
  const background = submit(runner, 'abc', { max_tokens: 5, background: true })
  runner.step(budget(100))
  runner.step(budget(100))
  assert.equal(background.text, 'xx')
  const other = submit(runner, 'def', { account: 'b' })
  runner.background_paused = true
  runToEnd(runner)
  assert.deepEqual([other.outcome, other.text, background.outcome], ['length', 'xxx', 'open'])
  runner.background_paused = false
  calls.length = 0
  runToEnd(runner)
  assert.deepEqual([background.outcome, background.text], ['length', 'xxxxx'])
  const computed = calls.flatMap((call) => call.computed.map(({ token }) => String.fromCharCode(token)))
  assert.equal(computed.join(''), 'abcxxxx', 'it continues after the tokens that it had')
})

test('a paused background request is not computed, and nobody waits for a prefix that it computes', () => {
  const { runner, calls } = makeRunner({ slots: 2 })
  const shared = 's'.repeat(1000)
  const background = submit(runner, shared, { background: true })
  runner.step(budget(1))
  runner.background_paused = true
  const other = submit(runner, `${shared}1`)
  runToEnd(runner)
  assert.deepEqual([other.outcome, background.outcome], ['length', 'open'])
  assert.equal(calls.at(-1)!.computed.length, 1)
})
