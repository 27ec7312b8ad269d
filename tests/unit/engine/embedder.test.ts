// The order in which the engine embeds the texts of several accounts.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createEmbedder } from '../../../engine/embeddings/embedder.ts'
import type { Context } from '../../../engine/llama/context.ts'
import type { ServedModel } from '../../../engine/models/models.ts'

test('a request of 2,048 texts delays the text of another account by one batch', async () => {
  const batches: number[][] = []
  // What the embedder calls of the library's context: the texts of a batch, by their first token.
  let batch: number[] = []
  const context = {
    truncate() {},
    add(token: number, position: number) {
      if (position === 0) batch.push(token)
    },
    decode() {
      batches.push(batch)
      batch = []
      return 0
    },
    embedding: () => new Float32Array([1, 0]),
    free() {},
  } as unknown as Context
  const served = { model: { context_length: 512, is_bidirectional: true } } as unknown as ServedModel
  const embedder = createEmbedder(
    async () => context,
    { recordCompute() {}, pauseIfDue: () => null, leaveCores() {} } as never,
    { beginWork: () => () => {}, recordProgress() {} },
    { isDecoding: () => false, yieldAfter: async () => {} },
  )
  const { signal } = new AbortController()
  const texts = (account: number, count: number) => Array.from({ length: count }, () => [account, 0, 0])
  const many = embedder.embed(served, texts(1, 2048), { account: 'a', signal })
  const others = [2, 3].map((account) => embedder.embed(served, texts(account, 2), { account: `${account}`, signal }))
  await Promise.all(others)
  assert.ok(batches.length <= 2, `after ${batches.length} batches`)
  assert.equal((await many).length, 2048)
  assert.equal(batches.flat().length, 2052)
})
