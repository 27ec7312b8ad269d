// `npm run bench -- lists [--rows N] [--only sqlite|postgres]`: lists of an account with a million rows of each kind,
// on SQLite and on Postgres. Ends with 1 if a list takes 50 ms or more, other than one that reads every name.
import { parseArgs } from 'node:util'
import { sql } from 'kysely'
import { isPostgres } from '../../server/platform/db/dialect.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { postgresTest, startPostgres } from '../../tests/support/postgres.ts'
import { startService } from '../support/service.ts'

const limit_ms = 50
const each = 40
const { values: options } = parseArgs({ options: { rows: { type: 'string' }, only: { type: 'string' } } })
const rows = Number(options.rows ?? 1_000_000)

/** The tables of lists, with what their rows must have to be listed. `i` is the number of the row. */
const tables: Record<string, Record<string, string>> = {
  tuning_jobs: {
    id: "'job_' || i",
    name: "'name ' || i",
    status: "case when i % 200000 = 0 then 'failed' else 'completed' end",
  },
  datasets: {
    id: "'ds_' || i",
    name: "'name ' || i",
    status: "'ready'",
    format: "'jsonl'",
    check_json: `'{"error_count":0,"errors":[]}'`,
  },
  models: { id: "'mdl_' || i", name: "'name ' || i", kind: "'adapter'", method: "'lora'", job_id: "'job_' || i" },
  deployments: {
    id: "'dep_' || i",
    name: "'name-' || i",
    status: "'ready'",
    model: "'HuggingFaceTB/SmolLM2-135M-Instruct'",
  },
  exports: {
    id: "'exp_' || i",
    status: "case when i % 200000 = 0 then 'failed' else 'expired' end",
    format: "'gguf'",
    files_json: "'[]'",
  },
  evaluations: {
    id: "'eval_' || i",
    status: "'queued'",
    graders_json: "'[]'",
    baseline: 'null',
    sampling_json: `'{"temperature":0,"max_tokens":64,"seed":1}'`,
  },
  batches: { id: "'batch_' || i", status: "'completed'", endpoint: "'/v1/chat/completions'", times_json: "'{}'" },
  files: { id: "'file_' || i", purpose: "'batch'", filename: "'rows.jsonl'" },
  audit: { id: "'aud_' || i", action: "'key.created'", target: "'key_1'", kind: "'operator'" },
}

/** A text that is too short for the index. */
const everyName = 'jobs of two letters that nobody has'

/** Each list as clients read it. */
const lists: [name: string, route: string][] = [
  ['jobs', '/fine-tuning/jobs?limit=20'],
  ['jobs, second page', `/fine-tuning/jobs?limit=20&after=job_${rows / 2}`],
  ['jobs by status', '/fine-tuning/jobs?limit=20&status=failed'],
  ['jobs by name', '/fine-tuning/jobs?limit=20&sort=name'],
  ['jobs by name, second page', `/fine-tuning/jobs?limit=20&sort=name&after=job_${rows / 2}`],
  ['jobs of a name that many have', '/fine-tuning/jobs?limit=20&name=99'],
  ['jobs of a name that nobody has', '/fine-tuning/jobs?limit=20&name=nothing'],
  ['jobs of a name that one has', `/fine-tuning/jobs?limit=20&name=name%20${rows / 4}`],
  [
    'jobs of a name that few have, by name',
    `/fine-tuning/jobs?limit=20&sort=name&name=${String(rows / 4).slice(0, -1)}`,
  ],
  ['completed jobs of a name that nobody has', '/fine-tuning/jobs?limit=20&status=completed&name=nothing'],
  ['failed jobs of a name that many have', '/fine-tuning/jobs?limit=20&status=failed&name=name'],
  ['OpenAI jobs', '/fine_tuning/jobs?limit=20'],
  ['datasets', '/datasets/?limit=20'],
  ['datasets of a name that nobody has', '/datasets/?limit=20&name=nothing'],
  ['models of a name that nobody has', '/fine-tuning/models?limit=20&name=nothing'],
  ['deployments of a name that nobody has', '/deployments?limit=20&name=nothing'],
  ['tuned models', '/fine-tuning/models?limit=20'],
  ['deployments', '/deployments?limit=20'],
  ['exports by status', '/exports?limit=20&status=failed'],
  ['evaluations', '/evaluations?limit=20'],
  ['batches', '/batches?limit=20'],
  ['files', '/files?limit=20'],
  ['audit log', '/audit?limit=20'],
  [everyName, '/fine-tuning/jobs?limit=20&name=qz'],
]

