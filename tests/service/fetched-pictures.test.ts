// Pictures at addresses, where the operator turned that on: fetched by the rules of webhooks, bounded in size, time and
// number, and kept as data; what is not fetched is a problem of its row, or a 400 that names the picture.
import assert from 'node:assert/strict'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import sharp from 'sharp'
import { createAddressRules, type Resolve, readAllowed, resolve } from '../../server/platform/outbound/addresses.ts'
import { createPictureFetcher, PictureNotFetched } from '../../server/platform/outbound/pictures.ts'
import { until } from '../support/client.ts'
import { dataUrl, disk } from '../support/pictures.ts'
import { startCanary } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { type FakeUpstream, json, startFakeUpstream } from '../support/upstream.ts'

const red = disk(40, 30, [255, 0, 0])
const large = Buffer.alloc(10_000_001)
large.set(red)

/** Open answers of /slow and /open, and how many of them were at once. */
const slow = new Set<ServerResponse>()
let mostSlow = 0
let asked: string[] = []
let canary: Awaited<ReturnType<typeof startCanary>>
const pages: Record<string, (response: ServerResponse, request: IncomingMessage) => void> = {
  '/red.png': (response) => response.setHeader('content-type', 'text/plain').end(red),
  '/page': (response) => response.setHeader('content-type', 'image/png').end('<html>'),
  '/cut.png': (response) => response.end(red.subarray(0, red.length / 2)),
  '/broken.png': (response) => {
    response.setHeader('content-length', red.length).write(red.subarray(0, 50))
    setImmediate(() => response.destroy())
  },
  '/packed': (response) => response.setHeader('content-encoding', 'gzip').end(red),
  '/declared': (response) => response.setHeader('content-length', large.length).end(large),
  '/endless': (response) => {
    const write = () => !response.destroyed && response.write(large.subarray(0, 1_000_000), write)
    write()
  },
  '/twice': (response) => response.writeHead(302, { location: '/red.png' }).end(),
  '/loop': (response) => response.writeHead(302, { location: '/loop' }).end(),
  '/inside': (response) => response.writeHead(302, { location: `http://127.0.0.1:${canary.port}/red.png` }).end(),
  '/metadata': (response) => response.writeHead(307, { location: 'http://169.254.169.254/latest' }).end(),
  '/slow': (response) => {
    slow.add(response.on('close', () => slow.delete(response)))
    mostSlow = Math.max(mostSlow, slow.size)
  },
  '/drip': (response) => {
    const timer = setInterval(() => response.write(red.subarray(0, 1)), 20)
    response.on('close', () => clearInterval(timer))
  },
}
const server = http.createServer((request, response) => {
  asked.push(request.url!)
  const page = pages[new URL(request.url!, 'http://x').pathname]
  if (page) page(response, request)
  else response.writeHead(404).end()
})
let at: string
let port: number
/** Where nothing listens. */
let gone: number
let app: TestApp
let upstream: FakeUpstream
let received: { messages: { content: { image_url?: { url: string } }[] }[] }[] = []
before(async () => {
  canary = await startCanary()
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  port = (server.address() as AddressInfo).port
  at = `http://127.0.0.1:${port}`
  const closed = http.createServer()
  await new Promise<void>((done) => closed.listen(0, '127.0.0.1', done))
  gone = (closed.address() as AddressInfo).port
  await new Promise((done) => closed.close(done))
  upstream = await startFakeUpstream((_path, body, response) => {
    received.push(body as (typeof received)[number])
    const message = { role: 'assistant', content: 'A disk.' }
    json(response, 200, {
      model: 'far/eye',
      choices: [{ index: 0, message, finish_reason: 'stop' }],
      usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
    })
  })
  const entry = { url: upstream.url, kind: 'vllm' }
  app = await startApp({
    TUNERY_FETCH_PICTURES: 'on',
    TUNERY_WEBHOOK_ALLOW: `127.0.0.1/32:${port},127.0.0.1/32:${gone}`,
    TUNERY_UPSTREAMS: JSON.stringify([
      { ...entry, model: 'far/eye' },
      { ...entry, model: 'far/open', fetch_images: true },
    ]),
  })
})
after(async () => {
  await app.stop()
  upstream.stop()
  server.closeAllConnections()
  server.close()
  canary.stop()
})

