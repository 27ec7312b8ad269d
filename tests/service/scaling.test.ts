// The API of scaling: what it accepts, whom it belongs to, and what it leaves behind. No replica starts here.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp({ TUNERY_REPLICA_CORES: '1' })
  assert.equal((await app.api('POST', '/deployments', { name: 'tickets', model: tiny })).status, 201)
})
after(() => app.stop())

const scaling = { min_replicas: 0, max_replicas: 4 }
const put = (body: object, name = 'tickets') => app.api('PUT', `/deployments/${name}/scaling`, body)
const get = () => app.api('GET', '/deployments/tickets/scaling')

test('a deployment does not scale until it is told to; the body is that of the specification', async () => {
  const before = await get()
  assert.equal(before.status, 200)
  assert.equal(before.body.scaling, null)
  assert.ok(before.body.instance_types.some((each: { name: string }) => each.name === 'cpu'))
  const full = {
    model: 'tickets',
    scaling: {
      min_replicas: 0,
      max_replicas: 4,
      target_gpu_utilization: 70,
      target_requests_per_replica: 4,
      scale_up_cooldown: '30s',
      scale_down_cooldown: '1h',
    },
    instance_type: 'cpu',
  }
  const set = await put(full)
  assert.equal(set.status, 200, JSON.stringify(set.body))
  const { body } = await get()
  assert.deepEqual({ model: body.model, scaling: body.scaling, instance_type: body.instance_type }, full)
  assert.deepEqual(body.replicas, { desired: 0, ready: 0, starting: 0, draining: 0, items: [] })
  assert.deepEqual(body.decisions, [])
})

test('replicas are removed once the deletion of their deployment is committed', async () => {
  assert.equal((await app.api('POST', '/deployments', { name: 'kept', model: tiny })).status, 201)
  const { events } = app.services
  let removed = 0
  let fails = true
  events.on('deployment.deleted', async () => () => void removed++)
  events.on('deployment.deleted', async () => {
    if (fails) throw new Error('the disk is full')
    return undefined
  })
  assert.equal((await app.api('DELETE', '/deployments/kept')).status, 500)
  assert.deepEqual([removed, (await app.api('GET', '/deployments/kept')).status], [0, 200])
  fails = false
  assert.equal((await app.api('DELETE', '/deployments/kept')).status, 200)
  assert.equal(removed, 1)
})

test('what is left out has defaults, and the served model is accepted for the name', async () => {
  const set = await put({ model: tiny, scaling: { min_replicas: 0, max_replicas: 2 } })
  assert.deepEqual(set.body.scaling, {
    min_replicas: 0,
    max_replicas: 2,
    target_requests_per_replica: 8,
    target_gpu_utilization: null,
    scale_up_cooldown: '30s',
    scale_down_cooldown: '5m',
  })
})

