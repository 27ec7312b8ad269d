// Lists beyond the limit are rejected by length, not item by item.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BatchRequest, ChatRequest } from '../../contract/chat.ts'
import { CompletionRequest } from '../../contract/completions.ts'
import { EmbeddingsRequest } from '../../contract/embeddings.ts'

const model = 'm'
const many = (value: unknown, count = 300_000) => new Array<unknown>(count).fill(value)
const chat = (fields: object) => ChatRequest.safeParse({ model, messages: [{ role: 'user', content: 'x' }], ...fields })
const prompt = (value: unknown) => CompletionRequest.safeParse({ model, prompt: value })
const input = (value: unknown) => EmbeddingsRequest.safeParse({ model, input: value })

test('a list that is far too long gives one issue, however many of its items are invalid', () => {
  const refused = [
    ...['a', 1, -1, '', null, [], {}, [1]].flatMap((item) => [prompt(many(item)), input(many(item))]),
    input(many(many(-1, 200), 2000)),
    chat({ messages: many(0) }),
    chat({ messages: [{ role: 'user', content: many(0, 3000) }] }),
    chat({ messages: many({ role: 'user', content: many(0, 2000) }, 1000) }),
    chat({ tools: many(0) }),
    BatchRequest.safeParse({ model, requests: many(0) }),
  ]
  for (const { success, error } of refused) {
    assert.equal(success, false)
    assert.equal(error!.issues.length, 1)
  }
})

test('texts and tokens are accepted in all four forms, and mixtures are rejected', () => {
  for (const good of ['a', [1, 2], ['a', 'b'], [[1], [2, 3]]]) {
    assert.ok(prompt(good).success, JSON.stringify(good))
    assert.deepEqual(input(good).data?.input, good)
  }
  for (const bad of [
    '',
    [],
    [''],
    [[]],
    ['a', 1],
    [1, 'a'],
    [[1], 'a'],
    [[1], ['a']],
    [1.5],
    [-1],
    [null],
    {},
    1,
    null,
    undefined,
  ])
    assert.equal(prompt(bad).success, false, JSON.stringify(bad))
})
