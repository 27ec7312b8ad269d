// Security headers, CORS, proxies: protection against anyone who can reach the port.
import assert from 'node:assert/strict'
import { channel } from 'node:diagnostics_channel'
import { after, before, test } from 'node:test'
import type { FastifyRequest } from 'fastify'
import { ConfigError, readConfig } from '../../server/config.ts'
import { colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const origin = 'https://app.example.com'
let app: TestApp
let proxied: TestApp
before(async () => {
  app = await startApp()
  proxied = await startApp({
    TUNERY_TRUSTED_PROXIES: '127.0.0.0/8, 10.1.0.0/16',
    TUNERY_CORS_ORIGINS: `${origin},https://b.example`,
  })
})
after(() => Promise.all([app.stop(), proxied.stop()]))

const securityHeaders = {
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
}
function assertSecurityHeaders(what: string, headers: Headers | Map<string, string>) {
  for (const [name, value] of Object.entries(securityHeaders))
    assert.equal(headers.get(name), value, `${name} of ${what}`)
  assert.ok(headers.get('x-request-id'), what)
}

test('every kind of answer carries the security headers', async () => {
  const ask = (path: string, init?: RequestInit) => fetch(app.address + path, init)
  const authorization = `Bearer ${app.key}`
  const chat = (stream: boolean) => ({
    method: 'POST',
    headers: { authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ model: tiny, max_tokens: 1, stream, messages: [{ role: 'user', content: 'Hi' }] }),
  })
  const answers = {
    'a read': await ask('/v1/datasets/', { headers: { authorization } }),
    'an answer of a model': await ask('/v1/chat/completions', chat(false)),
    'a stream': await ask('/v1/chat/completions', chat(true)),
    'a request without a key': await ask('/v1/datasets/'),
    'an unknown path': await ask('/nothing'),
    'an address that is none': await ask('/v1/hub/models/%ff', { headers: { authorization } }),
    'the description': await ask('/v1/openapi.json'),
    'the health': await ask('/health/live'),
    'the metrics': await ask('/metrics'),
  }
  for (const [what, answer] of Object.entries(answers)) {
    assertSecurityHeaders(what, answer.headers)
    assert.equal(answer.headers.get('access-control-allow-origin'), null)
    assert.equal(answer.headers.get('strict-transport-security'), null)
    await answer.text()
  }
  const dataset = (await app.upload(colourRows(4))).body.id
  const job = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset })).body.id
  const events = await ask(`/v1/fine-tuning/jobs/${job}/events`, { headers: { authorization } })
  assertSecurityHeaders('job events', events.headers)
  await events.body!.cancel()
  const raw = connect(app.address)
  raw.socket.write('NO HTTP\r\n\r\n')
  await until('an answer to bytes that are not HTTP', () => raw.closed)
  assert.match(raw.text, /^HTTP\/1\.1 400 /)
  const lines = raw.text
    .split('\r\n\r\n')[0]!
    .split('\r\n')
    .slice(1)
    .map((line) => line.split(/: (.*)/, 2) as [string, string])
  assertSecurityHeaders('what is not HTTP', new Map(lines))
})

test('answers with private data must not be cached', async () => {
  const answer = await app.api('POST', '/keys', { name: 'shown once' })
  assert.equal(answer.status, 201)
  assert.equal(answer.headers.get('cache-control'), 'no-store')
})

test('the documentation page loads only its own files and cannot be framed', async () => {
  const page = await fetch(`${app.address}/docs/`)
  const policy = page.headers.get('content-security-policy')!
  const parts = Object.fromEntries(policy.split('; ').map((part) => part.split(/ (.*)/, 2)))
  assert.deepEqual(
    [parts['script-src'], parts['style-src'], parts['connect-src'], parts['frame-ancestors']],
    ["'self'", "'self'", "'self'", "'none'"],
  )
  // The page would be empty over plain http with it.
  assert.doesNotMatch(policy, /upgrade-insecure-requests/)
  const html = await page.text()
  assert.doesNotMatch(
    html,
    /<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=/,
    'the page has nothing that its policy forbids',
  )
  const sources = [...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, source]) => new URL(source!, page.url))
  assert.ok(sources.length >= 5)
  for (const source of sources) {
    assert.equal(source.origin, app.address)
    const part = await fetch(source)
    assert.equal(part.status, 200, source.pathname)
    assert.ok(part.headers.get('content-type'), 'nosniff needs a type')
    await part.arrayBuffer()
  }
})

test('without CORS origins, there are no CORS headers and preflights are not answered', async () => {
  const preflight = await fetch(`${app.url}/datasets/`, {
    method: 'OPTIONS',
    headers: { origin, 'access-control-request-method': 'GET' },
  })
  assert.equal(preflight.status, 404)
  assert.deepEqual(
    [...preflight.headers.keys()].filter((name) => name.startsWith('access-control-')),
    [],
  )
})

