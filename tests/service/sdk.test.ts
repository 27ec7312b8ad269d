// The client library against the real service: typed calls, pages, errors, retries, streams, uploads, webhooks.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { root } from '../../lib/root.ts'
import { operationsOf } from '../../scripts/docs/sdk.ts'
import {
  type CreateEvaluationInput,
  isTuneryError,
  Tunery,
  TuneryConnectionError,
  TuneryError,
  type UploadState,
} from '../../sdk/index.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startReceiver } from '../support/receiver.ts'
import { contractRoutes } from '../support/routes.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let receiver: Awaited<ReturnType<typeof startReceiver>>
let proxy: Awaited<ReturnType<typeof startProxy>>
let tunery: Tunery
before(async () => {
  receiver = await startReceiver()
  app = await startApp({ TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8' })
  proxy = await startProxy(Number(new URL(app.address).port))
  tunery = new Tunery({ baseUrl: `http://127.0.0.1:${proxy.port}/v1`, apiKey: app.key })
})
after(async () => {
  proxy.close()
  await app.stop()
  receiver.stop()
})

/** A TCP proxy whose connections can be cut, as a network's can. */
async function startProxy(target: number) {
  const sockets = new Set<Socket>()
  let connections = 0
  const server = net.createServer((client) => {
    connections++
    const upstream = net.connect(target, '127.0.0.1')
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(socket)
      socket.pipe(other)
      socket
        .on('error', () => {})
        .on('close', () => {
          sockets.delete(socket)
          other.destroy()
        })
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    connections: () => connections,
    cut() {
      for (const socket of sockets) socket.destroy()
    },
    close() {
      server.close()
      this.cut()
    },
  }
}

test('a grader has the range of its scores, as the types of a tuple say', async () => {
  const body: CreateEvaluationInput = {
    model: tiny,
    dataset: 'ds_none',
    graders: [
      {
        type: 'score_model',
        name: 'judge',
        model: tiny,
        input: [{ role: 'user', content: 'Score it.' }],
        range: [0, 10],
      },
    ],
  }
  await assert.rejects(tunery.evaluations.create(body), { code: 'dataset_not_found' })
})

test('every operation of the contract is a method of the client', async () => {
  const methods = operationsOf().map(({ route }) => `${route.method} ${route.path}`)
  const routes = (await contractRoutes()).map(({ method, path: address }) => `${method} ${address}`)
  assert.deepEqual(
    routes.filter((each) => !methods.includes(each)),
    [],
  )
  assert.equal(new Set(methods).size, methods.length, 'an operation stands twice')
  for (const { path: names } of operationsOf()) {
    const method = names.reduce<unknown>((object, name) => (object as Record<string, unknown>)[name], tunery)
    assert.equal(typeof method, 'function', names.join('.'))
  }
})

test('a list is its first page and an iterator over all pages', async () => {
  for (let count = 0; count < 5; count++) await tunery.keys.create({ name: `key ${count}` })
  const page = await tunery.keys.list({ limit: 2 })
  assert.equal(page.items.length, 2)
  const names: string[] = []
  for await (const { name } of tunery.keys.list({ limit: 2 })) names.push(name)
  assert.deepEqual(names.slice(0, 5), ['key 4', 'key 3', 'key 2', 'key 1', 'key 0'])
  assert.equal((await page.next())?.items[0]?.name, 'key 2')
})

test('an error of the service is a typed one with its code and what to do', async () => {
  await assert.rejects(tunery.jobs.get('job_none'), (error) => {
    assert.ok(isTuneryError(error, 'job_not_found') && error.status === 404)
    assert.match(error.request_id ?? '', /^req_/)
    return true
  })
  assert.throws(() => tunery.jobs.get(''), /needs job_id/)
  const nowhere = new Tunery({ baseUrl: 'http://127.0.0.1:1/v1', maxRetries: 0 })
  await assert.rejects(nowhere.user.profile(), TuneryConnectionError)
  const notTunery = new Tunery({ baseUrl: `http://127.0.0.1:${receiver.port}/v1`, maxRetries: 0 })
  await assert.rejects(notTunery.user.profile(), /is not one of Tunery's/)
})

test('a retry waits for Retry-After, sends the same idempotency key, and stops where it cannot help', async () => {
  const seen: { at: number; key: string | undefined }[] = []
  let refusals = 1
  let headers: Record<string, string> = { 'retry-after': '1' }
  const busy = http.createServer((request, response) => {
    seen.push({ at: performance.now(), key: request.headers['idempotency-key'] as string })
    request.resume().on('end', () => {
      if (refusals-- > 0) {
        response.writeHead(503, { 'content-type': 'application/json', ...headers })
        response.end(JSON.stringify({ error: { code: 'overloaded', message: 'Later.' } }))
        return
      }
      response.setHeader('content-type', 'application/json')
      response.end('{"id":"key_1"}')
    })
  })
  await new Promise<void>((resolve) => busy.listen(0, '127.0.0.1', resolve))
  try {
    const client = new Tunery({ baseUrl: `http://127.0.0.1:${(busy.address() as AddressInfo).port}` })
    await client.keys.create({ name: 'x' })
    assert.equal(seen.length, 2)
    assert.ok(seen[1]!.at - seen[0]!.at >= 990, `waited ${seen[1]!.at - seen[0]!.at} ms`)
    assert.ok(seen[0]!.key && seen[0]!.key === seen[1]!.key)

    for (const [given, requests] of [
      [{ 'retry-after': '3600' }, 1],
      [{ 'x-should-retry': 'false' }, 1],
    ] as const) {
      seen.length = 0
      refusals = 9
      headers = given
      await assert.rejects(client.keys.create({ name: 'x' }), (error) => isTuneryError(error, 'overloaded'))
      assert.equal(seen.length, requests)
    }
    refusals = 9
    headers = { 'retry-after': '30' }
    const gone = new AbortController()
    const aborted = client.keys.create({ name: 'x' }, { signal: gone.signal })
    await until('a refusal', () => seen.length > 1 || undefined)
    gone.abort(new Error('enough'))
    await assert.rejects(aborted, /enough/)
  } finally {
    busy.close()
  }
})

test('a large file is sent in parts, tells its progress, and goes on after a failure where it stopped', async () => {
  const file = new File([colourRows(400)], 'colours.jsonl')
  const partBytes = Math.ceil(file.size / 4)
  const sent: number[] = []
  let state: UploadState | undefined
  const failing = new Tunery({
    baseUrl: app.url,
    apiKey: app.key,
    maxRetries: 0,
    fetch: (url, init) => {
      if (String(url).endsWith('/parts') && sent.length === 3) throw new TypeError('the network is away')
      return fetch(url, init)
    },
  })
  const onProgress = ({ sent_bytes, state: now }: { sent_bytes: number; state: UploadState | undefined }) => {
    sent.push(sent_bytes)
    state = now
  }
  await assert.rejects(
    failing.datasets.upload(file, { description: 'd' }, { partBytes, onProgress }),
    /network is away/,
  )
  assert.deepEqual(sent, [0, partBytes, 2 * partBytes])
  const saved = JSON.parse(JSON.stringify(state)) as UploadState
  const dataset = await tunery.datasets.upload(file, { description: 'd' }, { resume: saved, onProgress })
  assert.deepEqual(sent, [0, partBytes, 2 * partBytes, 2 * partBytes, 3 * partBytes, file.size])
  assert.deepEqual([dataset.name, dataset.description], ['colours.jsonl', 'd'])
  const { rows } = await tunery.datasets
    .rows(dataset.id, { limit: 2, after: 398 })
    .then(({ items, has_more }) => ({ rows: [items.map(({ row }) => row), has_more] }))
  assert.deepEqual(rows, [[399, 400], false])
  assert.equal((await tunery.datasets.update(dataset.id, { name: 'colours' })).name, 'colours')
})

test('a job is followed to its end through a cut connection: each event once, in order, then the job', async () => {
  const dataset = await tunery.datasets.upload(colourRows(24), { name: 'colours' })
  const job = await tunery.jobs.create({
    model_id: tiny,
    dataset_id: dataset.id,
    config: { training_config: { epochs: 2 } },
  })
  const states: string[] = []
  const seqs: number[] = []
  const events = tunery.jobs.follow(job.id, { onConnection: (state) => states.push(state) })
  for (;;) {
    const { done, value } = await events.next()
    if (done) {
      assert.equal(value.status, 'completed')
      break
    }
    seqs.push(value.seq)
    if (seqs.length === 2) proxy.cut()
  }
  assert.deepEqual(
    seqs,
    seqs.map((_, index) => index + 1),
  )
  assert.ok(states.includes('reconnecting') && states.at(-1) === 'live', states.join())
  assert.equal((await tunery.jobs.wait(job.id)).status, 'completed')
})

test('a stream of an answer is iterated, aborted, and an error in it is thrown', async () => {
  const messages = [{ role: 'user' as const, content: 'hello' }]
  const stream = await tunery.chat.completions.create({ model: tiny, messages, max_tokens: 5, stream: true })
  let chunks = 0
  for await (const { object } of stream) {
    assert.equal(object, 'chat.completion.chunk')
    chunks++
  }
  assert.ok(chunks > 1)
  const whole = await tunery.chat.completions.create({ model: tiny, messages, max_tokens: 5 })
  assert.equal(whole.object, 'chat.completion')

  const gone = new AbortController()
  const long = await tunery.chat.completions.create(
    { model: tiny, messages, max_tokens: 500, stream: true },
    { signal: gone.signal },
  )
  await assert.rejects(async () => {
    for await (const _ of long) gone.abort(new Error('enough'))
  }, /enough/)
  const none = { model: 'none', messages, stream: true as const }
  await assert.rejects(tunery.chat.completions.create(none), TuneryError)
})

test('a real delivery is verified; a changed body, another secret and an old one are not', async () => {
  const { id, secret } = await tunery.webhooks.create({
    url: `http://127.0.0.1:${receiver.port}/sdk`,
    events: ['model.deployed'],
  })
  await tunery.webhooks.test(id)
  const { body, headers } = await until('the delivery', () => receiver.of('/sdk')[0])
  const event = await tunery.webhooks.verify(body, headers as Record<string, string>, secret!)
  assert.equal(event.id, headers['webhook-id'])
  const verify = (text: string, secrets: string | string[], now = Date.now) =>
    tunery.webhooks.verify(text, headers as Record<string, string>, secrets, { now })
  const text = String(body)
  assert.equal((await verify(text, ['whsec_AAAA', secret!])).id, event.id)
  await assert.rejects(verify(`${text} `, secret!), /No signature/)
  await assert.rejects(verify(text, 'whsec_AAAA'), /No signature/)
  await assert.rejects(
    verify(text, secret!, () => Date.now() + 400_000),
    /more than 300 s/,
  )
  await assert.rejects(tunery.webhooks.verify(text, {}, secret!), /are not there/)
})

test(
  'the package, installed from its tarball, is typed, needs no other package, and is below 30 kB gzipped',
  full,
  () => {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-sdk-'))
    try {
      const script = path.join(root, 'scripts/sdk.ts')
      const packed = spawnSync(process.execPath, [script, folder], { cwd: root, encoding: 'utf8' })
      assert.equal(packed.status, 0, packed.stderr)
      // The packer reports types that a declaration cannot name, but does not fail.
      assert.doesNotMatch(packed.stdout + packed.stderr, /error TS/)
      const run = (command: string, args: string[]) =>
        execFileSync(command, args, { cwd: folder, stdio: 'pipe', encoding: 'utf8' })
      writeFileSync(path.join(folder, 'package.json'), '{"type":"module","private":true}')
      run('npm', ['install', '--offline', '--no-audit', './tunery-client-0.1.0.tgz'])
      writeFileSync(
        path.join(folder, 'use.ts'),
        `import { Tunery } from 'tunery-client'
const tunery = new Tunery({ baseUrl: '${app.url}', apiKey: '${app.key}' })
const { account } = await tunery.user.profile()
const name: string = account.name
// @ts-expect-error: a job needs a dataset
const wrong = () => tunery.jobs.create({ model_id: 'x' })
console.log(name, typeof wrong, (await tunery.datasets.list({ limit: 1 })).items.length)
`,
      )
      symlinkSync(path.join(root, 'node_modules/@types'), path.join(folder, 'node_modules/@types'))
      run(path.join(root, 'node_modules/.bin/tsc'), [
        ...['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2024', '--types', 'node', 'use.ts'],
      ])
      assert.ok(gzipSync(run('cat', ['node_modules/tunery-client/dist/index.js'])).length < 30_000)
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  },
)
