// Retries, back-off, disabling and redelivery of webhooks, with a manual clock and real receivers.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { afterEach, beforeEach, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { lease_ms } from '../../server/features/webhooks/deliver.ts'
import { claim } from '../../server/features/webhooks/store.ts'
import { client, until } from '../support/client.ts'
import { type Received, startReceiver } from '../support/receiver.ts'
import { tinyModelsDir } from '../support/tiny.ts'
import { account_id, by, startWebhooks } from '../support/webhooks.ts'

let it: Awaited<ReturnType<typeof startWebhooks>>
let receiver: Awaited<ReturnType<typeof startReceiver>>
/** The receiver's answer per path; 200 if there is none. */
let answers: Record<string, (response: http.ServerResponse, request: Received) => void>
beforeEach(async () => {
  answers = {}
  it = await startWebhooks()
  receiver = await startReceiver((request, response) =>
    (answers[request.path] ?? ((one) => void one.end()))(response, request),
  )
})
afterEach(async () => {
  receiver.stop()
  await it.stop()
})

const status = (code: number) => (response: http.ServerResponse) => void response.writeHead(code).end(`status ${code}`)
const hang = () => {}
const at = (route: string) => `http://127.0.0.1:${receiver.port}${route}`
const names = (route: string) => receiver.of(route).map(({ body }) => JSON.parse(body).data.name)
const ids = (route: string) => new Set(receiver.of(route).map(({ headers }) => headers['webhook-id']))
/** Claims a delivery like a process that then dies. */
const claimOne = () => claim(it.db, it.clock.time, it.clock.time + lease_ms, { failing: false, limit: 1 })
const [second, minute, hour] = [1000, 60_000, 3_600_000]

/**
 * Resolves when all deliveries that were due at the call were handled: a marker sent to another webhook has arrived.
 */
async function settled(): Promise<void> {
  const route = `/barrier-${Math.random()}`
  const id = await it.register(at(route))
  await it.webhooks.test(by, id)
  await until('the barrier', () => receiver.of(route).length > 0)
  await it.webhooks.delete(by, id)
}

test('ten jittered attempts over 75 hours with the same bytes and id; then the webhook is disabled', async () => {
  answers['/down'] = status(500)
  const id = await it.register(at('/down'))
  await it.happen('lost?')
  const pauses: number[] = []
  for (let tries = 1; ; tries++) {
    await until(`try ${tries}`, async () => (await it.deliveries(id))[0]!.attempt_count === tries)
    const { next_attempt_at } = (await it.deliveries(id))[0]!
    if (next_attempt_at === null) break
    pauses.push(Date.parse(next_attempt_at) - it.clock.time)
    it.passTo(Date.parse(next_attempt_at))
  }
  const wanted = [5 * second, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour]
  assert.equal(pauses.length, wanted.length)
  for (const [index, pause] of pauses.entries())
    assert.ok(Math.abs(pause - wanted[index]!) <= wanted[index]! / 10, `pause ${index + 1}: ${pause} ms`)
  assert.ok(pauses.some((pause, index) => pause !== wanted[index]))
  assert.deepEqual(
    [receiver.of('/down').length, ids('/down').size, new Set(receiver.of('/down').map(({ body }) => body)).size],
    [10, 1, 1],
  )
  assert.equal(
    new Set(receiver.of('/down').map(({ headers }) => headers['webhook-timestamp'])).size,
    10,
    'each attempt has its own timestamp',
  )

  const [delivery] = await it.deliveries(id)
  assert.deepEqual(
    [delivery!.status, delivery!.last_attempt!.response_status, delivery!.last_attempt!.response_body],
    ['failed', 500, 'status 500'],
  )
  assert.equal((await it.webhooks.delivery(account_id, id, delivery!.id)).attempts.length, 10)
  const webhook = await it.webhooks.get(account_id, id)
  assert.deepEqual([webhook.status, webhook.disabled_reason], ['disabled', 'failing'])
  const notice = await it.db
    .selectFrom('audit')
    .selectAll()
    .where('action', '=', 'webhook.disabled')
    .executeTakeFirstOrThrow()
  assert.deepEqual([notice.kind, notice.target, JSON.parse(notice.details_json).reason], ['service', id, 'failing'])
  await it.happen('while it is disabled')
  assert.equal((await it.deliveries(id)).length, 1)
  await assert.rejects(it.webhooks.redeliver(by, id, delivery!.id), /disabled/)

  answers['/down'] = status(200)
  await it.webhooks.change(by, id, { disabled: false })
  await it.webhooks.redeliver(by, id, delivery!.id)
  await until('it to be delivered', async () => (await it.deliveries(id))[1]?.status === 'delivered')
  assert.equal(ids('/down').size, 1)
})