test('an allowed origin gets preflights and exposed headers; an unknown origin gets no CORS header', async () => {
  const asks = (from: string) => ({
    origin: from,
    'access-control-request-method': 'PUT',
    'access-control-request-headers': 'authorization,content-type',
  })
  const response = await fetch(`${proxied.url}/deployments/x`, { method: 'OPTIONS', headers: asks(origin) })
  assert.equal(response.status, 204)
  assert.equal(response.headers.get('access-control-allow-origin'), origin)
  assert.match(response.headers.get('access-control-allow-methods')!, /PUT.*DELETE/)
  assert.equal(response.headers.get('access-control-allow-headers'), 'authorization,content-type')
  assert.equal(response.headers.get('access-control-allow-credentials'), null)
  assert.match(response.headers.get('vary')!, /origin/i)
  const read = await proxied.api('GET', '/datasets/', undefined, { origin })
  assert.equal(read.headers.get('access-control-allow-origin'), origin)
  const exposed = read.headers.get('access-control-expose-headers')!.split(', ')
  const needed = [
    'x-request-id',
    'x-ratelimit-limit',
    'x-ratelimit-remaining',
    'x-ratelimit-reset',
    'retry-after',
    'etag',
    'content-range',
  ]
  for (const name of needed) assert.ok(exposed.includes(name), name)
  const refused = await fetch(`${proxied.url}/datasets/`, { headers: { origin } })
  assert.deepEqual(
    [refused.status, refused.headers.get('access-control-allow-origin')],
    [401, origin],
    'an error can be read as well',
  )
  const stream = await fetch(`${proxied.url}/chat/completions`, {
    method: 'POST',
    headers: { origin, authorization: `Bearer ${proxied.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: tiny, max_tokens: 1, stream: true, messages: [{ role: 'user', content: 'Hi' }] }),
  })
  assert.equal(stream.headers.get('access-control-allow-origin'), origin)
  await stream.text()
  for (const other of ['https://evil.example', 'null', `${origin}.evil.example`, 'http://app.example.com']) {
    const preflight = await fetch(`${proxied.url}/deployments/x`, { method: 'OPTIONS', headers: asks(other) })
    assert.equal(preflight.status, 404)
    const plain = await proxied.api('GET', '/datasets/', undefined, { origin: other })
    for (const answer of [preflight, plain])
      assert.deepEqual(
        [...answer.headers.keys()].filter((name) => name.startsWith('access-control-')),
        [],
        other,
      )
  }
})

test('* allows any origin, and preflights carry the security headers', async () => {
  const open = await startApp({ TUNERY_CORS_ORIGINS: '*' })
  try {
    const preflight = await fetch(`${open.url}/datasets/`, {
      method: 'OPTIONS',
      headers: { origin: 'null', 'access-control-request-method': 'GET' },
    })
    assert.deepEqual([preflight.status, preflight.headers.get('access-control-allow-origin')], [204, '*'])
    assertSecurityHeaders('a preflight', preflight.headers)
    assert.equal((await open.api('GET', '/datasets/')).headers.get('access-control-allow-origin'), '*')
  } finally {
    await open.stop()
  }
})

/** The client address that the service determines for a request. */
async function addressOf(to: TestApp, headers: Record<string, string>): Promise<string> {
  const started = channel('tracing:fastify.request.handler:start')
  const seen: string[] = []
  const see = (message: unknown) => seen.push((message as { request: FastifyRequest }).request.ip)
  started.subscribe(see)
  try {
    await to.api('GET', '/user/profile', undefined, headers)
  } finally {
    started.unsubscribe(see)
  }
  return seen[0]!
}

test('forwarded headers are trusted only from trusted proxies', async () => {
  const forwarded = (from: string) => ({ 'x-forwarded-for': from, 'x-forwarded-proto': 'https' })
  assert.equal(await addressOf(app, forwarded('203.0.113.7')), '127.0.0.1')
  assert.equal(await addressOf(proxied, forwarded('203.0.113.7')), '203.0.113.7')
  assert.equal(
    await addressOf(proxied, forwarded('1.1.1.1, 203.0.113.7, 10.1.2.3')),
    '203.0.113.7',
    'entries that a client wrote itself are not trusted',
  )
  assert.equal(await addressOf(proxied, {}), '127.0.0.1')
  const secure = await proxied.api('GET', '/user/profile', undefined, forwarded('203.0.113.7'))
  assert.match(secure.headers.get('strict-transport-security')!, /^max-age=\d+$/)
  assert.equal((await proxied.api('GET', '/user/profile')).headers.get('strict-transport-security'), null)
})

test('invalid origins, networks and counts are refused at startup with a reason', () => {
  const wrong: [string, string[]][] = [
    [
      'TUNERY_CORS_ORIGINS',
      [
        'example.com',
        'https://example.com/',
        'https://example.com/app',
        'null',
        'https://*.example.com',
        'ftp://example.com',
        'https://a b',
      ],
    ],
    [
      'TUNERY_TRUSTED_PROXIES',
      [
        'proxy',
        '10.0.0.0/33',
        '10.0.0.0/0',
        '::/0',
        '10.0.0.0/8/8',
        '10.0.0',
        'fe80::1%eth0',
        '10.0.0.0/',
        'true',
        '*',
      ],
    ],
    ['TUNERY_MAX_CONNECTIONS', ['0', '-1', 'many']],
  ]
  for (const [name, values] of wrong)
    for (const value of values)
      assert.throws(
        () => readConfig({ [name]: value }),
        (error: Error) => error instanceof ConfigError && error.message.startsWith(`${name} is '${value}'`),
        `${name}=${value}`,
      )
  const good = readConfig({
    TUNERY_CORS_ORIGINS: ' https://a.example:8443 ,, http://localhost:3000',
    TUNERY_TRUSTED_PROXIES: '10.0.0.0/8,::1,fd00::/8',
  })
  assert.deepEqual(good.cors_origins, ['https://a.example:8443', 'http://localhost:3000'])
  assert.deepEqual(good.trusted_proxies, ['10.0.0.0/8', '::1', 'fd00::/8'])
  assert.deepEqual([readConfig({}).cors_origins, readConfig({}).trusted_proxies], [[], []])
})
