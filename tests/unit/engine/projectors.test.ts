// Projectors of adapters: kept in memory within a limit, and read again when they are used.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import type { Library } from '../../../engine/llama/library.ts'
import type { Model } from '../../../engine/llama/model.ts'
import type { Encoder } from '../../../engine/vision/encoder.ts'
import { createProjectors } from '../../../engine/vision/projectors.ts'

const folder = mkdtempSync(path.join(tmpdir(), 'tunery-projectors-'))
after(() => rmSync(folder, { recursive: true }))

/** Room for two files of 4 bytes. `calls`: what the encoder was told, as in `load 1`. */
function setUp() {
  const calls: string[] = []
  const encoder: Encoder = {
    async call(request) {
      calls.push(`${request.kind} ${(request as { projector: number }).projector}`)
      return { is_non_causal: false, probe: [] } as never
    },
  }
  const library = { dir: folder, llama_supports_gpu_offload: () => false } as unknown as Library
  const model = { handle: 0n, vector_length: 2, vocab: { special_tokens: [] } } as unknown as Model
  const projectors = createProjectors(library, encoder, 1, 8)
  const file = (name: string, content = name) => {
    const written = path.join(folder, name)
    writeFileSync(written, content.padEnd(4))
    return written
  }
  const load = (name: string) => projectors.load(model, file(name), { evictable: true })
  const use = (projector: Awaited<ReturnType<typeof load>>) =>
    projectors.using(projector, async () => calls.push('used'))
  return { projectors, model, file, load, use, calls }
}

test('the least recently used projector of an adapter is evicted, that of a base never', async () => {
  const { projectors, model, file, load, use, calls } = setUp()
  await projectors.load(model, file('base'))
  const [one] = [await load('one'), await load('two')]
  await use(one)
  await load('more')
  assert.deepEqual(calls, ['load 1', 'load 2', 'load 3', 'used', 'unload 3', 'load 4'])
  assert.equal(projectors.evictableBytes(), 8)
})

test('one that was evicted is read again when it is used, once for all, unless its file has changed', async () => {
  const { file, load, use, calls } = setUp()
  const one = await load('one')
  await load('two')
  await load('more')
  calls.length = 0
  await Promise.all([use(one), use(one)])
  assert.deepEqual(calls, ['unload 2', 'load 1', 'used', 'used'])
  await load('four')
  await load('five')
  file('one', 'else')
  await assert.rejects(use(one), /is not the file that belongs to the model/)
  file('one')
  await use(one)
})

test('one that is in use is neither evicted nor unloaded', async () => {
  const { projectors, load, use, calls } = setUp()
  const one = await load('one')
  let release = () => {}
  const using = projectors.using(one, () => new Promise<void>((resolve) => (release = resolve)))
  await load('two')
  await load('more')
  assert.ok(!calls.includes('unload 1'), calls.join())
  const unloaded = projectors.unload(one)
  await new Promise(setImmediate)
  assert.ok(!calls.includes('unload 1'), calls.join())
  release()
  await Promise.all([using, unloaded])
  assert.equal(calls.at(-1), 'unload 1')
  await assert.rejects(use(one), /unloaded/)
})
