// Webhooks through the API: registration, secrets, which event is sent to which webhook, and
// signatures.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { createHmac } from 'node:crypto'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { Webhook as StandardWebhook } from 'standardwebhooks'
import { webhookEventTypes } from '../../contract/webhooks.ts'
import { recordEvent } from '../../server/platform/events/outbox.ts'
import { type Answer, client, colourRows, until } from '../support/client.ts'
import { full, sqliteOrFull } from '../support/full.ts'
import { type Received, startReceiver } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
let receiver: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  receiver = await startReceiver()
  app = await startApp({ TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8', TUNERY_MAX_WEBHOOKS: '20' })
})
after(async () => {
  await app.stop()
  receiver.stop()
})

const codeOf = ({ status, body }: Answer) => [status, body.error?.code]
const register = async (route: string, rest: object = {}) => {
  const answer = await app.api('POST', '/webhooks', {
    url: `http://127.0.0.1:${receiver.port}${route}`,
    events: ['model.deployed'],
    ...rest,
  })
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
  return answer.body
}
const remove = (id: string) => app.api('DELETE', `/webhooks/${id}`)
const sent = (route: string, count = 1): Promise<Received> =>
  until(`a request on ${route}`, () => receiver.of(route)[count - 1])
const sendTest = async (id: string) => (await app.api('POST', `/webhooks/${id}/test`)).body
const plain = (secret: string, { body }: Received) => createHmac('sha256', secret).update(body).digest('hex')
const header = ({ headers }: Received, name: string) => String(headers[name])

test('a webhook is registered with a generated secret that is shown once, listed, changed and deleted', async () => {
  const { secret, ...made } = await register('/life', { events: ['training.completed', 'training.failed'] })
  assert.match(made.id, /^whk_/)
  assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/)
  assert.deepEqual(
    [made.status, made.events, made.disabled_reason],
    ['active', ['training.completed', 'training.failed'], null],
  )
  const { items, has_more } = (await app.api('GET', '/webhooks')).body
  assert.deepEqual([items, has_more], [[made], false])
  assert.deepEqual((await app.api('GET', `/webhooks/${made.id}`)).body, made)
  const changed = await app.api('PUT', `/webhooks/${made.id}`, { events: ['usage.threshold'], disabled: true })
  assert.deepEqual(
    [changed.body.events, changed.body.status, changed.body.disabled_reason],
    [['usage.threshold'], 'disabled', 'requested'],
  )
  assert.equal((await app.api('PUT', `/webhooks/${made.id}`, { disabled: false })).body.status, 'active')
  assert.deepEqual((await remove(made.id)).body, { id: made.id, deleted: true })
  for (const [method, route] of [
    ['GET', ''],
    ['DELETE', ''],
    ['POST', '/test'],
    ['POST', '/rotate'],
    ['GET', '/deliveries'],
    ['PUT', ''],
  ] as const)
    assert.deepEqual(codeOf(await app.api(method, `/webhooks/${made.id}${route}`, method === 'PUT' ? {} : undefined)), [
      404,
      'webhook_not_found',
    ])
})

test('invalid registrations are refused with the reason, and an account has twenty at most', async () => {
  const url = `http://127.0.0.1:${receiver.port}/`
  for (const [body, code] of [
    [{ events: ['model.deployed'] }, 'invalid_request'],
    [{ url, events: [] }, 'invalid_request'],
    [{ url, events: ['model.deployed', 'model.deployed'] }, 'invalid_request'],
    [{ url, events: ['model.exploded'] }, 'invalid_request'],
    [{ url, events: ['webhook.test'] }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: '' }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: 'x'.repeat(257) }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: 'naïve secrets' }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: 'line\nbreaks' }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: 'whsec_not_base64' }, 'invalid_request'],
    [{ url, events: webhookEventTypes, secret: 'whsec_' }, 'invalid_request'],
    [{ url, events: webhookEventTypes, colour: 'red' }, 'unknown_field'],
    [{ url: '', events: webhookEventTypes }, 'invalid_request'],
    [{ url: 'nowhere', events: webhookEventTypes }, 'invalid_request'],
    [{ url: 'ftp://example.com/', events: webhookEventTypes }, 'invalid_request'],
    [{ url: 'https://user:pass@example.com/', events: webhookEventTypes }, 'invalid_request'],
    [{ url: 'https://exam ple.com/', events: webhookEventTypes }, 'invalid_request'],
    [{ url: `https://example.com/${'x'.repeat(2048)}`, events: webhookEventTypes }, 'invalid_request'],
    [{ url: 'http://10.0.0.1/', events: webhookEventTypes }, 'address_blocked'],
  ] as const)
    assert.deepEqual(codeOf(await app.api('POST', '/webhooks', body)), [400, code], JSON.stringify(body).slice(0, 200))
  const messageFor = async (address: string) =>
    (await app.api('POST', '/webhooks', { url: `http://${address}/`, events: webhookEventTypes })).body.error.message
  for (const address of ['10.0.0.1', '192.168.0.1'])
    assert.match(await messageFor(address), /allowed by the operator \(TUNERY_WEBHOOK_ALLOW\)/, address)
  assert.match(await messageFor('169.254.169.254'), /a metadata service, which no setting allows/)
  const all = await Promise.all(
    Array.from({ length: 22 }, () => app.api('POST', '/webhooks', { url, events: webhookEventTypes })),
  )
  assert.equal(all.filter(({ status }) => status === 201).length, 20)
  assert.deepEqual(codeOf(all.find(({ status }) => status !== 201)!), [400, 'too_many'])
  const first = (await app.api('GET', '/webhooks?limit=15')).body
  assert.deepEqual([first.items.length, first.has_more], [15, true])
  const rest = (await app.api('GET', `/webhooks?limit=15&after=${first.items.at(-1).id}`)).body
  assert.deepEqual([rest.items.length, rest.has_more], [5, false])
  for (const { id } of [...first.items, ...rest.items]) await remove(id)
})

