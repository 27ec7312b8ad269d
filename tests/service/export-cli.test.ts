// `./tunery export` against a slow, broken or hostile service: a fake server with scripted
// answers.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, beforeEach, test } from 'node:test'
import { promisify } from 'node:util'
import { downloadExport } from '../../cli/remote/export.ts'
import { UsageError } from '../../cli/support/errors.ts'
import { root } from '../../lib/root.ts'

const bytes = Buffer.alloc(200_000, 'weights')
const sha256 = createHash('sha256').update(bytes).digest('hex')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-cli-'))
const here = path.join(folder, 'here')
let file = { name: 'm.gguf', size_bytes: bytes.length, sha256 }
let answer: (route: string, times: number, response: http.ServerResponse) => boolean = () => false
let requests: string[] = []
const server = http.createServer((request, response) => {
  const route = request.url!.replace(/^.*exp_1/, '').replace(/\?.*/, '')
  requests.push(route)
  if (answer(route, requests.filter((request) => request === route).length, response)) return
  if (route === '/download') response.end(bytes)
  else if (route === '/events')
    response.end(`${JSON.stringify({ type: 'status', seq: 1, message: 'Ready.', data: { status: 'ready' } })}\n`)
  else response.end(JSON.stringify({ id: 'exp_1', status: 'ready', files: [file] }))
})
before(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  process.env.TUNERY_URL = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  process.env.TUNERY_KEY = 'a key'
})
beforeEach(() => {
  rmSync(here, { recursive: true, force: true })
  mkdirSync(here)
  requests = []
  answer = () => false
  file = { name: 'm.gguf', size_bytes: bytes.length, sha256 }
})
after(() => {
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})
const bring = () => downloadExport('exp_1', { output: here })

test('whatever a service calls a file, it is saved in the given folder', async () => {
  file.name = '../../outside.gguf'
  assert.equal((await bring()).target, path.join(here, 'outside.gguf'))
  assert.deepEqual(readFileSync(path.join(here, 'outside.gguf')), bytes)
  file.sha256 = '/../../../x'
  await assert.rejects(bring(), UsageError)
  assert.deepEqual([readdirSync(folder), readdirSync(here)], [['here'], ['outside.gguf']])
})

test('responses without a byte are retried with a delay, not in a tight loop', async () => {
  const until_ms = performance.now() + 600
  answer = (route, _, response) => {
    if (route !== '/download' || performance.now() > until_ms) return false
    response.end()
    return true
  }
  await bring()
  assert.ok(requests.filter((route) => route === '/download').length <= 4, String(requests.length))
})

test('an overloaded or restarting service is waited for while an export is followed', async () => {
  answer = (route, times, response) => {
    if (times > 1 || route !== '/events') return false
    response
      .writeHead(503)
      .end(JSON.stringify({ error: { code: 'shutting_down', message: 'The service is stopping.' } }))
    return true
  }
  await bring()
  assert.deepEqual(readFileSync(path.join(here, 'm.gguf')), bytes)
})

test('an address without a server, or without this service, is reported as such', async () => {
  answer = (_route, _times, response) => Boolean(response.end('<html>Hello</html>'))
  for (const [url, pattern] of [
    ['http://127.0.0.1:1/v1', /^http:\/\/127\.0\.0\.1:1\/v1 cannot be reached: .*\n$/],
    [process.env.TUNERY_URL!, /^http:.* answered 200 without JSON\. TUNERY_URL is .*\n$/],
  ] as const) {
    const run = promisify(execFile)(path.join(root, 'tunery'), ['export', 'mdl_1', '--format', 'gguf'], {
      env: { ...process.env, TUNERY_URL: url },
    })
    const { code, stderr } = await run.then(
      () => assert.fail('it should have failed'),
      (error: { code: number; stderr: string }) => error,
    )
    assert.equal(code, 2, stderr)
    assert.match(stderr, pattern)
  }
})
