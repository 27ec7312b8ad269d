// Limits on the cost of grammars: hostile schemas end in time and delay nobody else. The tests measure time, so nothing
// else may run beside them (scripts/test.ts).
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { after, test } from 'node:test'
import type { ApiError } from '../../../contract/errors.ts'
import { prepareConversation } from '../../../engine/chat/conversation.ts'
import { writeEbnf } from '../../../engine/grammar/ebnf.ts'
import { createGrammars, type GrammarSession } from '../../../engine/grammar/grammars.ts'
import { schemaRules } from '../../../engine/grammar/schema-rules.ts'
import { allowed } from '../../support/allowed-time.ts'
import { full } from '../../support/full.ts'
import { ask, modelOf } from './chat-models.ts'
import { refused } from './grammar-schemas.ts'
import { allowedTokens, nextMask, realVocab, seeded, walk } from './grammar-walk.ts'

const vocab = await realVocab()
const grammars = createGrammars()
after(() => grammars.close())
const open = (schema: Record<string, unknown>) => grammars.open(vocab, { kind: 'json_schema', schema })

function nested(levels: number) {
  let schema: Record<string, unknown> = {}
  for (let level = 0; level < levels; level++) schema = { items: schema }
  return schema
}
const hostile: Record<string, Record<string, unknown>> = {
  'a slow pattern': { type: 'string', pattern: '^(.{1,30}){1,30}$' },
  '10,000 levels': nested(10_000),
  'an enum of a megabyte': { enum: Array.from({ length: 1_000 }, (_, index) => String(index).padEnd(1_000, 'x')) },
  'references that double': {
    $ref: '#/$defs/d0',
    $defs: Object.fromEntries(
      Array.from({ length: 60 }, (_, n) => [
        `d${n}`,
        n === 59
          ? { const: 1 }
          : {
              type: 'array',
              prefixItems: [{ $ref: `#/$defs/d${n + 1}` }, { $ref: `#/$defs/d${n + 1}` }],
              items: false,
            },
      ]),
    ),
  },
  'alternatives that are all alike': {
    type: 'array',
    items: {
      anyOf: Array.from({ length: 500 }, (_, n) => ({
        type: 'array',
        items: { anyOf: [{ type: 'string' }, { type: 'string', maxLength: n }] },
      })),
    },
  },
  'repeated repetitions': { type: 'string', pattern: '^((((a{1,20}){1,20}){1,20}){1,20}){1,20}$' },
}
const levels = (count: number, around: (inner: object) => object) =>
  Array.from({ length: count }).reduce<object>(around, { type: 'integer' })
const named = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, index) => [`p${index}`, {}]))
const costlyToWrite: Record<string, object> = {
  'arrays in arrays': levels(60, (items) => ({ items })),
  'other properties in other properties': levels(60, (additionalProperties) => ({
    type: 'object',
    required: ['a', 'b', 'c'],
    additionalProperties,
  })),
  'thousands of optional properties': { type: 'object', properties: named(4_900), additionalProperties: false },
  'texts that begin alike': { enum: Array.from({ length: 600 }, (_, index) => 'x'.repeat(index)) },
  'cases that are compared again and again': {
    $defs: Object.fromEntries(
      Array.from({ length: 100 }, (_, n) => [
        `d${n}`,
        { enum: Array.from({ length: 130 }, (_, index) => 1_000 * n + index) },
      ]),
    ),
    anyOf: Array(30).fill({ oneOf: Array.from({ length: 100 }, (_, n) => ({ $ref: `#/$defs/d${n}` })) }),
  },
  'a pattern of alternatives': { type: 'string', pattern: `^(${'a|'.repeat(90_000)}b)$` },
  'ranges of numbers': {
    anyOf: Array.from({ length: 2_400 }, (_, n) => ({
      type: 'integer',
      minimum: -98_765_432_109_876 + n,
      maximum: 123_456_789_012_345 + n,
    })),
  },
}
for (const [name, schema] of Object.entries(costlyToWrite))
  test(`a schema does not block the decode thread: it is converted in linear time or rejected: ${name}`, () => {
    const began = performance.now()
    try {
      writeEbnf(schemaRules(schema))
    } catch (error) {
      assert.ok(refused()(error), String(error))
    }
    // About 100 ms on an idle machine. Without the limits, seconds and more memory than there is.
    assert.ok(performance.now() - began < allowed(1_500), `it took ${performance.now() - began} ms`)
  })

