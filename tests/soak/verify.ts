// Checks that exactly what was acknowledged is there.
import { openDatabase } from '../../server/platform/db/open.ts'
import type { Client } from '../support/client.ts'
import type { Ledger } from './ledger.ts'

async function all(api: Client['api'], route: string): Promise<Map<string, Record<string, unknown>>> {
  const entries = new Map<string, Record<string, unknown>>()
  for (let after = ''; ; ) {
    const { status, body } = await api('GET', `${route}?limit=100${after && `&after=${after}`}`)
    if (status !== 200) throw new Error(`GET ${route} was answered with ${status}: ${JSON.stringify(body)}`)
    for (const item of body.items) entries.set(item.name && route === '/deployments' ? item.name : item.id, item)
    if (!body.has_more) return entries
    after = body.items.at(-1).id
  }
}

/** Resolves with the violations. The service must run, without load. */
export async function verify(
  { api }: Client,
  { dataDir, database_url }: { dataDir: string; database_url: string | undefined },
  ledger: Ledger,
  webhook: string,
): Promise<string[]> {
  const faults: string[] = []
  const check = (right: boolean, text: string) => {
    if (!right) faults.push(text)
  }

  const deletionRequested = new Set(ledger.of('asked_to_delete').map(({ id }) => id))
  const datasets = await all(api, '/datasets')
  const deleted = new Set(ledger.of('dataset_deleted').map(({ id }) => id))
  for (const { id } of ledger.of('dataset')) {
    if (deleted.has(id)) check(!datasets.has(id), `the dataset ${id} was deleted and is there again`)
    else if (datasets.has(id) || !deletionRequested.has(id))
      check(datasets.get(id)?.status === 'ready', `the dataset ${id} is ${datasets.get(id)?.status ?? 'lost'}`)
  }

  const jobs = await all(api, '/fine-tuning/jobs')
  for (const { id } of ledger.of('job')) check(jobs.has(id), `the job ${id} is lost`)
  for (const { id, status } of ledger.of('job_ended'))
    check(jobs.get(id)?.status === status, `the job ${id} was ${status} and is ${jobs.get(id)?.status}`)

  const keys = await all(api, '/keys')
  const revoked = new Set(ledger.of('key_revoked').map(({ id }) => id))
  for (const { id } of ledger.of('key')) {
    if (revoked.has(id)) check(!keys.has(id), `the key ${id} was revoked and is there again`)
    else check(keys.has(id) || deletionRequested.has(id), `the key ${id} is lost`)
  }

  const deployments = await all(api, '/deployments')
  for (const { name } of ledger.of('deployment')) check(deployments.has(name), `the deployment ${name} is lost`)

  const db = await openDatabase(dataDir, database_url)
  try {
    const rows = new Map((await db.selectFrom('usage').selectAll().execute()).map((row) => [row.request_id, row]))
    for (const { request_id, completion_tokens } of ledger.of('answer'))
      check(
        rows.get(request_id)?.completion_tokens === completion_tokens,
        `${request_id} had ${completion_tokens} tokens; metered are ${rows.get(request_id)?.completion_tokens}`,
      )
    const sums = await db
      .selectFrom('usage_days')
      .select(({ fn }) => [fn.sum('requests').as('requests'), fn.sum('completion_tokens').as('tokens')])
      .executeTakeFirstOrThrow()
    const tokens = [...rows.values()].reduce((sum, row) => sum + row.completion_tokens, 0)
    check(
      Number(sums.requests) === rows.size && Number(sums.tokens) === tokens,
      `the days hold ${sums.requests} requests and ${sums.tokens} tokens, the rows ${rows.size} and ${tokens}`,
    )

    const events = await db.selectFrom('events').select(['type', 'data_json']).execute()
    const countEvents = (type: string, id: unknown) =>
      events.filter((event) => event.type === type && JSON.parse(event.data_json).job_id === id).length
    for (const [id, { status, started_at }] of jobs) {
      if (started_at)
        check(
          countEvents('training.started', id) === 1,
          `the start of ${id} was written ${countEvents('training.started', id)} times`,
        )
      const ended = countEvents('training.completed', id) + countEvents('training.failed', id)
      check(
        ended === (status === 'completed' || status === 'failed' ? 1 : 0),
        `the end of ${id}, which is ${status}, was written ${ended} times`,
      )
    }
    // Each event since the webhook was registered has exactly one delivery.
    const { created_at } = await db
      .selectFrom('webhooks')
      .select('created_at')
      .where('id', '=', webhook)
      .executeTakeFirstOrThrow()
    const since = await db
      .selectFrom('events')
      .select('id')
      .where('created_at', '>', created_at)
      .where('type', '!=', 'usage.threshold')
      .execute()
    const deliveries = (
      await db.selectFrom('webhook_deliveries').select('event_id').where('webhook_id', '=', webhook).execute()
    ).map(({ event_id }) => event_id)
    for (const { id } of since)
      check(deliveries.filter((delivery) => delivery === id).length === 1, `the event ${id} has not one delivery`)

    // A job or key that was retried after a kill exists once.
    const marks = await db.selectFrom('idempotency_keys').select(['key', 'target']).execute()
    const targets = new Map(marks.map(({ key, target }) => [key, target]))
    for (const { id, idempotency_key } of [...ledger.of('job'), ...ledger.of('key')])
      check(
        !targets.has(idempotency_key) || targets.get(idempotency_key) === id,
        `${idempotency_key} created ${targets.get(idempotency_key)} and ${id}`,
      )
    const jobsMarked = marks.filter(({ target }) => target.startsWith('job_')).length
    check(jobs.size === jobsMarked, `${jobsMarked} jobs were asked for, ${jobs.size} are there`)
  } finally {
    await db.destroy()
  }
  return faults
}
