// Files of exports sent to a hub of this test's own.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { createPush } from '../server/exports/push.ts'
import { type UploadHub, uploadHub } from './support/upload-hub.ts'

const token = 'hf_of_the_operator'
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-push-'))
const contents = { 'README.md': Buffer.from('# A model'), 'onnx/model.onnx': randomBytes(100_000) }
const files = Object.entries(contents).map(([name, content]) => {
  const file = path.join(folder, name.replaceAll('/', '-'))
  writeFileSync(file, content)
  return { name, path: file }
})
let hub: UploadHub
before(async () => {
  hub = await uploadHub(token)
})
after(() => {
  hub.close()
  rmSync(folder, { recursive: true })
})

const never = new AbortController().signal

test('files go into a repository that only its owner sees, small ones and large ones, also where it is there already', async () => {
  const told: number[] = []
  const push = createPush({ url: hub.url, token })
  for (let times = 0; times < 2; times++)
    assert.deepEqual(await push('team/model', files, 'An export', (done) => told.push(done), never), { repository: 'team/model', url: `${hub.url}/team/model` })
  assert.deepEqual(Object.fromEntries(hub.repositories.get('team/model')!), contents)
  assert.deepEqual(hub.open, [])
  assert.ok(told.length > 0 && told.every((done) => done >= 0 && done <= 1))
})

test('a hub that refuses, or that is not there, is told with its reason and without the token', async () => {
  for (const [url, wrong, says] of [
    [hub.url, 'hf_wrong', /401/],
    ['http://127.0.0.1:1', token, /did not take the files/],
  ] as const)
    await assert.rejects(
      createPush({ url, token: wrong })('team/other', files, 'x', () => {}, never),
      (error: Error & { code: string }) => {
        assert.equal(error.code, 'push_failed')
        assert.match(error.message, says)
        assert.ok(!error.message.includes(wrong))
        return true
      },
    )
  assert.ok(!hub.repositories.has('team/other'))
})
