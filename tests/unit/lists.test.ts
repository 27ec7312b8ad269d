// Lists that are longer than a request may have are refused by their length, not by each of their items.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BatchRequest, ChatRequest } from '../../contract/chat.ts'
import { CompletionRequest } from '../../contract/completions.ts'
import { EmbeddingsRequest } from '../../contract/embeddings.ts'

const model = 'm'
const many = (value: unknown, count = 300_000) => new Array<unknown>(count).fill(value)
const chat = (fields: object) => ChatRequest.safeParse({ model, messages: [{ role: 'user', content: 'x' }], ...fields })
const prompt = (given: unknown) => CompletionRequest.safeParse({ model, prompt: given })
const input = (given: unknown) => EmbeddingsRequest.safeParse({ model, input: given })

test('of a list that is far too long one thing is said, however many of its items are wrong', () => {
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

test('texts and tokens are taken in each of their four forms, and mixtures are not', () => {
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