test('410 disables a webhook at once; its pending deliveries continue once it is enabled', async () => {
  answers['/gone'] = status(503)
  const id = await it.register(at('/gone'))
  await it.happen('pending')
  await until('a try', async () => (await it.deliveries(id))[0]!.attempt_count === 1)
  answers['/gone'] = status(410)
  await it.happen('gone')
  await until('it to be disabled', async () => (await it.webhooks.get(account_id, id)).disabled_reason === 'gone')
  it.passTo(it.clock.time + hour)
  await settled()
  assert.equal(receiver.of('/gone').length, 2)
  answers['/gone'] = status(200)
  await it.webhooks.change(by, id, { disabled: false })
  await until('both', async () => (await it.deliveries(id)).every((each) => each.status === 'delivered'))
})

test('a failing webhook is slowed to one attempt at a time; one success sends all pending deliveries', async () => {
  answers['/slow'] = status(500)
  const id = await it.register(at('/slow'))
  await it.happen('first')
  for (let tries = 1; tries <= 3; tries++) {
    const delivery = await until(`try ${tries}`, async () =>
      (await it.deliveries(id)).find(({ attempt_count }) => attempt_count === tries),
    )
    if (tries < 3) it.passTo(Date.parse(delivery.next_attempt_at!))
  }
  for (const name of ['second', 'third', 'fourth']) await it.happen(name)
  await settled()
  assert.deepEqual(names('/slow'), ['first', 'first', 'first'], 'the others wait for its pause')

  const open: http.ServerResponse[] = []
  answers['/slow'] = (response) => void open.push(response)
  it.passTo(it.clock.time + 35 * minute)
  await until('the probe', () => open.length > 0)
  await settled()
  assert.deepEqual(
    [open.length, names('/slow').at(-1)],
    [1, 'second'],
    'one at a time, and one that has not been tried',
  )
  answers['/slow'] = status(200)
  open[0]!.end()
  await until('all', async () => (await it.deliveries(id)).every((each) => each.status === 'delivered'))
  assert.equal((await it.webhooks.get(account_id, id)).failing_since, null)
})

test('one event that a receiver rejects does not disable a webhook that accepts others', async () => {
  answers['/picky'] = (response, { body }) => status(body.includes('poison') ? 500 : 200)(response)
  const id = await it.register(at('/picky'))
  await it.happen('poison')
  for (let tries = 1; tries <= 10; tries++) {
    const poison = await until(`try ${tries}`, async () =>
      (await it.deliveries(id)).find((each, index) => index === 0 && each.attempt_count === tries),
    )
    it.passTo(it.clock.time + second)
    await it.happen(`good ${tries}`)
    await until('the good one', async () => (await it.deliveries(id)).at(-1)!.status === 'delivered')
    if (poison.next_attempt_at) it.passTo(Date.parse(poison.next_attempt_at))
  }
  assert.deepEqual(
    [(await it.deliveries(id))[0]!.status, (await it.webhooks.get(account_id, id)).status],
    ['failed', 'active'],
  )
})

