// The dashboard's files, as the service serves them: policy, caching, compression, deep links, nothing else of the
// disk.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { test } from 'node:test'
import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import Fastify from 'fastify'
import { root } from '../../lib/root.ts'
import { webRoutes } from '../../server/features/web/routes.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()

const built = path.join(root, '.local/web')
const asBrowser = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' }

/** A request whose path is sent as it is written, and whose body is not decoded. */
function get(pathname: string, headers: Record<string, string> = {}, method = 'GET') {
  const { hostname, port } = new URL(app.address)
  return new Promise<{ status: number; headers: http.IncomingHttpHeaders; body: Buffer }>((resolve, reject) => {
    const request = http.request({ hostname, port, path: pathname, method, headers }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.on('end', () =>
        resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.concat(parts) }),
      )
    })
    request.on('error', reject).end()
  })
}

const script = () => readdirSync(path.join(built, 'assets')).find((name) => /^index-.*\.js$/.test(name))!

test('the page loads only its own files, and is asked for again each time', async () => {
  const { status, headers, body } = await get('/', asBrowser)
  assert.equal(status, 200)
  assert.match(headers['content-type']!, /^text\/html/)
  assert.equal(headers['cache-control'], 'no-cache')
  const policy = Object.fromEntries(
    (headers['content-security-policy'] as string).split('; ').map((rule) => {
      const [name, ...sources] = rule.split(' ')
      return [name, sources.join(' ')]
    }),
  )
  assert.deepEqual(
    [policy['default-src'], policy['script-src'], policy['style-src'], policy['connect-src']],
    ["'none'", "'self'", "'self'", "'self'"],
  )
  assert.deepEqual(
    [policy['base-uri'], policy['frame-ancestors'], policy['form-action']],
    ["'none'", "'none'", "'self'"],
  )
  assert.doesNotMatch(headers['content-security-policy'] as string, /unsafe|https?:|\*/)
  assert.equal(headers['x-frame-options'], 'DENY')
  assert.equal(headers['x-content-type-options'], 'nosniff')
  // What the policy refuses is not in the page either.
  assert.doesNotMatch(body.toString(), /<style|style=|<script(?![^>]*\bsrc=)|\son\w+=/)
  const again = await get('/', { ...asBrowser, 'if-none-match': headers.etag! })
  assert.equal(again.status, 304)
})

test('assets are kept for a year, compressed as the client can read, with the same bytes', async () => {
  const name = script()
  const plain = readFileSync(path.join(built, 'assets', name))
  for (const [accepted, encoding, decode] of [
    ['gzip, deflate, br', 'br', brotliDecompressSync],
    ['gzip', 'gzip', gunzipSync],
    ['identity', undefined, (bytes: Buffer) => bytes],
  ] as const) {
    const { status, headers, body } = await get(`/assets/${name}`, { 'accept-encoding': accepted })
    assert.equal(status, 200)
    assert.equal(headers['content-encoding'], encoding)
    assert.match(headers['content-type']!, /javascript/)
    assert.equal(headers['cache-control'], 'public, max-age=31536000, immutable')
    assert.match(headers.vary ?? '', /accept-encoding/i)
    assert.ok(decode(body).equals(plain), accepted)
  }
  const head = await get(`/assets/${name}`, {}, 'HEAD')
  assert.deepEqual([head.status, head.body.length], [200, 0])
})

test('an address that only the page knows gets the page; of the API it stays a JSON error', async () => {
  for (const address of [
    '/jobs/job_1',
    '/sign-in',
    '/models/a%2Fb?tab=files',
    '/jobs/',
    '/v1x',
    '/docs',
    '/docs/guides/start',
  ]) {
    const { status, headers, body } = await get(address, asBrowser)
    assert.equal(status, 200, address)
    assert.match(body.toString(), /<div id="root">/, address)
    assert.match(headers['content-security-policy'] as string, /script-src 'self'/)
  }
  const paths = ['/v1/nothing', '/v1', '/api/v1/nothing', '/api', '/health/nothing', '/metrics/x']
  for (const address of paths) {
    const { status, headers, body } = await get(address, asBrowser)
    assert.equal(status, 404, address)
    assert.match(headers['content-type']!, /json/, address)
    assert.doesNotMatch(body.toString(), /<div/, address)
  }
})

test('programs, other methods and missing assets get JSON errors, never the page', async () => {
  const cases = [
    ['/nothing', 'GET', { accept: 'application/json' }],
    ['/nothing', 'GET', {}],
    ['/nothing', 'POST', asBrowser],
    ['/assets/index-gone.js', 'GET', asBrowser],
    ['/assets/', 'GET', asBrowser],
  ] as const
  for (const [address, method, headers] of cases) {
    const answer = await get(address, headers, method)
    assert.equal(answer.status, 404, `${method} ${address}`)
    assert.equal(JSON.parse(answer.body.toString()).error.code, 'not_found')
    assert.equal(answer.headers['cache-control'], 'no-store', 'a later build may have it')
  }
})

test('no address leads out of the folder', async () => {
  const secret = readFileSync(path.join(root, 'package.json'), 'utf8')
  const outside = [
    '/assets/../../../package.json',
    '/assets/..%2f..%2f..%2fpackage.json',
    '/assets/%2e%2e/%2e%2e/%2e%2e/package.json',
    '/assets/..%5c..%5c..%5cpackage.json',
    '/..%2f..%2fpackage.json',
    '/../../package.json',
    '//../package.json',
    '/assets//../../../package.json',
    '/assets/%00/../package.json',
    '/assets/..;/..;/package.json',
    '/theme.js/../../../package.json',
    '/.vite/manifest.json',
    '/manifest.json',
  ]
  for (const address of outside)
    for (const headers of [{}, asBrowser]) {
      const { status, body } = await get(address, headers)
      assert.ok(!body.toString().includes(secret.slice(0, 40)), address)
      assert.ok(status === 404 || status === 400 || body.includes('<div id="root">'), `${status} ${address}`)
    }
})

test('without a build the page says what to do, and the API works', async () => {
  const empty = Fastify({ routerOptions: { ignoreTrailingSlash: true } })
  webRoutes(empty, path.join(app.dataDir, 'no-build'))
  const { statusCode, body, headers } = await empty.inject({ url: '/jobs', headers: asBrowser })
  assert.equal(statusCode, 503)
  assert.match(body, /npm run setup/)
  assert.match(headers['content-type'] as string, /^text\/html/)
  await empty.close()
})
