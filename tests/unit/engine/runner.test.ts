// The lane's own rules, on a context that only records what it is asked to do.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createGeneration, type Generation } from '../../../engine/batching/generation.ts'
import { createPromptPace, promptTime } from '../../../engine/batching/prefill.ts'
import { createLane, type Lane } from '../../../engine/batching/runner.ts'
import type { Context } from '../../../engine/llama/context.ts'
import type { Vocab } from '../../../engine/llama/vocab.ts'
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
  adds_space: false,
  wrapping: { before: [], after: [] },
  hasPair: () => false,
  tokenize: (text) => [...Buffer.from(text)],
}

type Call = { computed: { token: number; position: number; sequence: number }[]; copies: [number, number][] }

/** A context whose next token is always 'x'; `decodes` are the results of the coming decodes. */
function fakeContext(calls: Call[], decodes: number[]): Context {
  let batch: Call['computed'] = []
  let copies: Call['copies'] = []
  return {
    tokens_per_sequence: 2048,
    batchLength: () => batch.length,
    add: (token, position, sequence) => batch.push({ token, position, sequence }) - 1,
    decode() {
      calls.push({ computed: batch, copies })
      batch = []
      copies = []
      return decodes.shift() ?? 0
    },
    logits: () => new Float32Array(256).fill(1, 'x'.charCodeAt(0), 'x'.charCodeAt(0) + 1),
    embedding: () => new Float32Array(),
    truncate: () => true,
    save: () => null,
    restore: () => true,
    copy: (from, to) => void copies.push([from, to]),
    free: () => {},
  }
}

function makeLane(options: { slots?: number; tokens_per_slot?: number; decodes?: number[]; speculate?: boolean } = {}) {
  const { slots = 2, tokens_per_slot = 4096, decodes = [], speculate = false } = options
  const calls: Call[] = []
  let made = 0
  const makeContext = () => {
    made++
    return fakeContext(calls, decodes)
  }
  const outgrown: Generation[] = []
  const lane = createLane({
    vocab,
    context: makeContext(),
    slots,
    tokens_per_slot,
    batch_tokens: 512,
    can_share_prefix: true,
    speculate,
    makeContext,
    onFault: (error) => assert.fail(String(error)),
    onOutgrown: (generation) => outgrown.push(generation),
    borrow: () => null,
  })
  return { lane, calls, outgrown, wider: makeContext, made: () => made }
}

type Asked = { generation: Generation; text: string; outcome: string }

function ask(lane: Lane, prompt: string, { max_tokens = 3, account = '', seed = null as number | null } = {}): Asked {
  const asked = { text: '', outcome: 'open' } as Asked
  asked.generation = createGeneration(
    {
      prompt: [...Buffer.from(prompt)],
      max_tokens,
      stop: [],
      sampling: { ...plainSampling, seed },
      top_logprobs: null,
      control_texts: null,
      grammar: null,
      account,
    },
    {
      onStart: () => {},
      onText: (text) => {
        asked.text += text
      },
      onEnd: ({ finish_reason }) => {
        asked.outcome = finish_reason
      },
      onError: (error) => {
        asked.outcome = error.code
      },
    },
  )
  lane.waiting.push(asked.generation)
  return asked
}

function runToEnd(lane: Lane): void {
  while (lane.step(100));
}

test('a failed decode fails the requests in it alone: those waiting are answered by the rebuilt lane', () => {
  const { lane, made } = makeLane({ slots: 1, decodes: [0, -3] })
  const first = ask(lane, 'abc')
  const second = ask(lane, 'def')
  runToEnd(lane)
  assert.deepEqual([first.outcome, second.outcome, second.text], ['engine_failed', 'length', 'xxx'])
  assert.equal(made(), 2)
})

test('a cancelled request leaves its slot before the next step, also in the middle of its prompt', () => {
  const { lane, calls } = makeLane({ slots: 1 })
  const long = ask(lane, 'a'.repeat(1000))
  const next = ask(lane, 'zzz')
  lane.step(100)
  assert.ok(calls[0]!.computed.length < 1000)
  long.generation.cancelled = true
  lane.step(100)
  assert.deepEqual(calls[1]!.computed.map(({ token }) => String.fromCharCode(token)).join(''), 'zzz')
  runToEnd(lane)
  assert.deepEqual([long.outcome, next.outcome], ['open', 'length'])
})

test('how an answer begins is guessed in the step of its prompt, and a wrong guess leaves nothing behind', () => {
  for (const [prompt, steps] of [
    ['abcdxxxyyabcd', 1],
    ['abcdqqqyyabcd', 4],
  ] as const) {
    const { lane, calls } = makeLane({ speculate: true })
    const asked = ask(lane, prompt, { max_tokens: 4 })
    runToEnd(lane)
    assert.deepEqual([asked.text, calls.length], ['xxxx', steps])
    assert.equal(calls[0]!.computed.length, 16, 'the columns are filled up')
    assert.equal((calls[1] ?? calls[0])!.computed.find(({ position }) => position === 13)!.position, 13)
  }
})

test('the next turn of a conversation computes only what is new', () => {
  const { lane, calls } = makeLane()
  ask(lane, 'a'.repeat(200))
  runToEnd(lane)
  calls.length = 0
  ask(lane, `${'a'.repeat(200)}xxb`)
  runToEnd(lane)
  assert.deepEqual(
    calls[0]!.computed.map(({ position }) => position),
    [202],
  )
})