test('new deliveries come before failed ones: one bad event does not decide about a slowed webhook', async () => {
  await it.pause()
  const id = await it.register(at('/order'))
  await it.happen('tried')
  await it.db.updateTable('webhook_deliveries').set({ attempts: 3 }).execute()
  it.passTo(it.clock.time + second)
  await it.happen('fresh')
  const [claimed] = await claimOne()
  assert.equal(claimed!.id, (await it.deliveries(id))[1]!.id)
})

test('hanging receivers do not delay other webhooks', async () => {
  answers['/hangs'] = hang
  for (let count = 0; count < 40; count++) await it.register(at('/hangs'))
  for (let count = 0; count < 5; count++) await it.happen('to all')
  await until('the hanging receivers to be called', () => receiver.of('/hangs').length >= 80)
  const id = await it.register(at('/quick'))
  await it.happen('quick')
  await until('the other', () => receiver.of('/quick').length === 1)
  assert.equal(receiver.of('/hangs').length, 80, 'two tries at once to each of them')
  await until('it to be settled', async () => (await it.deliveries(id))[0]!.status === 'delivered')
})

test('an account with many deliveries holds up those of another by one at most', async () => {
  await it.pause()
  for (let count = 0; count < 6; count++) await it.register(at(`/many-${count}`))
  await it.happen('of the one')
  it.passTo(it.clock.time + minute)
  const other = await it.addAccount('acc_other')
  for (let count = 0; count < 2; count++) await it.register(at(`/few-${count}`), other)
  await it.happen('of the other', other)
  const next = async (limit: number) => {
    const claimed = await claim(it.db, it.clock.time, it.clock.time + lease_ms, { failing: false, limit })
    return claimed.map((delivery) => delivery.account_id).sort()
  }
  assert.deepEqual(await next(3), [other, account_id, account_id].sort())
  assert.deepEqual(await next(1), [other], 'two of the first are in progress')
  assert.deepEqual(await next(9), Array(4).fill(account_id))
})

test('an attempt whose process died is repeated with the same id when its lease expires, and not before', async () => {
  await it.pause()
  const id = await it.register(at('/crash'))
  await it.happen('claimed by one who died')
  const [lost] = await claimOne()
  assert.ok(lost)
  it.goOn()
  await settled()
  assert.equal(receiver.of('/crash').length, 0)
  it.passTo(it.clock.time + lease_ms)
  await until('it', async () => (await it.deliveries(id))[0]!.status === 'delivered')
  assert.deepEqual([...ids('/crash')], [lost.event_id])
})

test('a service that stops during an attempt releases it, and the next process sends it with the same id', async () => {
  answers['/stop'] = hang
  const id = await it.register(at('/stop'))
  await it.happen('cut')
  await until('the first try', () => receiver.of('/stop').length === 1)
  await it.pause()
  assert.deepEqual([(await it.deliveries(id))[0]!.status, (await it.deliveries(id))[0]!.attempt_count], ['pending', 0])
  answers['/stop'] = status(200)
  it.goOn()
  await until('the second', async () => (await it.deliveries(id))[0]!.status === 'delivered')
  assert.deepEqual([receiver.of('/stop').length, ids('/stop').size], [2, 1])
})

test('processes with a shared database share the work: each delivery is sent once', async () => {
  const others = [it.another(), it.another()].map((each) => each.deliverer.start())
  const hooks = await Promise.all(Array.from({ length: 10 }, (_, index) => it.register(at(`/shared-${index}`))))
  for (let count = 0; count < 10; count++) await it.happen(`event ${count}`)
  for (const id of hooks)
    await until(
      'all',
      async () => (await it.deliveries(id)).filter((each) => each.status === 'delivered').length === 10,
    )
  for (const each of others) await each.close()
  assert.equal(receiver.received.length, 100)
})

