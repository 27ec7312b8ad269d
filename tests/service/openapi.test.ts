import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { scopes } from '../../contract/scopes.ts'
import { root } from '../../lib/root.ts'
import { contractRoutes } from '../support/routes.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()

// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
const description = async (): Promise<any> => (await fetch(`${app.url}/openapi.json`)).json()

test('the OpenAPI document is made without blocking the requests of others', async () => {
  const cpu_ms = () => process.threadCpuUsage().user / 1000
  let [last, longest] = [cpu_ms(), 0]
  const beats = setInterval(() => {
    const now = cpu_ms()
    longest = Math.max(longest, now - last)
    last = now
  }, 1)
  assert.equal((await fetch(`${app.url}/openapi.json`)).status, 200)
  clearInterval(beats)
  assert.ok(Math.max(longest, cpu_ms() - last) < 150, `${longest} ms of work in one piece`)
})

test('every route of the contract is mounted, is in the OpenAPI document, and requires a known scope', async () => {
  const document = await description()
  assert.equal(document.openapi, '3.0.3')
  const described = Object.entries(document.paths).flatMap(([route, methods]) =>
    Object.keys(methods as object).map((method) => `${method.toUpperCase()} ${route}`),
  )
  const routes = await contractRoutes()
  assert.ok(routes.length >= 20)
  assert.deepEqual(described.sort(), routes.map((route) => `${route.method} ${route.path.replace('*}', '}')}`).sort())
  for (const route of routes) {
    if (route.scope === 'public') continue
    assert.ok(route.scope === 'session' || scopes.includes(route.scope), route.path)
    for (const base of ['/v1', '/api/v1']) {
      const target = route.path.replace(/\{\w+\*?\}/g, 'none')
      for (const end of ['', '/']) {
        const answer = await fetch(app.address + base + target.replace(/\/$/, '') + end, { method: route.method })
        assert.equal(answer.status, 401, `${route.method} ${base}${target} with${end ? '' : 'out'} a slash at its end`)
      }
    }
  }
})

test('the OpenAPI document has the forms of uploads, the ranges of parameters and the shape of errors', async () => {
  const { paths, components } = await description()
  assert.deepEqual(Object.keys(paths['/datasets/'].post.requestBody.content), ['multipart/form-data'])
  const formOf = (route: string) =>
    Object.keys(paths[route].post.requestBody.content['multipart/form-data'].schema.properties)
  assert.deepEqual(formOf('/datasets/'), ['file', 'name', 'description', 'format', 'columns', 'hf_token'])
  assert.deepEqual(formOf('/fine-tuning/models'), ['file', 'name', 'description', 'base_model_id'])
  const chat = paths['/chat/completions'].post
  const { $ref } = chat.requestBody.content['application/json'].schema
  assert.equal($ref, '#/components/schemas/ChatRequestInput')
  const request = components.schemas.ChatRequestInput
  const [named] = request.properties.messages.items.oneOf
  const fromUser = components.schemas[named.$ref.split('/').at(-1)]
  assert.deepEqual(fromUser.required, ['role', 'content'])
  assert.deepEqual(
    fromUser.properties.content.anyOf.map((option: { type: string }) => option.type),
    ['string', 'array'],
  )
  const { temperature } = request.properties
  assert.equal(temperature.minimum, 0)
  assert.equal(temperature.maximum, 2)
  assert.ok(chat.responses['200'].content['text/event-stream'])
  assert.equal(chat.responses['400'].content['application/json'].schema.$ref, '#/components/schemas/ErrorBody')
  assert.ok(components.schemas.ErrorBody.properties.error)
  const download = paths['/exports/{export_id}/download'].get.responses
  assert.ok(download[304].description)
  for (const status of ['200', '206'])
    assert.equal(download[status].content['application/octet-stream'].schema.format, 'binary')
  assert.ok(paths['/fine-tuning/jobs/{job_id}/events'].get.responses['200'].content['application/x-ndjson'])
  const limit = paths['/datasets/'].get.parameters.find(({ name }: { name: string }) => name === 'limit')
  assert.deepEqual(limit.schema, { type: 'integer', minimum: 1, maximum: 100 })
  assert.equal(limit.required ?? false, false)
  assert.equal(paths['/hub/models/{model_id}'].get.parameters[0].name, 'model_id')
  const isRequired = (route: string) => paths[route].post.requestBody?.required
  assert.deepEqual(
    [isRequired('/uploads'), isRequired('/webhooks/{webhook_id}/rotate'), isRequired('/uploads/{upload_id}/cancel')],
    [true, false, undefined],
  )
})

test('the OpenAPI document says the scope of each operation, and is sent compressed to those who take it', async () => {
  const { paths } = await description()
  assert.equal(paths['/fine-tuning/jobs'].post['x-scope'], 'tuning:write')
  assert.equal(paths['/chat/completions'].post['x-openai'], true)
  const sizes: number[] = []
  for (const accepted of ['identity', 'gzip']) {
    const answer = await fetch(`${app.url}/openapi.json`, { headers: { 'accept-encoding': accepted } })
    assert.equal(answer.headers.get('content-encoding'), accepted === 'gzip' ? 'gzip' : null)
    assert.equal(answer.headers.get('vary'), 'accept-encoding')
    sizes.push(Number(answer.headers.get('content-length')))
  }
  assert.ok(sizes[1]! < sizes[0]! / 5, String(sizes))
})

test('the documentation page, health and metrics answer without a key', async () => {
  for (const [route, says] of Object.entries({
    '/docs': /<title>Tunery<\/title>/,
    '/health/live': /ok/,
    '/health/ready': /ok/,
    '/metrics': /process_cpu/,
  })) {
    const answer = await fetch(app.address + route)
    assert.equal(answer.status, 200, route)
    assert.match(await answer.text(), says)
  }
})

test('docs/errors.md lists exactly the error codes of the contract', async () => {
  const { errorCodes } = await import('../../contract/errors.ts')
  const page = readFileSync(path.join(root, 'docs/errors.md'), 'utf8')
  const documented = [...page.matchAll(/^\| `(\w+)` \| (\d+)/gm)].map(([, code, status]) => [code, Number(status)])
  assert.deepEqual(Object.fromEntries(documented), { ...errorCodes })
})