interface Column {
  name: string
  type: string
  required: boolean
}

async function columnsOf(db: Db, table: string): Promise<Column[]> {
  const result = isPostgres(db)
    ? await sql<Column>`select column_name as name, data_type as type,
          is_nullable = 'NO' and column_default is null and is_identity = 'NO' as required
        from information_schema.columns where table_name = ${table} and table_schema = current_schema()`.execute(db)
    : await sql<Column>`select name, type, "notnull" as required from pragma_table_info(${table})`.execute(db)
  return result.rows
}

/** Copies the job as many times as there are to be rows. */
async function fill(db: Db, account_id: string, job: string): Promise<void> {
  for (const [table, own] of Object.entries(tables)) {
    const values: Record<string, string> = { account_id: `'${account_id}'`, created_at: 'i', ...own }
    const copied = table === 'tuning_jobs'
    const columns = (await columnsOf(db, table)).filter(({ name, required }) => copied || required || name in values)
    const value = ({ name, type }: Column) => values[name] ?? (copied ? name : /text/i.test(type) ? "'{}'" : '0')
    // In pieces that take less than a statement may.
    for (let first = 1; first <= rows; first += 50_000)
      await sql
        .raw(
          `insert into ${table} (${columns.map(({ name }) => name).join()})
          with recursive n(i) as (
            select ${first} union all select i + 1 from n where i < ${Math.min(rows, first + 49_999)}
          )
          select ${columns.map(value).join()} from n${copied ? `, tuning_jobs where id = '${job}'` : ''}`,
        )
        .execute(db)
  }
  await sql.raw('analyze').execute(db)
}

async function measure(database_url: string | undefined): Promise<boolean> {
  const name = database_url ? 'Postgres' : 'SQLite'
  const service = await startService({
    TUNERY_LOG_LEVEL: 'silent',
    ...(database_url && { TUNERY_DATABASE_URL: database_url }),
  })
  let ok = true
  try {
    const { account_id } = await service.api('GET', '/user/profile').then(({ account }) => ({ account_id: account.id }))
    const db = await openDatabase(service.dataDir, database_url)
    const job = await service.createJob()
    await service.api('POST', `/fine-tuning/jobs/${job}/cancel`)
    const began = performance.now()
    await fill(db, account_id, job)
    console.log(`${name}: filled in ${Math.round((performance.now() - began) / 1000)} s`)
    await db.destroy()
    // The server has closed the connection meanwhile.
    await service.api('GET', '/user/profile').catch(() => {})
    for (const [list, route] of lists) {
      const times: number[] = []
      let failure = ''
      for (let index = 0; index < each && !failure; index++) {
        const began = performance.now()
        await service.api('GET', route).catch((error: Error) => {
          failure = error.message
        })
        times.push(performance.now() - began)
      }
      times.sort((a, b) => a - b)
      const [p50, p95] = [times[Math.floor(times.length / 2)]!, times[Math.floor(times.length * 0.95)]!]
      const passes = !failure && (p95 < limit_ms || list === everyName)
      ok &&= passes
      console.log(
        `${name.padEnd(9)} ${list.padEnd(41)} p50 ${p50.toFixed(1).padStart(7)} ms  p95 ` +
          `${p95.toFixed(1).padStart(7)} ms${passes ? '' : `  MISSED ${failure}`}`,
      )
    }
  } finally {
    await service.stop()
  }
  return ok
}

console.log(`${rows} rows of each kind in one account; ${each} requests each, over HTTP`)
let ok = options.only === 'postgres' || (await measure(undefined))
if (options.only === 'sqlite') process.exit(ok ? 0 : 1)
if (postgresTest.skip) console.log(`Postgres: skipped. ${postgresTest.skip}`)
else {
  const postgres = await startPostgres()
  ok = (await measure(postgres.url)) && ok
  await postgres.stop()
}
process.exit(ok ? 0 : 1)