test('a test event is attempted once, also for a disabled webhook; a deleted webhook gets nothing', async () => {
  answers['/tested'] = status(500)
  const id = await it.register(at('/tested'))
  await it.webhooks.change(by, id, { disabled: true })
  await it.webhooks.test(by, id)
  await until('its end', async () => (await it.deliveries(id))[0]!.status === 'failed')
  await it.happen('unheard')
  await it.webhooks.change(by, id, { disabled: false })
  answers['/tested'] = hang
  await it.happen('cut off by the deletion')
  await until('the try', () => receiver.of('/tested').length === 2)
  await it.happen('never sent')
  await it.webhooks.delete(by, id)
  it.passTo(it.clock.time + 100 * hour)
  await settled()
  assert.ok(!names('/tested').includes('unheard'))
  assert.equal(
    (await it.db.selectFrom('webhook_deliveries').select('id').where('webhook_id', '=', id).execute()).length,
    0,
  )
})

test('while the secret key is missing, deliveries wait without using up attempts', async () => {
  await it.pause()
  const id = await it.register(at('/locked'))
  const lines: string[] = []
  const elsewhere = it.another('another.key', lines)
  await it.happen('locked up')
  const wrong = elsewhere.deliverer.start()
  await until('the log to say so', () => lines.some((line) => line.includes('TUNERY_SECRET_KEY_FILE')))
  await wrong.close()
  assert.deepEqual([(await it.deliveries(id))[0]!.attempt_count, receiver.of('/locked').length], [0, 0])
  it.goOn()
  it.passTo(it.clock.time + lease_ms)
  await until('it', async () => (await it.deliveries(id))[0]!.status === 'delivered')
})

test('deliveries of a suspended account wait and continue when it is reinstated', async () => {
  const id = await it.register(at('/suspended'))
  await it.pause()
  await it.db.updateTable('accounts').set({ suspended_at: it.clock.time }).execute()
  await it.happen('waits')
  assert.deepEqual(await claimOne(), [])
  await it.db.updateTable('accounts').set({ suspended_at: null }).execute()
  it.goOn()
  await until('it', async () => (await it.deliveries(id))[0]!.status === 'delivered')
})

test('a server killed during a delivery sends it again with the same id after a restart', async () => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-killed-'))
  const settings = {
    TUNERY_DATA_DIR: dataDir,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'fatal',
  }
  const env = { ...process.env, ...settings, TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8' }
  const file = path.join(dataDir, 'server.json')
  const start = async (): Promise<ChildProcess> => {
    rmSync(file, { force: true })
    const server = spawn(process.execPath, ['server/main.ts'], {
      cwd: root,
      env,
      stdio: ['ignore', 'ignore', 'inherit'],
    })
    await until('the server to listen', () => existsSync(file))
    return server
  }
  const kill = async (server: ChildProcess) => {
    if (server.kill('SIGKILL')) await once(server, 'exit')
  }
  answers['/killed'] = hang
  let server = await start()
  try {
    const { key } = JSON.parse(
      execFileSync(path.join(root, 'tunery'), ['keys', 'create', '--name', 'ci', '--json'], { env, encoding: 'utf8' }),
    )
    const { api } = client(JSON.parse(readFileSync(file, 'utf8')).url, key)
    const { id } = (await api('POST', '/webhooks', { url: at('/killed'), events: ['model.deployed'] })).body
    const { event_id } = (await api('POST', `/webhooks/${id}/test`)).body
    await until('the first try', () => receiver.of('/killed').length === 1)
    await kill(server)
    answers['/killed'] = status(200)
    server = await start()
    await until('the second', () => receiver.of('/killed').length === 2)
    assert.deepEqual([...ids('/killed')], [event_id])
    assert.equal(new Set(receiver.of('/killed').map(({ body }) => body)).size, 1)
  } finally {
    await kill(server)
    rmSync(dataDir, { recursive: true, force: true })
  }
})
