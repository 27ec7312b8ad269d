// Four server processes on one Postgres and one Redis: what each of them admits, refuses and serves, exact together.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { type Client, client, until } from '../support/client.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { redisTest, startRedis, type TestRedis } from '../support/redis.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { type FakeUpstream, json, startFakeUpstream } from '../support/upstream.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-redis-'))
const tier = (id: string, limits: [number | null, number | null, number | null]) => {
  const [requests_per_minute, requests_per_day, max_concurrent] = limits
  return { id, name: id, requests_per_minute, requests_per_day, max_concurrent }
}
const plansFile = path.join(folder, 'plans.json')
writeFileSync(
  plansFile,
  JSON.stringify({
    tiers: [
      tier('enterprise', [null, null, null]),
      tier('minute', [200, null, null]),
      tier('day', [null, 300, null]),
      tier('slots', [null, null, 20]),
    ],
  }),
)

describe('four processes with Redis', { skip: redisTest.skip || postgresTest.skip }, () => {
  let postgres: Awaited<ReturnType<typeof startPostgres>>
  let redis: TestRedis
  let upstream: FakeUpstream
  let folders: DataFolder[]
  let servers: RunningServer[]
  let operator: Client
  /** Answers of the model server that wait, until the test lets them go. */
  const waiting = new Set<() => void>()

  before(async () => {
    ;[postgres, redis] = await Promise.all([startPostgres(), startRedis()])
    upstream = await startFakeUpstream(async (_path, body, response) => {
      const { content } = body.messages.at(-1)
      if (content === 'wait') await new Promise<void>((resolve) => waiting.add(resolve))
      const message = { role: 'assistant', content: body.model, refusal: null }
      const choices = [{ index: 0, message, logprobs: null, finish_reason: 'stop' }]
      const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 }
      json(response, 200, { id: 'x', object: 'chat.completion', created: 1, model: body.model, choices, usage })
    })
    const upstreams = ['first', 'second'].map((model) => ({
      model,
      url: upstream.url,
      kind: 'openai',
      max_concurrent: 1000,
    }))
    folders = [1, 2, 3, 4].map((n) =>
      dataFolder(`redis-${n}`, {
        TUNERY_DATABASE_URL: postgres.url,
        TUNERY_REDIS_URL: redis.url,
        TUNERY_PLANS_FILE: plansFile,
        TUNERY_UPSTREAMS: JSON.stringify(upstreams),
        TUNERY_STORAGE_URL: `file://${folder}/storage`,
        TUNERY_SECRET_KEY_FILE: path.join(folder, 'secret.key'),
      }),
    )
    servers = await Promise.all(folders.map((folder) => folder.start()))
    operator = client(
      servers[0]!.url,
      folders[0]!.tunery('keys', 'create', '--name', 'op', '--scopes', 'operator').key!,
    )
  })
  after(async () => {
    for (const folder of folders ?? []) folder.remove()
    upstream?.stop()
    await redis?.stop()
    await postgres?.stop()
    rmSync(folder, { recursive: true })
  })

  async function account(tierId: string) {
    const { body } = await operator.api('POST', '/operator/accounts', {
      name: tierId,
      tier: tierId,
      owner: { name: 'o' },
    })
    const key = body.key as string
    return { id: body.account.id as string, key, at: servers.map(({ url }) => client(url, key)) }
  }
  const get = (url: string, key: string) =>
    fetch(`${url}/user/profile`, { headers: { authorization: `Bearer ${key}` } })
  const chat = (url: string, key: string, model: string, content = 'hi') =>
    fetch(`${url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content }] }),
    })
  const onAll = <T>(count: number, ask: (url: string) => Promise<T>) =>
    Promise.all(Array.from({ length: count }, (_, n) => ask(servers[n % 4]!.url)))
  const statuses = async (answers: Promise<Response[]>) => {
    const counts: Record<number, number> = {}
    for (const answer of await answers) {
      await answer.body?.cancel()
      counts[answer.status] = (counts[answer.status] ?? 0) + 1
    }
    return counts
  }

  for (const [id, max] of [
    ['minute', 200],
    ['day', 300],
  ] as const)
    test(`of 1,000 callers over four processes exactly as many are admitted as the ${id} allows`, async () => {
      const { key } = await account(id)
      assert.deepEqual(await statuses(onAll(1000, (url) => get(url, key))), { 200: max, 429: 1000 - max })
    })

  test('of 400 concurrent requests over four processes exactly as many run as the tier allows', async () => {
    const { key, at } = await account('slots')
    let refused = 0
    const answers = onAll(400, async (url) => {
      const { status } = await chat(url, key, 'first', 'wait')
      if (status === 429) refused++
      return status
    })
    await until('all to be decided', () => refused + waiting.size === 400)
    assert.equal(waiting.size, 20)
    const concurrent = async () => (await at[2]!.api('GET', '/user/profile')).body.usage.concurrent
    assert.equal(await concurrent(), 20)
    for (const release of waiting) release()
    assert.deepEqual([...new Set(await answers)].toSorted(), [200, 429])
    await until('all slots to be free', async () => (await concurrent()) === 0)
  })

  test('a revoked key and a suspended account are refused by every process at once', async () => {
    // Each refusal is a wrong key: more than 30 would block this address.
    for (let round = 0; round < 6; round++) {
      const { id, key, at } = await account('enterprise')
      const revoked = (await at[0]!.api('POST', '/keys', { name: 'to be revoked' })).body
      for (const { url } of servers) assert.equal((await get(url, revoked.key)).status, 200)
      await at[round % 4]!.api('DELETE', `/keys/${revoked.id}`)
      const refused = await Promise.all(servers.map(async ({ url }) => (await get(url, revoked.key)).status))
      assert.deepEqual(refused, [401, 401, 401, 401])
      for (const { url } of servers) assert.equal((await get(url, key)).status, 200)
      await operator.api('PUT', `/operator/accounts/${id}`, { status: 'suspended' })
      const suspended = await Promise.all(servers.map(async ({ url }) => (await get(url, key)).status))
      assert.deepEqual(suspended, [403, 403, 403, 403])
    }
  })

  test('a switched name is answered by its new model by the next request, on every process', async () => {
    const { key, at } = await account('enterprise')
    const created = await at[0]!.api('POST', '/deployments', { name: 'ours', model: 'first' })
    assert.equal(created.status, 201, JSON.stringify(created.body))
    const answering = () =>
      Promise.all(
        servers.map(async ({ url }) => {
          const answer = (await (await chat(url, key, 'ours')).json()) as {
            choices: [{ message: { content: string } }]
          }
          return answer.choices[0].message.content
        }),
      )
    for (let round = 0; round < 10; round++) {
      const model = round % 2 ? 'first' : 'second'
      await answering()
      await at[round % 4]!.api('PUT', '/deployments/ours', { model })
      assert.deepEqual(await answering(), [model, model, model, model])
    }
  })

  test('Redis killed under load: requests continue, the service stays ready, and uses it again later', async () => {
    const { key } = await account('enterprise')
    const limited = await account('minute')
    assert.deepEqual(await statuses(onAll(100, (url) => get(url, limited.key))), { 200: 100 })
    let stop = false
    const seen: Record<number, number> = {}
    const load = Promise.all(
      servers.map(async ({ url }) => {
        while (!stop)
          for (const [status, count] of Object.entries(await statuses(Promise.all([get(url, key), get(url, key)]))))
            seen[Number(status)] = (seen[Number(status)] ?? 0) + count
      }),
    )
    await redis.kill()
    const { 200: admitted = 0, ...others } = await statuses(onAll(400, (url) => get(url, limited.key)))
    assert.ok(admitted <= 104 && admitted >= 80, `${admitted} of the 100 that were left`)
    assert.deepEqual(Object.keys(others), ['429'])
    for (const { url } of servers) {
      const base = url.replace('/v1', '')
      assert.equal((await fetch(`${base}/health/ready`)).status, 200)
      assert.match(await (await fetch(`${base}/metrics`)).text(), /^tunery_redis_away 1$/m)
    }
    const code = (await limited.at[0]!.api('GET', '/user/profile')).status
    assert.ok([200, 429].includes(code))
    await redis.start()
    const up = async ({ url }: RunningServer) =>
      /^tunery_redis_away 0$/m.test(await (await fetch(`${url.replace('/v1', '')}/metrics`)).text())
    await until('all to use Redis', async () => (await Promise.all(servers.map(up))).every(Boolean))
    const rest = (await statuses(onAll(400, (url) => get(url, limited.key))))[200] ?? 0
    assert.ok(rest <= 200 - admitted, `${rest} more, after ${admitted} without Redis`)
    stop = true
    await load
    assert.deepEqual(Object.keys(seen), ['200'], 'no request failed')
  })
})
