import { type Kysely, type RawBuilder, sql } from 'kysely'
import { isPostgres } from '../dialect.ts'

/** Most tokens of one request: a body of 8 MiB has fewer. */
const requestMax = 10_000_000
/** Most of a sum: of a million such requests. */
const sumMax = 1e13
const day_ms = 86_400_000
const counts = ['prompt_tokens', 'completion_tokens', 'cached_tokens'] as const
const spans = { minute: 60_000, hour: 3_600_000 } as const

const beyond = (max: number, names: readonly string[] = counts) =>
  sql<boolean>`(${sql.join(
    names.map((name) => sql`${sql.ref(name)} > ${sql.lit(max)}`),
    sql` or `,
  )})`

/**
 * Upstreams could report any number of tokens, and reports that had such a sum failed from then on. Impossible counts
 * become 0, the sums that have them are added up again from the requests that are kept.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  // The requests of 90 days are read once or twice.
  if (isPostgres(db)) await sql`set local statement_timeout = 0`.execute(db)
  const isRequest = sql`kind <> 'training'`
  const bad = sql`select account_id, model, model_id, key_id, kind, created_at from usage where ${isRequest} and ${beyond(requestMax)}`

  const dayOf = sql`created_at - created_at % ${sql.lit(day_ms)}`
  await recount(db, {
    table: 'usage_days',
    key: sql`account_id, day, model, model_id, key_id, kind`,
    bad: sql`select account_id, ${dayOf}, model, model_id, key_id, kind from (${bad}) as bad`,
    sums: [...counts, 'cost'],
    of: sql`
      usage.account_id = usage_days.account_id and created_at >= day and created_at < day + ${sql.lit(day_ms)}
      and usage.model = usage_days.model and usage.model_id = usage_days.model_id
      and usage.key_id = usage_days.key_id and usage.kind = usage_days.kind`,
  })
  for (const [span, ms] of Object.entries(spans))
    await recount(db, {
      table: 'usage_figures',
      key: sql`account_id, model, span, at`,
      bad: sql`select account_id, model, ${sql.lit(span)}, created_at - created_at % ${sql.lit(ms)} from (${bad}) as bad`,
      sums: ['prompt_tokens', 'completion_tokens'],
      of: sql`
        usage.account_id = usage_figures.account_id and usage.model = usage_figures.model and ${isRequest}
        and created_at >= usage_figures.at and created_at < usage_figures.at + ${sql.lit(ms)}`,
    })
  await sql`
    update usage set cost = 0, ${sql.join(counts.map((name) => sql`${sql.ref(name)} = ${kept(name)}`))}
    where ${isRequest} and ${beyond(requestMax)}
  `.execute(db)

  // What is left has no requests any more that it could be added up from.
  await clear(db, 'usage_days', sumMax, counts, sql`and ${isRequest}`, sql`, cost = 0`)
  await clear(db, 'usage_figures', sumMax, ['prompt_tokens', 'completion_tokens'])
  await clear(db, 'batches', sumMax, counts)
  await clear(db, 'evaluation_answers', requestMax, counts)
  for (const table of ['stored_completions', 'responses'] as const) await clearAnswers(db, table)
}

/** Answers that are kept with their usage. */
async function clearAnswers(db: Kysely<unknown>, table: 'stored_completions' | 'responses'): Promise<void> {
  const isHuge = isPostgres(db)
    ? sql`response_json ~ '_tokens":[1-9][0-9]{8}'`
    : sql`response_json glob ${`*_tokens":[1-9]${'[0-9]'.repeat(8)}*`}`
  const { rows } = await sql<{ id: string; response_json: string }>`
    select id, response_json from ${sql.table(table)} where ${isHuge}
  `.execute(db)
  for (const { id, response_json } of rows) {
    const answer = JSON.parse(response_json)
    if (!answer.usage) continue
    for (const object of [answer.usage, ...Object.values(answer.usage)])
      for (const name in object as object) if (object[name] > requestMax) object[name] = 0
    const { prompt_tokens, completion_tokens, input_tokens, output_tokens } = answer.usage
    answer.usage.total_tokens = (prompt_tokens ?? input_tokens) + (completion_tokens ?? output_tokens)
    await sql`update ${sql.table(table)} set response_json = ${JSON.stringify(answer)} where id = ${id}`.execute(db)
  }
}

const kept = (name: string) =>
  sql`case when ${sql.ref(`usage.${name}`)} > ${sql.lit(requestMax)} then 0 else ${sql.ref(`usage.${name}`)} end`

interface Recount {
  table: string
  /** The columns that `bad` selects. */
  key: RawBuilder<unknown>
  /** Keys of the rows to add up again. */
  bad: RawBuilder<unknown>
  sums: readonly string[]
  /** Which requests belong to a row. */
  of: RawBuilder<unknown>
}

async function recount(db: Kysely<unknown>, { table, key, bad, sums, of }: Recount): Promise<void> {
  const isBad = beyond(
    requestMax,
    counts.map((name) => `usage.${name}`),
  )
  const sumOf = (name: string) => (name === 'cost' ? sql`case when ${isBad} then 0 else usage.cost end` : kept(name))
  await sql`
    update ${sql.table(table)} set ${sql.join(
      sums.map((name) => sql`${sql.ref(name)} = (select coalesce(sum(${sumOf(name)}), 0) from usage where ${of})`),
    )}
    where (${key}) in (${bad})
  `.execute(db)
}

async function clear(
  db: Kysely<unknown>,
  table: string,
  max: number,
  names: readonly string[],
  where: RawBuilder<unknown> = sql``,
  more: RawBuilder<unknown> = sql``,
): Promise<void> {
  const values = names.map(
    (name) => sql`${sql.ref(name)} = case when ${sql.ref(name)} > ${sql.lit(max)} then 0 else ${sql.ref(name)} end`,
  )
  await sql`update ${sql.table(table)} set ${sql.join(values)}${more} where ${beyond(max, names)} ${where}`.execute(db)
}