test('a delivery has both signatures, which third-party libraries verify; one changed byte is refused', async () => {
  const text = 'a secret of my own'
  for (const secret of [
    undefined,
    text,
    's',
    'whsec_YQ==',
    `whsec_${Buffer.from('x'.repeat(24)).toString('base64')}`,
  ]) {
    const route = `/signed-${secret?.length}`
    const webhook = await register(route, { secret })
    assert.equal(webhook.secret === undefined, secret !== undefined, 'a given secret is not returned')
    const used = secret ?? webhook.secret
    const delivery = await sendTest(webhook.id)
    const got = await sent(route)
    assert.equal(header(got, 'x-service-signature'), plain(used, got))
    const standard = used.startsWith('whsec_')
      ? new StandardWebhook(used)
      : new StandardWebhook(used, { format: 'raw' })
    const payload = standard.verify(got.body, got.headers as Record<string, string>) as {
      id: string
      type: string
      created_at: string
      data: object
    }
    assert.deepEqual(Object.keys(payload), ['id', 'type', 'created_at', 'data'])
    assert.deepEqual(
      [payload.id, payload.type, payload.data],
      [delivery.event_id, 'webhook.test', { webhook_id: webhook.id }],
    )
    assert.equal(header(got, 'webhook-id'), payload.id)
    assert.ok(Math.abs(Date.parse(payload.created_at) - Date.now()) < 60_000)
    assert.throws(() =>
      standard.verify(got.body.replace('webhook.test', 'webhook.tesT'), got.headers as Record<string, string>),
    )
    assert.throws(() =>
      standard.verify(got.body, { ...(got.headers as Record<string, string>), 'webhook-id': 'evt_other' }),
    )
    assert.deepEqual(
      [header(got, 'content-type'), got.headers.cookie, got.headers.authorization],
      ['application/json', undefined, undefined],
    )
    await remove(webhook.id)
  }
})

test(
  'events of jobs and deployments are sent with their data to the subscribed webhooks only',
  sqliteOrFull,
  async () => {
    const webhook = await register('/events', {
      events: ['training.started', 'training.completed', 'training.failed', 'model.deployed'],
    })
    const deaf = await register('/deaf', { events: ['usage.threshold'] })
    const strange = (
      await app.other.api('POST', '/webhooks', { url: `${receiver.url}-strange`, events: webhookEventTypes })
    ).body
    const dataset = (await app.upload(colourRows(8))).body.id
    const config = { training_config: { epochs: 1, batch_size: 4 } }
    const job = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
    const done = await app.untilEnded(job.id)
    assert.equal(done.status, 'completed', JSON.stringify(done.error))
    const deployment = (await app.api('POST', '/deployments', { model: tiny, name: 'announced' })).body
    await sent('/events', 3)
    const all = receiver.of('/events').map(({ body }) => JSON.parse(body))
    const of = (type: string) => all.filter((event: { type: string }) => event.type === type)
    assert.deepEqual(of('training.started')[0].data, { job_id: job.id, model_id: tiny, dataset_id: dataset })
    assert.deepEqual(
      [of('training.completed')[0].data.job_id, of('training.completed')[0].data.model_id],
      [job.id, done.model],
    )
    assert.deepEqual(of('model.deployed')[0].data, { deployment_id: deployment.id, name: 'announced', model_id: tiny })
    assert.equal(new Set(all.map(({ id }: { id: string }) => id)).size, 3)
    for (const id of [webhook.id, deaf.id])
      await until('all to be settled', async () => (await deliveries(id)).every(({ status }) => status === 'delivered'))
    assert.deepEqual([receiver.of('/deaf'), receiver.of('/hook-strange')], [[], []])
    for (const id of [webhook.id, deaf.id]) await remove(id)
    await app.other.api('DELETE', `/webhooks/${strange.id}`)
  },
)