test('a beginning that several requests share is computed once and copied', () => {
  const { lane, calls } = makeLane({ slots: 4 })
  const shared = 's'.repeat(100)
  const asked = ['1', '2', '3'].map((last) => ask(lane, shared + last))
  runToEnd(lane)
  assert.deepEqual(
    asked.map(({ text }) => text),
    ['xxx', 'xxx', 'xxx'],
  )
  const promptTokens = calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0))
  assert.equal(promptTokens.length, 100)
  assert.equal(calls.flatMap(({ copies }) => copies).length, 2)
})

test('nothing is shared between accounts', () => {
  const { lane, calls } = makeLane({ slots: 4 })
  for (const account of ['one', 'two']) ask(lane, 's'.repeat(100), { account })
  runToEnd(lane)
  for (const account of ['one', 'three']) ask(lane, 's'.repeat(100), { account })
  runToEnd(lane)
  const promptTokens = calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0))
  // One's second request computes its last token again, to sample from it; the three other requests compute all.
  assert.equal(promptTokens.length, 301)
})

test('prompts advance in bounded pieces while other sequences go on', () => {
  const { lane, calls } = makeLane({ slots: 2 })
  ask(lane, 'abc', { max_tokens: 50 })
  lane.step(100)
  ask(lane, 'b'.repeat(3000))
  calls.length = 0
  for (let step = 0; step < 3; step++) lane.step(1)
  for (const { computed } of calls) assert.equal(computed.filter(({ sequence }) => sequence === 0).length, 1)
  assert.ok(calls[0]!.computed.length <= 65, 'before anything is measured, a piece is small')
  assert.ok(calls.every(({ computed }) => computed.length <= 512))
})

test('the batch is in ascending order of sequences, as the library needs it', () => {
  const { lane, calls } = makeLane({ slots: 4 })
  ask(lane, 'aaa', { max_tokens: 1 })
  for (const prompt of ['bbb', 'ccc', 'ddd']) ask(lane, prompt, { max_tokens: 5 })
  lane.step(100)
  ask(lane, 'eee', { max_tokens: 5 })
  runToEnd(lane)
  for (const { computed } of calls) {
    const sequences = computed.map(({ sequence }) => sequence)
    assert.deepEqual(
      sequences,
      sequences.toSorted((a, b) => a - b),
    )
  }
})

test('who asks for a seed gets the whole prompt computed, the same each time', () => {
  const { lane, calls } = makeLane()
  for (let turn = 0; turn < 2; turn++) {
    ask(lane, 's'.repeat(100), { seed: 1 })
    runToEnd(lane)
  }
  assert.equal(calls.flatMap(({ computed }) => computed).filter(({ token }) => token === 's'.charCodeAt(0)).length, 200)
})

test('prompts that hold up nobody get long pieces, and a lane with one prompt gets as much time as one with many', () => {
  const lane = (prompts: number, answers: number) => ({ prompts: () => prompts, answers: () => answers })
  const long = promptTime([lane(1, 0)])
  assert.equal(promptTime([lane(8, 0)]), long)
  assert.ok(promptTime([lane(1, 1)]) < long / 2, 'a stream waits for a prompt no longer than for a short piece')
  assert.equal(promptTime([lane(8, 3)]), long)
  assert.equal(promptTime([lane(1, 0), lane(8, 3), lane(0, 5)]), long / 2)
  // What a client that leaves may wait for is half a second.
  assert.ok(long <= 400)
})

test('pieces of prompts follow the measured speed, apart from what the other streams cost', () => {
  const pace = createPromptPace()
  pace.measured(1, 0, 50)
  assert.equal(pace.tokens(100), 64)
  pace.measured(1, 64, 178)
  assert.equal(pace.tokens(100), 50)
  for (let step = 0; step < 20; step++) pace.measured(8, 50, 5000)
  assert.equal(pace.tokens(100), 16)
})

test('an answer that outgrows its slot is handed over with all its tokens, and goes on where it was in a longer one', () => {
  const short = makeLane({ tokens_per_slot: 8 })
  const asked = ask(short.lane, 'abcde', { max_tokens: 10 })
  runToEnd(short.lane)
  assert.deepEqual([short.outgrown.length, asked.outcome, asked.text], [1, 'open', 'xxxx'])
  const long = makeLane()
  long.lane.waiting.push(short.outgrown[0]!)
  runToEnd(long.lane)
  assert.deepEqual([asked.outcome, asked.text], ['length', 'x'.repeat(10)])
  // Its cache could not be moved, so it was computed again, the token that was chosen last after it.
  assert.equal(long.calls[0]!.computed.map(({ token }) => String.fromCharCode(token)).join(''), 'abcdexxx')
})

test('a lane that grows goes on with what runs, also where caches cannot be moved', () => {
  const { lane, wider } = makeLane({ slots: 1 })
  const first = ask(lane, 'abc', { max_tokens: 6 })
  lane.step(100)
  lane.step(100)
  const second = ask(lane, 'def', { max_tokens: 6 })
  lane.moveInto(wider(), 2)
  runToEnd(lane)
  assert.deepEqual([first.outcome, first.text, second.outcome, second.text], ['length', 'xxxxxx', 'length', 'xxxxxx'])
})

test('requests gather in neighbouring slots, so that one decode holds them all', () => {
  const { lane, calls } = makeLane({ slots: 8 })
  const asked = Array.from({ length: 8 }, (_, index) =>
    ask(lane, `${index}${index}`, { max_tokens: index % 3 === 0 ? 60 : 2, account: String(index) }),
  )
  runToEnd(lane)
  assert.ok(asked.every(({ outcome }) => outcome === 'length'))
  const last = calls.at(-1)!.computed.map(({ sequence }) => sequence)
  assert.equal(last.length, 3)
  assert.equal(Math.max(...last) - Math.min(...last), 2)
})
