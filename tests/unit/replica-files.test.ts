// What replicas of a deployment read: the projector counts for their memory, goes to our engine in a cluster, and vLLM
// is not asked for models whose answers about pictures could not be compared with their training.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { ApiError } from '../../contract/errors.ts'
import { servesPictures } from '../../server/features/hub/index.ts'
import { createTargetFiles } from '../../server/features/scaling/ray/target-files.ts'
import { bytesOf } from '../../server/features/scaling/reconciler.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-replica-'))
after(() => rmSync(folder, { recursive: true }))
const file = (name: string, bytes: number) => {
  writeFileSync(path.join(folder, name), Buffer.alloc(bytes))
  return path.join(folder, name)
}
const artifacts = { ensureLocal: async (key: string) => key }
const projector = { path: file('mmproj.gguf', 300), sha256: 'a'.repeat(64) }
const target = {
  base: { id: 'test/eye', gguf: file('model.gguf', 1000), projector },
  adapter: { id: 'mdl_1', gguf: file('adapter.gguf', 20) },
}

const keeps = () => true

test('a replica’s expected memory has its base, projector and adapter', async () => {
  assert.equal(await bytesOf(target, artifacts, keeps), 1320)
  assert.equal(await bytesOf({ base: { ...target.base, projector: null } }, artifacts, keeps), 1000)
})

test('in a cluster our engine gets the projector; vLLM does not serve what was trained on pictures', async () => {
  const files = createTargetFiles({ models: { expected: async () => undefined }, artifacts, models_dir: folder })
  const sent = await files.forEngine(target)
  assert.deepEqual(sent.projector, servesPictures() ? { id: 'test/eye', ...projector } : undefined)
  await assert.rejects(files.forVllm(target), (error) => {
    assert.ok(error instanceof ApiError && error.param === 'instance_type')
    assert.match(error.message, /'mdl_1' was trained on a base that reads pictures.*instance type 'ray'/)
    return true
  })
})

test('a replica’s expected memory has the form of the base that is served', async () => {
  const copy = file('model.eight-bits.gguf', 540)
  const { mtime } = statSync(target.base.gguf)
  utimesSync(copy, mtime, mtime)
  assert.equal(await bytesOf(target, artifacts, () => false), 860)
  assert.equal(await bytesOf(target, artifacts, keeps), 1320, 'the original is kept')
  utimesSync(copy, 1, 1)
  assert.equal(await bytesOf(target, artifacts, () => false), 1320, 'the form of another original')
})
