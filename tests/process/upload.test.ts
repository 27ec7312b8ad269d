// A large upload is streamed to disk with constant server memory, and an aborted upload
// leaves nothing.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { client, until } from '../support/client.ts'
import { dataFolder, type RunningServer } from '../support/server.ts'

const folder = dataFolder('upload', { TUNERY_LOG_LEVEL: 'error' })
const { dataDir } = folder
let server: RunningServer
let url: string
let key: string
before(async () => {
  server = await folder.start()
  url = server.url
  key = folder.key()
})
after(async () => {
  await server.end('SIGTERM')
  folder.remove()
})

/** The peak resident memory of the server, in MB. */
const peak_mb = () => Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))![1]) / 1024

const row = Buffer.from(
  `${JSON.stringify({
    messages: [
      { role: 'user', content: 'x'.repeat(900) },
      { role: 'assistant', content: 'y' },
    ],
  })}\n`,
)
const block = Buffer.concat(Array.from({ length: 1000 }, () => row))

function post() {
  const request = http.request(`${url}/datasets/`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'multipart/form-data; boundary=b' },
  })
  request.write('--b\r\nContent-Disposition: form-data; name="file"; filename="big.jsonl"\r\n\r\n')
  return request
}

test('200 MB are hashed and counted with less than 100 MB of additional memory', async () => {
  const hash = createHash('sha256')
  const before = peak_mb()
  const request = post()
  const answer = new Promise<{ rows: number; sha256: string }>((resolve, reject) => {
    request.on('error', reject).on('response', async (response) => {
      let text = ''
      for await (const piece of response) text += piece
      resolve(JSON.parse(text))
    })
  })
  const blocks = Math.ceil(200e6 / block.length)
  for (let count = 0; count < blocks; count++) {
    hash.update(block)
    if (!request.write(block)) await new Promise((resolve) => request.once('drain', resolve))
  }
  // The form's fields may follow its file.
  request.end('\r\n--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nbig\r\n--b--\r\n')
  const dataset = await answer
  assert.equal(dataset.rows, blocks * 1000)
  assert.equal(dataset.sha256, hash.digest('hex'))
  assert.ok(peak_mb() - before < 100, `${Math.round(peak_mb() - before)} MB more`)
})

test('an aborted upload leaves no file and no row', async () => {
  const api = client(url, key).api
  const count = async () => (await api('GET', '/datasets/')).body.items.length
  await until('the rows of the other uploads to be read', async () =>
    (await api('GET', '/datasets/')).body.items.every(({ status }: { status: string }) => status === 'ready'),
  )
  const before = [await count(), readdirSync(path.join(dataDir, 'datasets')).length]
  const request = post().on('error', () => {})
  request.write(block)
  await until('the upload to have begun', () =>
    readdirSync(path.join(dataDir, 'datasets')).some((file) => file.endsWith('.part')),
  )
  request.destroy()
  await until('the partial file to be gone', () =>
    readdirSync(path.join(dataDir, 'datasets')).every((file) => !file.endsWith('.part')),
  )
  assert.deepEqual([await count(), readdirSync(path.join(dataDir, 'datasets')).length], before)
})
