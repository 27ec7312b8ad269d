// Figures of a deployment over time: the rows of its requests, by bucket, with what failed.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import type { Timeline } from '../../contract/timeline.ts'
import { until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { endless, tiny } from '../support/tiny.ts'

const app = appOfTests()
before(async () => {
  await app.started
  assert.equal((await app.api('POST', '/deployments', { name: 'mine', model: tiny })).status, 201)
})

const messages = [{ role: 'user', content: 'Say something.' }]
const ask = (body: object) => app.api('POST', '/chat/completions', { messages, max_tokens: 3, ...endless, ...body })
async function metrics(query = '', name = 'mine'): Promise<Timeline> {
  const { status, body } = await app.api('GET', `/deployments/${name}/metrics${query}`)
  assert.equal(status, 200, JSON.stringify(body))
  return body
}
const sumOf = (timeline: Timeline, read: (bucket: Timeline['total']) => number) =>
  timeline.buckets.reduce((sum, bucket) => sum + read(bucket), 0)

/** Adds requests of the past, as the journal does. */
async function addPast(model: string, requests: { at: number; duration_ms: number; finish?: 'complete' | 'broken' }[]) {
  const { account_id } = app.owner
  for (const [index, { at, duration_ms, finish = 'complete' }] of requests.entries())
    app.services.usage.record({
      request_id: `req_${model}_${at}_${index}`,
      created_at: at,
      account_id,
      key_id: 'key_x',
      model,
      model_id: tiny,
      kind: 'chat',
      prompt_tokens: 10,
      completion_tokens: 2,
      cached_tokens: 0,
      duration_ms,
      first_token_ms: Math.floor(duration_ms / 10),
      cost: 0,
      finish,
    })
}

test('what clients were answered is in the figures at once: tokens, times, and each failure by its kind', async () => {
  const whole = await ask({ model: 'mine' })
  assert.equal(whole.status, 200)
  const body = { model: 'mine', messages, max_tokens: 5, stream: true, ...endless }
  assert.ok((await stream(`${app.url}/chat/completions`, app.key, body).result).done)
  const leaving = new AbortController()
  const left = await fetch(`${app.url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, max_tokens: 4000 }),
    signal: leaving.signal,
  })
  await left.body!.getReader().read()
  leaving.abort()
  assert.equal((await ask({ model: 'mine', temperature: 9 })).status, 400)
  assert.equal((await ask({ model: 'mine', messages: [{ role: 'user', content: 'x '.repeat(50_000) }] })).status, 400)
  const found = await until('all of it', async () => {
    const timeline = await metrics()
    return timeline.total.requests === 5 ? timeline : undefined
  })
  const { total } = found
  assert.deepEqual(total.errors, { client_left: 1, broken: 0, failed: 0, refused: 0, invalid: 2 })
  assert.ok(total.completion_tokens >= 3 + 5 + 1, String(total.completion_tokens))
  assert.ok(total.prompt_tokens >= 3 * whole.body.usage.prompt_tokens)
  assert.ok(total.latency_ms!.p50 <= total.latency_ms!.p95)
  assert.ok(total.first_token_ms !== null && total.first_token_ms.p95 <= total.latency_ms!.p95)
  assert.equal(found.step, 'hour')
  assert.ok(found.buckets.length >= 24 && found.buckets.length <= 26)
  for (const read of [
    (figures: Timeline['total']) => figures.requests,
    (figures: Timeline['total']) => figures.completion_tokens,
    (figures: Timeline['total']) => figures.errors.invalid,
  ])
    assert.equal(sumOf(found, read), read(total))
  const { body: same } = await app.api('GET', '/usage/timeline?model=mine')
  assert.deepEqual(same.total, total)
})

test('requests for names that nobody has are not counted', async () => {
  assert.equal((await ask({ model: 'nobody' })).status, 404)
  assert.equal((await ask({ model: 'nobody', temperature: 9 })).status, 400)
  await app.services.usage.fold()
  assert.equal((await app.api('GET', '/usage/timeline?model=nobody')).body.total.requests, 0)
})

test('buckets hold what came in them, and percentiles are those of their own requests', async () => {
  const minute = 60_000
  const now = Date.now()
  const base = now - (now % 3_600_000) - 5 * 3_600_000
  await addPast('past', [
    ...Array.from({ length: 100 }, (_, index) => ({ at: base + index, duration_ms: 10 * (index + 1) })),
    { at: base + minute, duration_ms: 5000 },
    { at: base + minute, duration_ms: 1, finish: 'broken' as const },
    // Just outside.
    { at: base - 1, duration_ms: 7 },
    { at: base + 3 * minute, duration_ms: 7 },
  ])
  const iso = (at: number) => new Date(at).toISOString()
  const path = `/usage/timeline?model=past&from=${iso(base)}&to=${iso(base + 2 * minute + 1)}&step=minute`
  const { status, body } = await app.api('GET', path)
  assert.equal(status, 200, JSON.stringify(body))
  const { buckets, total } = body as Timeline
  assert.deepEqual(
    buckets.map(({ at, requests }) => [at, requests]),
    [
      [iso(base), 100],
      [iso(base + minute), 2],
      [iso(base + 2 * minute), 0],
    ],
  )
  const near = (actual: Timeline['total']['latency_ms'], p50: number, p95: number) => {
    assert.ok(Math.abs(actual!.p50 / p50 - 1) < 0.03 && Math.abs(actual!.p95 / p95 - 1) < 0.03, JSON.stringify(actual))
  }
  near(buckets[0]!.latency_ms, 500, 950)
  near(buckets[0]!.first_token_ms, 50, 95)
  near(buckets[1]!.latency_ms, 5000, 5000)
  assert.equal(buckets[1]!.errors.broken, 1)
  assert.equal(buckets[2]!.latency_ms, null)
  assert.deepEqual([total.requests, total.prompt_tokens, total.completion_tokens], [102, 1020, 204])
  near(total.latency_ms, 510, 960)

  const hours = (await app.api('GET', path.replace('minute', 'hour'))).body as Timeline
  assert.deepEqual(
    hours.buckets.map(({ at, requests }) => [at, requests]),
    [[iso(base), 103]],
  )
  const days = (await app.api('GET', `/usage/timeline?model=past&step=day`)).body as Timeline
  assert.equal(days.total.requests, 104)
})

test(
  'periods that are backwards, too long or too fine are refused with what to do, and nobody sees another ' +
    'account’s',
  async () => {
    const refused = async (query: string, param: string) => {
      const { status, body } = await app.api('GET', `/deployments/mine/metrics?${query}`)
      assert.deepEqual([status, body.error.code], [400, 'invalid_request'], query)
      assert.equal(JSON.stringify(body.error).includes(param), true, body.error.message)
    }
    await refused('from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z', 'from')
    await refused('from=2026-01-01T00:00:00Z&to=2026-06-01T00:00:00Z', '90 days')
    const ago = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString()
    await refused(`from=${ago(3)}&step=minute`, 'longer step')
    await refused(`from=${ago(9)}&to=${ago(8.9)}&step=minute`, 'for hours')
    assert.equal((await metrics(`?from=${ago(9)}&to=${ago(8.9)}`)).step, 'hour')
    await refused('step=second', 'step')
    await refused('from=yesterday', 'from')
    assert.equal((await app.api('GET', '/deployments/nobody/metrics')).status, 404)
    assert.equal((await app.other.api('GET', '/deployments/mine/metrics')).status, 404)
    assert.equal((await app.other.api('GET', '/usage/timeline?model=mine')).body.total.requests, 0)
  },
)
