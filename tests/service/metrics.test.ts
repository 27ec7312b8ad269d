// What the service tells Prometheus.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { isPostgres } from '../../server/platform/db/dialect.ts'
import { allowed } from '../support/allowed-time.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { appOfTests, startApp } from '../support/service.ts'

const app = appOfTests()

const scrape = async () => (await fetch(`${app.address}/metrics`)).text()
/** The value of the series with these labels; undefined if there is none. */
async function value(name: string, labels = ''): Promise<number | undefined> {
  const line = (await scrape())
    .split('\n')
    .find((candidate) => candidate.startsWith(`${name}${labels && `{${labels}}`} `))
  return line === undefined ? undefined : Number(line.split(' ').at(-1))
}

test('requests are counted by the route of the API, never by what clients wrote into the address', async () => {
  await app.api('GET', '/fine-tuning/jobs/job_of_nobody')
  await fetch(`${app.address}/v1/made/up/address`)
  const text = await scrape()
  assert.match(
    text,
    /^tunery_http_request_seconds_count\{method="GET",route="\/fine-tuning\/jobs\/\{job_id\}",status="404"\} 1$/m,
  )
  assert.doesNotMatch(text, /job_of_nobody|made/)
})

test('a scrape has no key, no account and no id of an object', async () => {
  const text = await scrape()
  for (const secret of [app.key, app.owner.account_id, app.owner.user_id]) assert.ok(!text.includes(secret))
  assert.equal(/\b(acc|key|job|ds|model)_[A-Za-z0-9]{12}/.exec(text), null)
})

test('a refused request is counted under its limit; limits exist before their first refusal', async () => {
  assert.equal(await value('tunery_limit_rejections_total', 'limit="requests_per_day"'), 0)
  const before = (await value('tunery_limit_rejections_total', 'limit="wrong_keys_per_minute"'))!
  for (let times = 0; times < 40; times++)
    await fetch(`${app.url}/datasets`, { headers: { authorization: `Bearer wrong_${times}` } })
  assert.ok((await value('tunery_limit_rejections_total', 'limit="wrong_keys_per_minute"'))! > before)
})

test('queue, jobs and webhooks are there without any work, and read indexes of what has not ended', async () => {
  for (const state of ['queued', 'running', 'paused']) assert.equal(await value('tunery_jobs', `state="${state}"`), 0)
  assert.equal(await value('tunery_webhook_lag_seconds'), 0)
  assert.equal(await value('tunery_database_up'), 1)
  assert.ok((await value('tunery_storage_free_bytes'))! > 0)
  if (isPostgres(app.db)) return
  const plan = async (query: string) =>
    (await sql.raw<{ detail: string }>(`explain query plan ${query}`).execute(app.db)).rows.map(({ detail }) => detail)
  const live = "status in ('waiting', 'leased')"
  assert.match(
    (await plan(`select kind, min(created_at) from queue_entries where ${live} group by kind`))[0]!,
    /queue_entries_live/,
  )
  const unfinished = "status in ('queued', 'running')"
  assert.match(
    (await plan(`select status, paused, count(*) from tuning_jobs where ${unfinished} group by status, paused`))[0]!,
    /tuning_jobs_unfinished/,
  )
})

test('ten scrapes at once look at the database once', async () => {
  const texts = await Promise.all(Array.from({ length: 10 }, scrape))
  const looks = new Set(texts.map((text) => /^tunery_database_look_seconds (.+)$/m.exec(text)![1]))
  assert.equal(looks.size, 1)
})

test('a scrape is answered while Postgres is away, and says so', postgresTest, async () => {
  const postgres = await startPostgres({ durable: false })
  const other = await startApp({ TUNERY_DATABASE_URL: postgres.url })
  try {
    await postgres.kill()
    const began = performance.now()
    const text = await (await fetch(`${other.address}/metrics`)).text()
    assert.match(text, /^tunery_database_up 0$/m)
    assert.match(text, /^tunery_storage_free_bytes \d+$/m)
    assert.ok(performance.now() - began < allowed(4000))
  } finally {
    await other.stop().catch(() => {})
    await postgres.stop()
  }
})
