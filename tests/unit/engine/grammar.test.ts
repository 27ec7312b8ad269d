// Structured output: generated documents satisfy their schemas, unsupported keywords are rejected, and no request
// blocks another.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import type { ApiError } from '../../../contract/errors.ts'
import { createGrammars, type GrammarSpec } from '../../../engine/grammar/grammars.ts'
import type { Vocab } from '../../../engine/llama/vocab.ts'
import { full } from '../../support/full.ts'
import { enforced, person, refused } from './grammar-schemas.ts'
import { allowedTokens, nextMask, realVocab, seeded, walk } from './grammar-walk.ts'

let vocab: Vocab
before(async () => {
  vocab = await realVocab()
})
const grammars = createGrammars()
after(() => grammars.close())
const open = (schema: Record<string, unknown>) => grammars.open(vocab, { kind: 'json_schema', schema })

/** Complete random documents per schema. */
const documents = process.env.TEST_FULL ? 4 : 1

/** Schemas that allow so much that a random document is long. */
const openEnded = new Set(['anything', 'any object', 'any array', 'long strings'])

for (const [name, schema] of Object.entries(enforced))
  test(`every random document satisfies its schema: ${name}`, openEnded.has(name) ? full : {}, async () => {
    const ajv = new Ajv2020({ strict: false })
    addFormats.default(ajv)
    const validate = ajv.compile(schema)
    let complete = 0
    for (let seed = 1; seed <= 4 && complete < documents; seed++) {
      const session = await open(schema)
      const { text, ended } = await walk(session, vocab, seeded(seed), 400)
      session.close()
      if (!ended) continue
      complete++
      assert.ok(validate(JSON.parse(text)), `${text}: ${ajv.errorsText(validate.errors)}`)
    }
    assert.ok(complete > 0, 'no walk ended')
  })

const cases: [path: string, schema: Record<string, unknown>][] = [
  ...[
    'not',
    'if',
    'patternProperties',
    'dependentRequired',
    'dependentSchemas',
    'contains',
    'unevaluatedProperties',
    'unevaluatedItems',
    'nullable',
    'misspelt',
  ].map((key): [string, Record<string, unknown>] => [
    `/properties/a~1b/${key}`,
    { properties: { 'a/b': { [key]: {} } } },
  ]),
  ['/uniqueItems', { type: 'array', uniqueItems: true }],
  ['/multipleOf', { type: 'integer', multipleOf: 3 }],
  ['/minProperties', { type: 'object', minProperties: 1 }],
  ['/maxProperties', { type: 'object', maxProperties: 1 }],
  ['/propertyNames', { type: 'object', propertyNames: { pattern: '^a' } }],
  ['/format', { type: 'string', format: 'phone' }],
  ['/maxLength', { type: 'string', pattern: '^a+$', maxLength: 5 }],
  ['/pattern', { type: 'string', pattern: '^(?=a)b$' }],
  ['/pattern', { type: 'string', pattern: '(' }],
  ['/allOf', { allOf: [{ type: 'object' }, { required: ['a'] }] }],
  ['/oneOf/1', { oneOf: [{ type: 'integer' }, { type: 'number' }] }],
  ['/anyOf', { anyOf: [] }],
  ['/properties', { anyOf: [{ type: 'null' }], properties: {} }],
  ['/$ref', { $ref: 'https://example.com/schema.json' }],
  ['/$ref', { $ref: '#/$defs/missing' }],
  ['/enum', { enum: [] }],
  ['/required', { type: 'object', properties: {}, required: ['a'], additionalProperties: false }],
  ['', { type: 'integer', minimum: 2, maximum: 1 }],
  ['/minItems', { type: 'array', minItems: 2, maxItems: 1 }],
  ['', { $ref: '#' }],
  ['', { properties: { next: { $ref: '#' } }, required: ['next'] }],
  ['/type', { type: 'date' }],
]
test('unsupported keywords are rejected, with their path', async () => {
  for (const [path, schema] of cases) await assert.rejects(open(schema), refused(path), JSON.stringify(schema))
})

test('all end tokens are allowed exactly where the document is complete', async () => {
  const ends = Array.from({ length: vocab.size }, (_, token) => token).filter((token) => vocab.isEndOfGeneration(token))
  const session = await open(person)
  const text = '{"name": "Bob \\"B\\" é", "age": 33}'
  for (const token of vocab.tokenize(text)) {
    const allowed = allowedTokens(await nextMask(session), vocab.size)
    assert.ok(allowed.includes(token), `${vocab.bytes(token)} is not allowed`)
    assert.ok(
      allowed.every((one) => vocab.bytes(one).length > 0),
      'a control token is allowed inside of the document',
    )
    session.accept(token)
  }
  assert.deepEqual(allowedTokens(await nextMask(session), vocab.size), ends)
  session.accept(ends.at(-1)!)
  assert.deepEqual(allowedTokens(await nextMask(session), vocab.size), ends)
  session.close()
})

test('a forbidden token fails its session, and json_object starts with a brace', async () => {
  const session = await grammars.open(vocab, { kind: 'json_object' })
  const allowed = allowedTokens(await nextMask(session), vocab.size)
  assert.ok(allowed.length > 0 && allowed.every((token) => vocab.bytes(token)[0] === '{'.charCodeAt(0)))
  session.accept(vocab.tokenize('hello')[0]!)
  await assert.rejects(
    async () => await nextMask(session),
    (error: ApiError) => error.code === 'engine_failed',
  )
  session.close()
})

test('a structural tag constrains the text between its markers, and its schemas are validated', async () => {
  const tag = (schema: object): GrammarSpec => ({
    kind: 'structural_tag',
    tag: {
      type: 'triggered_tags',
      triggers: ['<call'],
      tags: [{ type: 'tag', begin: '<call>', content: { type: 'json_schema', json_schema: schema }, end: '</call>' }],
    },
  })
  await assert.rejects(grammars.open(vocab, tag({ not: {} })), refused('/not'))
  const session = await grammars.open(vocab, tag(person))
  for (const token of vocab.tokenize('Well. <call>{"name":"x","age":1')) {
    assert.ok(allowedTokens(await nextMask(session), vocab.size).includes(token))
    session.accept(token)
  }
  const allowed = allowedTokens(await nextMask(session), vocab.size).map((token) =>
    Buffer.from(vocab.bytes(token)).toString(),
  )
  assert.ok(allowed.includes('}') && allowed.every((text) => /^[\d\s}]/.test(text)), allowed.slice(0, 20).join('|'))
  session.close()
})