const never = new AbortController().signal
const fetcher = (options: { resolve?: Resolve; timeout_ms?: number; allow?: string; ofAccount?: number } = {}) =>
  createPictureFetcher({
    enabled: true,
    rules: createAddressRules(readAllowed(options.allow ?? `127.0.0.1/32:${port}`)),
    version: 'test',
    onFetched() {},
    resolve: options.resolve ?? resolve,
    timeout_ms: options.timeout_ms ?? 10_000,
    at_once: { at_once: 3, at_once_per_account: options.ofAccount ?? 2 },
  })
const refused = (address: string, says: RegExp, options: Parameters<typeof fetcher>[0] = {}) =>
  assert.rejects(fetcher(options).fetch('acc', address, never), (error: Error) => {
    assert.ok(error instanceof PictureNotFetched, error.stack)
    assert.match(error.message, says)
    return true
  })

test('an address leads to a public or allowed host only: as written, resolved, or redirected to', async () => {
  const seen = canary.connections()
  assert.deepEqual(await fetcher().fetch('acc', `${at}/red.png`, never), red)
  assert.deepEqual(await fetcher().fetch('acc', `${at}/twice`, never), red)
  await refused(`${at}/red.png`, /127\.0\.0\.1 may not be reached/, { allow: '' })
  await refused(`http://127.0.0.1:${canary.port}/a`, /may not be reached/)
  await refused(`http://[::ffff:7f00:1]:${canary.port}/a`, /may not be reached/)
  await refused(`http://user:secret@127.0.0.1:${port}/red.png`, /user or password/)
  await refused(`${at}/inside`, /may not be reached/)
  await refused(`${at}/metadata`, /metadata service/)
  await refused(`${at}/loop`, /redirects more than 3 times/)
  // A name is resolved once, and the connection goes to the address that was checked.
  let looked = 0
  const rebinding: Resolve = async () => (looked++ === 0 ? ['127.0.0.1'] : ['10.0.0.1'])
  assert.deepEqual(
    await fetcher({ resolve: rebinding }).fetch('acc', `http://pictures.test:${port}/red.png`, never),
    red,
  )
  assert.equal(looked, 1)
  await refused(`http://pictures.test:${canary.port}/a`, /may not be reached/, { resolve: async () => ['127.0.0.1'] })
  await refused(`http://pictures.test:${canary.port}/a`, /may not be reached/, {
    resolve: async () => ['::1', '10.1.2.3', '127.0.0.1'],
  })
  await refused('http://nowhere.test/a', /has no address/, { resolve: async () => [] })
  assert.equal(canary.connections(), seen)
})

test('a file is a picture by its own bytes, whole, of 10 MB at most, and within the time', async () => {
  await refused(`${at}/page`, /not a JPEG, PNG, WEBP or GIF/)
  await refused(`${at}/packed`, /compressed/)
  await refused(`${at}/none?token=hidden`, /\/none\?… could not be fetched: it answered 404\./)
  await refused(`${at}/declared`, /more than 10 MB/)
  await refused(`${at}/endless`, /more than 10 MB/)
  await refused(`${at}/broken.png`, /could not be fetched/)
  await refused(`${at}/slow`, /not read within 0\.2 s/, { timeout_ms: 200 })
  await refused(`${at}/drip`, /not read within 0\.2 s/, { timeout_ms: 200 })
  const ended = new AbortController()
  const left = fetcher().fetch('acc', `${at}/slow`, ended.signal)
  await until('the request arrives', () => slow.size === 1)
  ended.abort(new Error('the client left'))
  await assert.rejects(left, /the client left/)
  await until('its connection ends', () => slow.size === 0)
})