test('hostile schemas end within their limits and do not delay the masks of another session', full, async () => {
  const other = await open({ type: 'array', items: { type: 'integer' } })
  let longest_ms = 0
  let going = true
  const bystander = (async () => {
    const random = seeded(3)
    while (going) {
      const began = performance.now()
      const allowed = allowedTokens(await nextMask(other), vocab.size).filter(
        (token) => !vocab.isEndOfGeneration(token) && !Buffer.from(vocab.bytes(token)).includes(']'),
      )
      longest_ms = Math.max(longest_ms, performance.now() - began)
      other.accept(allowed[Math.floor(random() * allowed.length)]!)
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
  })()
  for (const [name, schema] of Object.entries(hostile)) {
    const began = performance.now()
    const session = await open(schema).catch((error: unknown) => {
      assert.ok(refused()(error), `${name}: ${error}`)
      return null
    })
    if (session) await nextMask(session)
    session?.close()
    assert.ok(performance.now() - began < allowed(12_000), `${name} took ${performance.now() - began} ms`)
  }
  going = false
  await bystander
  other.close()
  assert.ok(longest_ms < allowed(1_000), `a mask took ${longest_ms} ms`)
})

const costly = (number: number) => ({
  type: 'string',
  pattern: `^((((a{1,20}){1,20}){1,20}){1,20}){1,${20 + number}}$`,
})
const small = (number: number) => ({
  type: 'object',
  properties: { [`a${number}`]: { type: 'integer' } },
  additionalProperties: false,
})

test('beside twenty busy programs an ordinary schema is as cheap as alone', full, async () => {
  const own = createGrammars()
  const loops = Array.from({ length: 20 }, () => spawn('sh', ['-c', 'while :; do :; done'], { stdio: 'ignore' }))
  try {
    // Each costly schema would keep a worker of its own, of which there are four: a fifth would be refused.
    const sessions: GrammarSession[] = []
    for (let number = 20; number < 26; number++)
      sessions.push(await own.open(vocab, { kind: 'json_schema', schema: small(number) }))
    for (const session of sessions) session.close()
  } finally {
    for (const loop of loops) loop.kill('SIGKILL')
    await own.close()
  }
})

test('ten costly schemas of an account delay others by a slice, and end as their client disconnects', async () => {
  const grammars = createGrammars({ account_trials: 10 })
  const ask = (schema: object, account: string, signal?: AbortSignal) =>
    grammars.open(vocab, { kind: 'json_schema', schema: { ...schema } }, signal, account)
  const time = async (number: number) => {
    const began = performance.now()
    const session = await ask(small(number), 'other')
    session.close()
    return performance.now() - began
  }
  await time(0)
  const usual_ms = Math.max(await time(1), await time(2))

  const left = new AbortController()
  const attacks = Array.from({ length: 10 }, (_, number) =>
    ask(costly(number), 'one', left.signal).catch((error: unknown) => error),
  )
  await assert.rejects(ask(small(3), 'one'), (error: ApiError) => error.code === 'overloaded')
  const times: number[] = []
  for (let number = 4; number < 10; number++) times.push(await time(number))
  // A slice, plus the start of a worker while other threads compile.
  const most_ms = 8 * usual_ms + 2_500
  assert.ok(Math.max(...times) < allowed(most_ms), `usually ${usual_ms} ms, then ${times.join(', ')}`)

  left.abort(new Error('left'))
  for (const outcome of await Promise.all(attacks)) assert.ok(outcome instanceof Error)
  const began = performance.now()
  const again = await ask(small(11), 'one')
  again.close()
  assert.ok(performance.now() - began < allowed(most_ms), 'aborted trials free their slots')
  await grammars.close()
})

test('a costly tool that is not strict takes any object, others stay enforced, a strict one is named', async () => {
  const grammars = createGrammars({ compile_ms: 300, short_compile_ms: 300 })
  const tool = (name: string, parameters: object, strict: boolean) => ({
    type: 'function',
    function: { name, strict, parameters: { type: 'object', additionalProperties: false, ...parameters } },
  })
  const tools = (strict: boolean) => [
    tool('cheap', { properties: { count: { type: 'integer' } }, required: ['count'] }, false),
    tool('costly', { properties: { text: hostile['a slow pattern'] }, required: ['text'] }, strict),
  ]
  const openFor = (strict: boolean) => {
    const { grammar } = prepareConversation(modelOf('qwen2.5'), ask({ tools: tools(strict), tool_choice: 'required' }))
    return grammars.open(vocab, grammar!)
  }
  for (const [call, next, isAllowed] of [
    ['costly", "arguments": {"anything', '":', true],
    ['cheap", "arguments": {"count": ', '1', true],
    ['cheap", "arguments": {"count": ', '"', false],
  ] as const) {
    const session = await openFor(false)
    for (const token of vocab.tokenize(`<tool_call>\n{"name": "${call}`)) {
      assert.ok(allowedTokens(await nextMask(session), vocab.size).includes(token), call)
      session.accept(token)
    }
    const [token] = vocab.tokenize(next)
    assert.equal(allowedTokens(await nextMask(session), vocab.size).includes(token!), isAllowed, `${call}${next}`)
    session.close()
  }
  await assert.rejects(openFor(true), (error: ApiError) => {
    assert.match(error.message, /of the tool 'costly' is too costly .*Simplify \/properties\/text\/pattern, or leave/)
    assert.deepEqual([error.code, error.param], ['schema_not_enforceable', 'tools.1.function.parameters'])
    return true
  })
  await grammars.close()
})

test('schemas wait their turn: for a trial, and for a worker of their own while others use those', async () => {
  const cheap = createGrammars()
  const openIn = (all: typeof cheap, number: number, account: string, signal?: AbortSignal) =>
    all.open(vocab, { kind: 'json_schema', schema: small(number) }, signal, account)
  const answers = Array.from({ length: 24 }, async (_, number) => (await openIn(cheap, number, 'one')).close())
  await Promise.all(answers)
  await cheap.close()
  // All are costly, and one may be used at a time.
  const grammars = createGrammars({ cheap_compile_ms: 0, costly_workers: 1 })
  const first = await openIn(grammars, 0, 'one')
  const left = new AbortController()
  const leaves = openIn(grammars, 1, 'one', left.signal)
  let isOpen = false
  const waits = openIn(grammars, 2, 'other').then((session) => {
    isOpen = true
    return session
  })
  await nextMask(first)
  left.abort(new Error('left'))
  await assert.rejects(leaves, /left/)
  assert.ok(!isOpen, 'the worker is in use')
  first.close()
  const second = await waits
  second.close()
  await grammars.close()
})

test('a session with a slow mask fails alone; the other sessions of its worker continue', async () => {
  // One probed mask, the cheap first, lets a pattern pass its trial whose later masks take 300 ms and more.
  const grammars = createGrammars({ mask_ms: 100, probe_masks: 1, cheap_mask_ms: 10_000, cheap_compile_ms: 10_000 })
  const others: GrammarSession[] = []
  for (let index = 0; index < 3; index++) others.push(await grammars.open(vocab, { kind: 'json_object' }))
  const tokens = vocab.tokenize('{"a": [1, 2')
  for (const session of others)
    for (const token of tokens) {
      await nextMask(session)
      session.accept(token)
    }
  const before = allowedTokens(await nextMask(others[0]!), vocab.size)
  const slow = await grammars.open(vocab, {
    kind: 'json_schema',
    schema: { type: 'string', pattern: '^(.{1,5}){1,5}$' },
  })
  const [more] = vocab.tokenize('1')
  await assert.rejects(walk(slow, vocab, seeded(1), 400), refused())
  // Accepted while there is no worker: the new worker must replay it too.
  for (const session of others) session.accept(more!)
  for (const session of others) assert.deepEqual(allowedTokens(await nextMask(session), vocab.size), before)
  for (const session of [...others, slow]) session.close()
  await grammars.close()
})
