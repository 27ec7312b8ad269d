// Webhook secrets: rotation without unverifiable deliveries, and no leaks
// of secrets.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import pino from 'pino'
import { Webhook as StandardWebhook } from 'standardwebhooks'
import { Webhooks } from '../../server/features/webhooks/service.ts'
import { createAddressRules, readAllowed } from '../../server/platform/outbound/addresses.ts'
import { createSecrets } from '../../server/platform/storage/secrets.ts'
import { createServerMetrics } from '../../server/platform/telemetry/metrics.ts'
import { type Answer, until } from '../support/client.ts'
import { onSqlite } from '../support/postgres.ts'
import { type Received, startReceiver } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'

let app: TestApp
let receiver: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  receiver = await startReceiver()
  app = await startApp({ TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8' })
})
after(async () => {
  await app.stop()
  receiver.stop()
})

const codeOf = ({ status, body }: Answer) => [status, body.error?.code]
const at = (route: string) => `http://127.0.0.1:${receiver.port}${route}`
const sent = (route: string, count = 1): Promise<Received> =>
  until(`a request on ${route}`, () => receiver.of(route)[count - 1])
const sendTest = (id: string) => app.api('POST', `/webhooks/${id}/test`)
const plain = (secret: string, { body }: Received) => createHmac('sha256', secret).update(body).digest('hex')
const header = ({ headers }: Received, name: string) => String(headers[name])

test('rotated secrets overlap: the standard header has both signatures, the plain one the old', async () => {
  const webhook = (await app.api('POST', '/webhooks', { url: at('/rotated'), events: ['model.deployed'] })).body
  const rotated = (await app.api('POST', `/webhooks/${webhook.id}/rotate`, {})).body
  assert.notEqual(rotated.secret, webhook.secret)
  assert.ok(Math.abs(Date.parse(rotated.previous_secret_expires_at) - Date.now() - 24 * 3_600_000) < 60_000)
  await sendTest(webhook.id)
  const during = await sent('/rotated')
  assert.equal(header(during, 'webhook-signature').split(' ').length, 2)
  for (const secret of [webhook.secret, rotated.secret])
    new StandardWebhook(secret).verify(during.body, during.headers as Record<string, string>)
  assert.equal(header(during, 'x-service-signature'), plain(webhook.secret, during))

  const text = 'quite another secret'
  const ended = await app.api('POST', `/webhooks/${webhook.id}/rotate`, { secret: text, overlap_hours: 0 })
  assert.deepEqual([ended.status, ended.body.secret, ended.body.previous_secret_expires_at], [200, undefined, null])
  await sendTest(webhook.id)
  const later = await sent('/rotated', 2)
  assert.equal(header(later, 'webhook-signature').split(' ').length, 1)
  assert.equal(header(later, 'x-service-signature'), plain(text, later))
  for (let count = 1; count < 4; count++)
    assert.equal((await app.api('POST', `/webhooks/${webhook.id}/rotate`)).status, 200)
  assert.deepEqual(codeOf(await app.api('POST', `/webhooks/${webhook.id}/rotate`)), [400, 'too_many'])
  for (const body of [{ overlap_hours: -1 }, { overlap_hours: 169 }, { overlap_hours: 1.5 }, { secret: '' }])
    assert.deepEqual(codeOf(await app.api('POST', `/webhooks/${webhook.id}/rotate`, body)), [400, 'invalid_request'])
})

test('a secret appears in no later response, no file of the data folder and no log line', onSqlite, async () => {
  const lines: string[] = []
  const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) })
  const db = await app.openDatabase()
  const webhooks = new Webhooks({
    db,
    secrets: createSecrets(path.join(app.dataDir, 'secret.key')),
    rules: createAddressRules(readAllowed('127.0.0.0/8')),
    max: 20,
    version: 'test',
    log,
    metrics: createServerMetrics(),
  })
  const by = { kind: 'key' as const, account_id: app.owner.account_id, user_id: null, key_id: null }
  const given = 'a canary of a secret'
  const mine = await webhooks.create(by, { url: at('/secret'), events: ['model.deployed'], secret: given })
  const webhook = await webhooks.create(by, { url: at('/gone'), events: ['model.deployed'] })
  const rotated = await webhooks.rotate(by, mine.id, undefined)
  const delivering = webhooks.deliverer.start()
  await webhooks.test(by, mine.id)
  await webhooks.test(by, webhook.id)
  await until('both', () => receiver.of('/secret').length > 0 && receiver.of('/gone').length > 0)
  await delivering.close()
  await db.destroy()
  const answers = [
    await app.api('GET', '/webhooks?limit=100'),
    await app.api('GET', `/webhooks/${mine.id}`),
    await app.api('PUT', `/webhooks/${mine.id}`, { disabled: false }),
    await app.api('GET', `/webhooks/${mine.id}/deliveries`),
    await app.api('GET', '/audit?limit=100'),
    await app.api('POST', `/webhooks/${mine.id}/rotate`, { secret: 'naïve', overlap_hours: 1 }),
  ].map(({ body }) => JSON.stringify(body))
  const files = readdirSync(app.dataDir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !/lock/.test(entry.name))
    .map((entry) => readFileSync(path.join(entry.parentPath, entry.name), 'latin1'))
  assert.ok(
    files.some((text) => text.includes(mine.id)),
    'the database is among the files',
  )
  const metrics = await (await fetch(`${app.address}/metrics`)).text()
  for (const secret of [given, webhook.secret!, rotated.secret!, webhook.secret!.slice(6)])
    for (const text of [...answers, ...files, ...lines, metrics]) assert.ok(!text.includes(secret))
})