test('so many are fetched at once, of an account and in all; who waits goes before one at its bound', async () => {
  mostSlow = 0
  const fetches = fetcher()
  const ends = new AbortController()
  const one = Array.from({ length: 6 }, () => fetches.fetch('one', `${at}/slow`, ends.signal))
  await until('two of them arrive', () => slow.size === 2)
  const other = fetches.fetch('other', `${at}/red.png`, ends.signal)
  assert.deepEqual(await other, red)
  const more = ['two', 'three'].map((name) => fetches.fetch(name, `${at}/slow`, ends.signal))
  await until('a third of another account', () => slow.size === 3)
  await sleep(100)
  assert.equal(mostSlow, 3)
  ends.abort(new Error('end'))
  for (const result of await Promise.allSettled([...one, ...more])) assert.equal(result.status, 'rejected')
  assert.deepEqual(await fetches.fetch('one', `${at}/red.png`, never), red)
})

const picture = (url: string) => ({ type: 'image_url', image_url: { url } })
const row = (urls: string[], text = 'What is it?') => ({
  messages: [
    { role: 'user', content: [...urls.map(picture), { type: 'text', text }] },
    { role: 'assistant', content: 'A disk.' },
  ],
})
const lines = (rows: object[]) => rows.map((row) => `${JSON.stringify(row)}\n`).join('')

async function uploaded(content: string, fields = { format: 'jsonl' }) {
  const { status, body } = await app.upload(content, fields)
  assert.equal(status, 201, JSON.stringify(body))
  const validation = (await app.api('POST', `/datasets/${body.id}/validate`)).body
  return { id: body.id as string, found: validation, dataset: (await app.api('GET', `/datasets/${body.id}`)).body }
}

test('rows keep the pictures themselves; the file that was uploaded stays as it was', async () => {
  const turned = await sharp({ create: { width: 4, height: 2, channels: 3, background: '#00f' } })
    .withMetadata({ orientation: 6 })
    .jpeg()
    .toBuffer()
  pages['/turned.jpg'] = (response) => response.end(turned)
  asked = []
  const upload = `\n${lines([
    row([`${at}/red.png?a=1`, dataUrl(red)]),
    row([`${at}/red.png?a=1`, `${at}/twice`]),
    row([`${at}/turned.jpg`]),
  ])}`
  const { id, found, dataset } = await uploaded(upload)
  assert.deepEqual([found.valid, found.total_samples, dataset.pictures], [true, 3, 5], JSON.stringify(found))
  // Each address once; the redirect asks for the picture again.
  assert.deepEqual(asked.sort(), ['/red.png', '/red.png?a=1', '/turned.jpg', '/twice'])
  const { items } = (await app.api('GET', `/datasets/${id}/rows`)).body
  assert.deepEqual(
    items
      .slice(0, 2)
      .map(({ line, messages }: { line: number; messages: { content: unknown[] }[] }) => [
        line,
        messages[0]!.content.slice(0, 2),
      ]),
    [2, 3].map((line) => [line, [picture(dataUrl(red)), picture(dataUrl(red))]]),
  )
  // Upright, without metadata.
  const kept = Buffer.from(items[2].messages[0].content[0].image_url.url.split(',')[1], 'base64')
  const { width, height, exif } = await sharp(kept).metadata()
  assert.deepEqual([width, height, exif], [2, 4, undefined])
  const file = await fetch(`${app.url}/files/${id}/content`, { headers: { authorization: `Bearer ${app.key}` } })
  assert.equal(await file.text(), upload)
  assert.equal((await app.api('DELETE', `/datasets/${id}`)).status, 200)
})

test('a picture that is not fetched is a problem of its row, with its address and why', async () => {
  const { found, id } = await uploaded(
    lines([
      row([`${at}/red.png`]),
      row([`${at}/none`]),
      row([`http://127.0.0.1:${canary.port}/x`]),
      row([`${at}/cut.png`]),
      row([`${at}/page`]),
      row(['ftp://example.com/a.png']),
      { messages: [] },
    ]),
  )
  const told = (found.issues as { line: number; code: string; message: string }[]).map(
    ({ line, code, message }) => `${line} ${code} ${message}`,
  )
  for (const [index, says] of [
    /^2 picture_not_fetched messages\[0\]\.content\[0\]: http:\S+\/none could not be fetched: it answered 404/,
    /^3 picture_not_fetched .*may not be reached/,
    /^4 picture_not_fetched .*cannot be decoded/,
    /^5 picture_not_fetched .*not a JPEG/,
    /^6 picture_remote /,
    /^7 messages_empty /,
  ].entries())
    assert.match(told[index] ?? '', says, JSON.stringify(told))
  assert.equal(found.error_count, 6)
  assert.equal((await app.api('GET', `/datasets/${id}/rows`)).body.error.code, 'dataset_invalid')
})

