// Exports pushed to a fake hub.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { createPush } from '../../server/features/exports/push.ts'
import { type UploadHub, uploadHub } from '../support/upload-hub.ts'

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

test('small and large files go into a private repository, also if it exists already', async () => {
  const reports: number[] = []
  const push = createPush({ url: hub.url, token })
  for (const isNew of [true, false]) {
    assert.equal(await push.create('team/model', never), isNew)
    const pushed = await push.upload('team/model', files, 'An export', (done) => reports.push(done), never)
    assert.equal(pushed, `${hub.url}/team/model`)
  }
  assert.deepEqual(Object.fromEntries(hub.repositories.get('team/model')!), contents)
  assert.deepEqual(hub.open, [])
  assert.ok(reports.length > 0 && reports.every((done) => done >= 0 && done <= 1))
})

test('a hub that refuses or is down is reported with its reason and without the token', async () => {
  for (const [url, wrong, pattern] of [
    [hub.url, 'hf_wrong', /401/],
    ['http://127.0.0.1:1', token, /did not take the files/],
  ] as const)
    await assert.rejects(
      createPush({ url, token: wrong }).create('team/other', never),
      (error: Error & { code: string }) => {
        assert.equal(error.code, 'push_failed')
        assert.match(error.message, pattern)
        assert.ok(!error.message.includes(wrong))
        return true
      },
    )
  assert.ok(!hub.repositories.has('team/other'))
})

test('a hub that never answers is abandoned when the export is deleted or the service stops', async () => {
  for (const answers of [0, 1, 2]) {
    let requests = 0
    const silent = http.createServer((request, response) => {
      request.resume()
      if (++requests <= answers)
        response.end(JSON.stringify({ url: 'x', files: [{ path: 'README.md', uploadMode: 'regular' }] }))
      else leaving.abort(new Error('deleted'))
    })
    const leaving = new AbortController()
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`
    const push = createPush({ url, token })
    const pushed = push
      .create('team/model', leaving.signal)
      .then(() => push.upload('team/model', files.slice(0, 1), 'x', () => {}, leaving.signal))
    await assert.rejects(Promise.race([pushed, sleep(5000)]), /deleted/, `after ${answers} answers`)
    silent.closeAllConnections()
    silent.close()
  }
})
