// A tiny model that was trained on colours: trained once for each state of the sources that make it, then installed
// into as many accounts as tests ask for.
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import Database from 'better-sqlite3'
import { newId } from '../../lib/ids.ts'
import { root } from '../../lib/root.ts'
import { type Db, openDatabase, openThreadedDatabase } from '../../server/platform/db/open.ts'
import { hashTree } from '../../server/platform/storage/durable-files.ts'
import { startApp } from './service.ts'
import { tiny, tinyModelsDir } from './tiny.ts'

type Row = Record<string, unknown>

/** The rows of the model, its job and its dataset, in the order in which they can be inserted. */
interface Fixture {
  dataset: string
  job: string
  model: string
  tables: [table: string, rows: Row[]][]
}

const sources = [
  'trainer/*/*.py',
  'server/features/jobs/**/*.ts',
  'server/features/models/**/*.ts',
  'server/platform/trainer/**/*.ts',
  'server/platform/db/**/*.ts',
  'contract/{hyperparameters,job-config}.ts',
  'tests/support/{client,tiny,trained}.ts',
]
/** The folders of a data folder in which the model and its dataset have files named by their ids. */
const folders = ['models', 'datasets', 'drafts']

async function fixtureFolder(models_dir = tinyModelsDir()): Promise<string> {
  const hash = createHash('sha256')
  for (const file of globSync(sources, { cwd: root }).sort())
    if (!file.startsWith('trainer/tests/')) hash.update(readFileSync(path.join(root, file)))
  // By its bytes: a copy of the base in another folder is the same base.
  hash.update(readFileSync(path.join(models_dir, tiny, 'model.gguf')))
  const folder = path.join(root, '.local/test-models', `colours-${hash.digest('hex').slice(0, 12)}`)
  if (existsSync(folder)) return folder
  mkdirSync(path.dirname(folder), { recursive: true })
  const fresh = mkdtempSync(`${folder}-`)
  // On SQLite, whose file is read below.
  const app = await startApp({ TUNERY_MODELS_DIR: models_dir }, { open: openThreadedDatabase })
  try {
    const model = await app.trainColourModel()
    const { job_id } = (await app.api('GET', `/fine-tuning/models/${model}`)).body
    const { dataset_id } = await app.job(job_id)
    const db = new Database(path.join(app.dataDir, 'tunery.db'), { readonly: true })
    const rows = (table: string, column: string, id: string) =>
      [table, db.prepare(`select * from ${table} where ${column} = ?`).all(id)] as [string, Row[]]
    const fixture: Fixture = {
      dataset: dataset_id,
      job: job_id,
      model,
      tables: [
        rows('datasets', 'id', dataset_id),
        rows('tuning_jobs', 'id', job_id),
        rows('job_events', 'job_id', job_id),
        rows('models', 'id', model),
      ],
    }
    db.close()
    writeFileSync(path.join(fresh, 'fixture.json'), JSON.stringify(fixture))
    cpSync(path.join(app.dataDir, 'models', model), path.join(fresh, 'models', model), { recursive: true })
    const datasetFiles = ['jsonl', 'rows.jsonl'].map((ending) => path.join('datasets', `${dataset_id}.${ending}`))
    for (const file of [...datasetFiles, path.join('drafts', `${model}.bin`)])
      cpSync(path.join(app.dataDir, file), path.join(fresh, file))
  } finally {
    await app.stop()
  }
  // Another test file may have been faster.
  if (existsSync(folder)) rmSync(fresh, { recursive: true })
  else renameSync(fresh, folder)
  return folder
}

interface Where {
  dataDir: string
  /** The database of a service in this process: a second connection would deadlock with its writer thread. */
  db?: Db
  /** By default the first account. */
  account_id?: string
  /** The folder of `tinyModelsDir` that has its base. */
  models_dir?: string
}

/** Gives an account the model under a new id, as if it had been trained there. Returns the id. */
export async function installColourModel({ dataDir, db, account_id, models_dir }: Where): Promise<string> {
  const folder = await fixtureFolder(models_dir)
  const { dataset, job, model, tables } = JSON.parse(readFileSync(path.join(folder, 'fixture.json'), 'utf8')) as Fixture
  const ids = { [dataset]: newId('ds'), [job]: newId('job'), [model]: newId('mdl') }
  const renamed = (text: string) => Object.entries(ids).reduce((all, [from, to]) => all.replaceAll(from, to), text)
  for (const each of folders)
    for (const file of globSync(`${each}/**/*`, { cwd: folder, withFileTypes: true }))
      if (file.isFile()) {
        const from = path.join(file.parentPath, file.name)
        const to = path.join(dataDir, renamed(path.relative(folder, from)))
        cpSync(from, to)
        if (to.endsWith('.json')) writeFileSync(to, renamed(readFileSync(to, 'utf8')))
      }
  // Its files name it.
  const { sha256: folder_sha256 } = await hashTree(path.join(dataDir, 'models', ids[model]!, 'adapter'))
  const connection = db ?? (await openDatabase(dataDir))
  try {
    await connection.transaction().execute(async (trx) => {
      const account = account_id ?? (await trx.selectFrom('accounts').select('id').executeTakeFirstOrThrow()).id
      const keys = trx.selectFrom('api_keys').select('id').where('account_id', '=', account)
      const key_id = (await keys.executeTakeFirstOrThrow()).id
      for (const [table, rows] of tables)
        for (const row of JSON.parse(renamed(JSON.stringify(rows))) as Row[]) {
          const owner = { ...('account_id' in row && { account_id: account }), ...('key_id' in row && { key_id }) }
          if ('ft_name' in row) Object.assign(owner, { ft_name: String(row.ft_name).replace(/acc_\w+/, account) })
          if ('folder_sha256' in row) Object.assign(owner, { folder_sha256 })
          await trx
            .insertInto(table as 'models')
            .values({ ...row, ...owner } as never)
            .execute()
        }
    })
  } finally {
    if (!db) await connection.destroy()
  }
  return ids[model]!
}