test('a host that gives no answer holds an upload up for some pictures only', async () => {
  const rows = Array.from({ length: 40 }, (_, index) => row([`http://127.0.0.1:${gone}/${index}`]))
  const { found } = await uploaded(lines(rows))
  assert.equal(found.error_count, 40)
  assert.match(found.errors.at(-1), /was not fetched: its host gave no answer to 6 other addresses/)
})

test('tables may name addresses too', async () => {
  const cell = (urls: string[]) => `"${JSON.stringify(row(urls).messages).replaceAll('"', '""')}"`
  const csv = `messages\n${cell([`${at}/red.png`])}\n${cell([`${at}/none`])}\n`
  const { found } = await uploaded(csv, { format: 'csv' })
  assert.deepEqual([found.valid, found.total_samples, found.error_count], [false, 2, 1], JSON.stringify(found))
  assert.match(found.errors[0], /^line 3: .*\/none could not be fetched: it answered 404/)
})

test('a request’s pictures are fetched before its model is asked, which gets the data', async () => {
  const chat = (model: string, urls: string[]) =>
    app.api('POST', '/chat/completions', { model, messages: row(urls).messages.slice(0, 1) })
  const urlsOf = () => received.flatMap(({ messages }) => messages[0]!.content.map((part) => part.image_url?.url))
  received = []
  asked = []
  assert.equal((await chat('far/eye', [`${at}/red.png`, `${at}/red.png`, dataUrl(red)])).status, 200)
  assert.deepEqual(urlsOf(), [dataUrl(red), dataUrl(red), dataUrl(red), undefined])
  assert.deepEqual(asked, ['/red.png'])
  received = []
  const responded = await app.api('POST', '/responses', {
    model: 'far/eye',
    input: [{ role: 'user', content: [{ type: 'input_image', image_url: `${at}/red.png` }] }],
  })
  assert.equal(responded.status, 200, JSON.stringify(responded.body))
  assert.deepEqual(urlsOf(), [dataUrl(red)])
  // An upstream that fetches for itself still does.
  received = []
  assert.equal((await chat('far/open', [`${at}/red.png`])).status, 200)
  assert.deepEqual(urlsOf(), [`${at}/red.png`, undefined])

  received = []
  for (const [url, says] of [
    [`${at}/none`, /\/none could not be fetched: it answered 404/],
    [`${at}/inside`, /may not be reached/],
    [`${at}/page`, /not a JPEG/],
  ] as const) {
    // The one that failed is named, and ends the fetch of the other.
    const { status, body } = await chat('far/eye', [`${at}/slow`, url])
    assert.deepEqual([status, body.error.param], [400, 'messages.0.content.1.image_url.url'], JSON.stringify(body))
    assert.match(body.error.message, says)
  }
  pages['/heavy'] = (response) => response.end(large.subarray(0, 9_000_000))
  const heavy = await chat(
    'far/eye',
    [1, 2, 3].map((n) => `${at}/heavy?${n}`),
  )
  assert.equal(heavy.status, 400)
  assert.match(heavy.body.error.message, /24 MB together/)
  const leaving = new AbortController()
  const left = fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'far/eye', messages: row([`${at}/slow`]).messages.slice(0, 1) }),
    signal: leaving.signal,
  })
  await until('the fetch begins', () => slow.size === 1)
  leaving.abort()
  await assert.rejects(left)
  await until('the fetch ends when the client leaves', () => slow.size === 0)
  assert.deepEqual(received, [])
})