test('more replicas than the machine has room for are accepted, and said', async () => {
  const set = await put({ scaling: { min_replicas: 0, max_replicas: 64 } })
  assert.equal(set.status, 200)
  for (let round = 0; round < 100; round++) {
    const { limit } = (await get()).body
    if (limit) return assert.match(limit, /room for \d+ replicas? on cpu now; max_replicas is 64/)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  assert.fail('no limit was told')
})

test('the deployments of an account have no more replicas in all than its tier allows, however they ask', async () => {
  const setTier = (tier: string) =>
    app.db.transaction().execute((trx) => trx.updateTable('accounts').set({ tier }).execute())
  const of = (name: string, max_replicas: number) => put({ scaling: { min_replicas: 0, max_replicas } }, name)
  for (const name of ['one', 'two']) await app.api('POST', '/deployments', { name, model: tiny })
  assert.equal((await of('tickets', 2)).status, 200)
  // 8 in all.
  await setTier('pro')
  const both = await Promise.all([of('one', 5), of('two', 5)])
  const refused = both.find(({ status }) => status !== 200)!
  assert.deepEqual(both.map(({ status }) => status).sort(), [200, 400], JSON.stringify(both.map(({ body }) => body)))
  const { code, message, details } = refused.body.error
  assert.equal(code, 'too_many')
  assert.match(message, /'max_replicas' is 5.*have 7: its tier 'Pro' allows 8 in all, so at most 1 here/)
  assert.deepEqual(details, { limit: 'max_replicas', max: 8, used: 7 })
  const [first, second] = both[0] === refused ? ['two', 'one'] : ['one', 'two']
  assert.equal((await of(second!, 1)).status, 200)
  // Above a limit that was lowered, a change may only lower.
  await setTier('enterprise')
  assert.equal((await of(first!, 20)).status, 200)
  await setTier('pro')
  assert.equal((await of(first!, 21)).status, 400)
  assert.equal((await of(first!, 19)).status, 200)
  // What does not scale any more takes nothing of the limit.
  for (const name of ['one', 'two']) await app.api('DELETE', `/deployments/${name}`)
  assert.equal((await of('tickets', 9)).status, 400)
  assert.equal((await of('tickets', 8)).status, 200)
  await setTier('enterprise')
})

for (const [title, body, message] of [
  [
    'fewer at most than at least',
    { scaling: { min_replicas: 3, max_replicas: 2 } },
    /min_replicas.*more than max_replicas/,
  ],
  ['no replica at most', { scaling: { min_replicas: 0, max_replicas: 0 } }, /max_replicas/],
  ['a duration without a unit', { scaling: { ...scaling, scale_up_cooldown: '30' } }, /such as 30s, 5m or 1h/],
  ['a duration of a month', { scaling: { ...scaling, scale_down_cooldown: '720h' } }, /at most 24h/],
  ['more than all of a GPU', { scaling: { ...scaling, target_gpu_utilization: 101 } }, /target_gpu_utilization/],
  ['a misspelt field', { scaling: { ...scaling, max_replica: 1 } }, /max_replica/],
  ['a class that is not here', { scaling, instance_type: 'a100' }, /'a100', which is not known here. There are: .*cpu/],
  ['another name', { model: 'other', scaling }, /'other', but this address scales 'tickets'/],
  ['nothing', {}, /scaling/],
] as const)
  test(`${title} is refused, and the message says what to do`, async () => {
    const { status, body: answer } = await put(body)
    assert.equal(status, 400, JSON.stringify(answer))
    assert.match(answer.error.message, message)
  })

test('another account’s deployment is not found, nor is one that does not exist', async () => {
  for (const answer of [
    await app.other.api('GET', '/deployments/tickets/scaling'),
    await app.other.api('PUT', '/deployments/tickets/scaling', { scaling }),
    await app.other.api('DELETE', '/deployments/tickets/scaling'),
    await put({ scaling }, 'nothing'),
  ]) {
    assert.equal(answer.status, 404)
    assert.equal(answer.body.error.code, 'deployment_not_found')
  }
})

test('changes need the scope for writing, are in the audit log, and can be taken back once', async () => {
  const { key } = (await app.api('POST', '/keys', { name: 'reader', scopes: ['deployments:read'] })).body
  const as = (method: string) =>
    fetch(`${app.url}/deployments/tickets/scaling`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(method === 'PUT' && { body: JSON.stringify({ scaling }) }),
    }).then(({ status }) => status)
  assert.deepEqual([await as('GET'), await as('PUT'), await as('DELETE')], [200, 403, 403])
  assert.equal((await put({ scaling })).status, 200)
  const removed = await app.api('DELETE', '/deployments/tickets/scaling')
  assert.equal(removed.status, 200)
  assert.equal((await get()).body.scaling, null)
  const again = await app.api('DELETE', '/deployments/tickets/scaling')
  assert.equal(again.status, 404)
  assert.match(again.body.error.message, /'tickets' does not scale/)
  const { items } = (await app.api('GET', '/audit?limit=10')).body
  const actions = items.map(({ action }: { action: string }) => action)
  assert.deepEqual(actions.slice(0, 2), ['scaling.removed', 'scaling.changed'])
})

test('a deleted deployment leaves nothing of its scaling', async () => {
  assert.equal((await app.api('POST', '/deployments', { name: 'gone', model: tiny })).status, 201)
  assert.equal((await put({ scaling }, 'gone')).status, 200)
  assert.equal((await app.api('DELETE', '/deployments/gone')).status, 200)
  const rows = await app.db.selectFrom('deployment_scaling').selectAll().execute()
  assert.deepEqual(rows, [])
})

test('a deployment that is deleted while it is told to scale leaves nothing either', async () => {
  for (let round = 0; round < 12; round++) {
    assert.equal((await app.api('POST', '/deployments', { name: 'brief', model: tiny })).status, 201)
    const [changed, deleted] = await Promise.all([put({ scaling }, 'brief'), app.api('DELETE', '/deployments/brief')])
    assert.equal(deleted.status, 200)
    assert.ok([200, 404].includes(changed.status), JSON.stringify(changed.body))
  }
  assert.deepEqual(await app.db.selectFrom('deployment_scaling').selectAll().execute(), [])
})