interface Listed {
  id: string
  event_id: string
  status: string
}
const deliveries = async (id: string): Promise<Listed[]> =>
  (await app.api('GET', `/webhooks/${id}/deliveries?limit=100`)).body.items

test('a cancelled training is reported once', async () => {
  const webhook = await register('/cancelled', { events: ['training.cancelled'] })
  const dataset = (await app.upload(colourRows(8))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const { id } = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  for (const _ of [1, 2])
    assert.equal((await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)).body.status, 'cancelled')
  const payload = JSON.parse((await sent('/cancelled')).body)
  assert.deepEqual(
    [payload.type, payload.data],
    ['training.cancelled', { job_id: id, model_id: tiny, dataset_id: dataset }],
  )
  assert.equal((await deliveries(webhook.id)).length, 1)
  await remove(webhook.id)
})

test('a failed training is reported with its error', full, async () => {
  const webhook = await register('/failing', { events: ['training.failed'] })
  const dataset = (await app.upload(colourRows(8))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const { id } = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  // Its trainer is killed each time it starts.
  const killer = setInterval(() => {
    const { stdout } = spawnSync('pgrep', ['-f', `trainer.cli.train .*${id}`], { encoding: 'utf8' })
    for (const pid of stdout.split('\n').filter(Boolean)) process.kill(Number(pid), 'SIGKILL')
  }, 100)
  const job = await app.untilEnded(id)
  clearInterval(killer)
  assert.equal(job.status, 'failed')
  assert.deepEqual(JSON.parse((await sent('/failing')).body).data, { job_id: id, error: job.error })
  await remove(webhook.id)
})

test('deliveries are listed with status, time and the first kB of the response, and can be redelivered', async () => {
  const long = await startReceiver((_, response) => void response.writeHead(202).end('é'.repeat(2000)))
  const webhook = (await app.api('POST', '/webhooks', { url: long.url, events: ['model.deployed'] })).body
  for (let count = 0; count < 3; count++) await sendTest(webhook.id)
  await until(
    'three answers',
    async () => (await deliveries(webhook.id)).filter(({ status }) => status === 'delivered').length === 3,
  )
  const page = (await app.api('GET', `/webhooks/${webhook.id}/deliveries?limit=2`)).body
  assert.deepEqual([page.items.length, page.has_more], [2, true])
  const rest = (await app.api('GET', `/webhooks/${webhook.id}/deliveries?limit=2&after=${page.items[1].id}`)).body
  assert.deepEqual([rest.items.length, rest.has_more], [1, false])
  const one = (await app.api('GET', `/webhooks/${webhook.id}/deliveries/${rest.items[0].id}`)).body
  assert.deepEqual(
    [one.status, one.attempt_count, one.next_attempt_at, one.last_attempt.response_status],
    ['delivered', 1, null, 202],
  )
  assert.equal(Buffer.byteLength(one.last_attempt.response_body), 1024)
  // Events of one moment arrive in any order.
  const first = long.received.find(({ headers }) => headers['webhook-id'] === one.event_id)
  assert.equal(one.payload, first?.body)
  assert.ok(Math.abs(Date.parse(one.attempts[0].started_at) - Date.now()) < 60_000)
  const again = await app.api('POST', `/webhooks/${webhook.id}/deliveries/${one.id}/redeliver`)
  assert.deepEqual([again.status, again.body.event_id], [201, one.event_id])
  assert.notEqual(again.body.id, one.id)
  await until('the fourth', () => long.received.length === 4)
  assert.deepEqual([long.received[3]!.body, long.received[3]!.headers['webhook-id']], [one.payload, one.event_id])
  assert.deepEqual(codeOf(await app.api('GET', `/webhooks/${webhook.id}/deliveries/dlv_none`)), [
    404,
    'delivery_not_found',
  ])
  assert.deepEqual(codeOf(await app.api('GET', `/webhooks/${webhook.id}/deliveries?after=dlv_none`)), [
    404,
    'delivery_not_found',
  ])
  await remove(webhook.id)
  long.stop()
})

test('webhooks of another account are not found, and a key without the scope is refused', async () => {
  const webhook = await register('/mine')
  const { id } = await sendTest(webhook.id)
  for (const [method, route, body] of [
    ['GET', ''],
    ['PUT', '', {}],
    ['DELETE', ''],
    ['POST', '/rotate'],
    ['POST', '/test'],
    ['GET', '/deliveries'],
    ['GET', `/deliveries/${id}`],
    ['POST', `/deliveries/${id}/redeliver`],
  ] as const)
    assert.deepEqual(
      codeOf(await app.other.api(method, `/webhooks/${webhook.id}${route}`, body)),
      [404, 'webhook_not_found'],
      `${method} ${route}`,
    )
  assert.deepEqual((await app.other.api('GET', '/webhooks')).body.items, [])
  assert.deepEqual(codeOf(await app.other.api('GET', `/webhooks?after=${webhook.id}`)), [404, 'webhook_not_found'])
  const reading = (await app.api('POST', '/keys', { name: 'reader', scopes: ['webhooks:read'] })).body.key
  assert.equal((await client(app.url, reading).api('GET', `/webhooks/${webhook.id}`)).status, 200)
  assert.deepEqual(codeOf(await client(app.url, reading).api('POST', `/webhooks/${webhook.id}/test`)), [
    403,
    'insufficient_permissions',
  ])
  await remove(webhook.id)
})

test("a webhook in OpenAI's format has its names of events, which its client verifies and reads", async () => {
  const types = ['fine_tuning.job.cancelled', 'batch.failed']
  const webhook = await register('/openai', { format: 'openai', events: types })
  assert.deepEqual([webhook.format, webhook.events], ['openai', types])
  const data = { 'training.cancelled': { job_id: 'job_1' }, 'batch.failed': { batch_id: 'batch_1' } }
  await app.services.db.transaction().execute(async (trx) => {
    for (const type of ['training.cancelled', 'batch.failed'] as const)
      await recordEvent(trx, app.owner.account_id, type, data[type], Date.now())
  })
  await sent('/openai', 2)
  const openai = new OpenAI({ apiKey: 'unused', webhookSecret: webhook.secret })
  const unwrap = ({ body, headers }: Received, changes = {}) =>
    openai.webhooks.unwrap(body, { ...(headers as Record<string, string>), ...changes })
  const events = await Promise.all(receiver.of('/openai').map((delivery) => unwrap(delivery)))
  for (const { created_at } of events) assert.ok(Math.abs(created_at - Date.now() / 1000) < 60)
  assert.deepEqual(events.map((event) => `${event.object} ${event.type} ${(event.data as { id: string }).id}`).sort(), [
    'event batch.failed batch_1',
    'event fine_tuning.job.cancelled job_1',
  ])
  await assert.rejects(unwrap(receiver.of('/openai')[0]!, { 'webhook-id': 'evt_other' }))
  const listed = (await app.api('GET', `/webhooks/${webhook.id}/deliveries`)).body.items
  assert.deepEqual(listed.map(({ type }: { type: string }) => type).sort(), types.toSorted())
  for (const [format, event] of [
    ['openai', 'training.completed'],
    ['tunery', 'fine_tuning.job.succeeded'],
  ]) {
    const answer = await app.api('POST', '/webhooks', { url: webhook.url, format, events: [event] })
    assert.deepEqual([...codeOf(answer), answer.body.error.details.field], [400, 'invalid_request', 'events'])
  }
  await remove(webhook.id)
})

test('an event of a rolled-back transaction is not sent', async () => {
  const webhook = await register('/rolled-back')
  const db = await app.openDatabase()
  const record = (name: string, fails: boolean) =>
    db.transaction().execute(async (trx) => {
      await recordEvent(trx, app.owner.account_id, 'model.deployed', { name }, Date.now())
      if (fails) throw new Error('no')
    })
  await assert.rejects(record('never', true))
  await record('once', false)
  await sent('/rolled-back')
  await until('it to be settled', async () =>
    (await deliveries(webhook.id)).every(({ status }) => status === 'delivered'),
  )
  assert.deepEqual(
    receiver.of('/rolled-back').map(({ body }) => JSON.parse(body).data),
    [{ name: 'once' }],
  )
  await db.destroy()
  await remove(webhook.id)
})
