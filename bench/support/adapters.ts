// Data folders with tuned adapters, trained through the API on a few rows.
import { createHash } from 'node:crypto'
import { cpSync, existsSync, linkSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import Database from 'better-sqlite3'
import { taskNames, taskRows } from '../serving/tasks.ts'
import { startService } from './service.ts'

const root = path.resolve(import.meta.dirname, '../..')
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'

type Api = Awaited<ReturnType<typeof startService>>['api']

/** Trains an adapter on the `number`-th 24 rows of the demo's task. Returns the model's id. */
export function trainAdapter(api: Api, number: number): Promise<string> {
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8').split('\n')
  return train(api, `rows-${number}`, rows.slice(number * 24, number * 24 + 24), {
    epochs: 4,
    learning_rate: 1e-3,
    seed: number,
  })
}

async function train(api: Api, name: string, rows: string[], training_config: object): Promise<string> {
  const form = new FormData()
  form.set('file', new Blob([rows.join('\n')]), `${name}.jsonl`)
  const { id: dataset_id } = await api('POST', '/datasets/', form)
  const { id } = await api('POST', '/fine-tuning/jobs', { model_id: base, dataset_id, config: { training_config } })
  for (;;) {
    const job = await api('GET', `/fine-tuning/jobs/${id}`)
    if (job.status === 'completed') return job.model
    if (['failed', 'cancelled'].includes(job.status))
      throw new Error(`the training of ${name} ${job.status}: ${job.error?.message}`)
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
}

export interface Adapters {
  dataDir: string
  models: string[]
  /** The files that the engine serves, in the same order. */
  files: string[]
}
const withFiles = (dataDir: string, models: string[]): Adapters => ({
  dataDir,
  models,
  files: models.map((id) => path.join(dataDir, 'models', id, 'adapter.gguf')),
})

/** A data folder with this many trained adapters. */
export const trainedAdapters = (count: number) =>
  cached('adapters', [import.meta.filename], count, async (api) => {
    for (let number = 0; number < count; number++) await trainAdapter(api, number)
  })

/** A data folder with an adapter for each of three tasks, in the order of `taskNames`, trained on `rows` rows each. */
export const trainedTasks = (rows: number) =>
  cached(`tasks-${rows}`, [path.join(root, 'bench/serving/tasks.ts')], taskNames.length, async (api) => {
    for (const task of taskNames) {
      const lines = taskRows(task, rows, 1).map((row) => JSON.stringify(row))
      await train(api, task, lines, { epochs: 1, learning_rate: 1e-3, seed: 1 })
    }
  })

/** Cached in .local until one of these files or the database's schema changes. */
async function cached(
  name: string,
  sources: string[],
  count: number,
  make: (api: Api) => Promise<void>,
): Promise<Adapters> {
  const hash = createHash('sha256')
  for (const file of [...sources, path.join(root, 'server/platform/db/schema.ts')]) hash.update(readFileSync(file))
  const folder = path.join(root, '.local/bench', `${name}-${hash.digest('hex').slice(0, 12)}`)
  mkdirSync(path.dirname(folder), { recursive: true })
  const idsOf = (dataDir: string) => {
    const db = new Database(path.join(dataDir, 'tunery.db'), { readonly: true })
    try {
      return db
        .prepare("select id from models where name is null or name not like 'copy%' order by created_at")
        .pluck()
        .all() as string[]
    } finally {
      db.close()
    }
  }
  if (existsSync(folder) && idsOf(folder).length >= count) return withFiles(folder, idsOf(folder).slice(0, count))
  rmSync(folder, { recursive: true, force: true })
  const temporary = `${folder}.new`
  rmSync(temporary, { recursive: true, force: true })
  mkdirSync(temporary)
  const service = await startService({}, temporary)
  try {
    await make(service.api)
  } finally {
    await service.stop()
  }
  renameSync(temporary, folder)
  return withFiles(folder, idsOf(folder))
}

/** The same files at other paths: a thousand adapters take no more disk than one. */
function linkFolder(from: string, to: string): void {
  mkdirSync(to)
  for (const entry of readdirSync(from, { withFileTypes: true })) {
    const [source, target] = [path.join(from, entry.name), path.join(to, entry.name)]
    if (entry.isDirectory()) linkFolder(source, target)
    else linkSync(source, target)
  }
}

/**
 * Copies the first adapter of a data folder until there are `count`, each a separate model with its own paths, which
 * the engine loads separately. The service must not run.
 */
export function copyAdapters({ dataDir, models }: Adapters, count: number): string[] {
  const db = new Database(path.join(dataDir, 'tunery.db'))
  try {
    const row = db.prepare('select * from models where id = ?').get(models[0]) as Record<string, unknown>
    const columns = Object.keys(row)
    const insert = db.prepare(
      `insert into models (${columns.join(', ')}) values (${columns.map((name) => `@${name}`).join(', ')})`,
    )
    const ids = [...models]
    for (let number = models.length; number < count; number++) {
      const id = `${String(row.id).slice(0, -6)}c${String(number).padStart(5, '0')}`
      linkFolder(path.join(dataDir, 'models', String(row.id)), path.join(dataDir, 'models', id))
      insert.run({ ...row, id, name: `copy ${number}` })
      ids.push(id)
    }
    return ids
  } finally {
    db.close()
  }
}

/** Copies a prepared data folder for a service to write to. */
export function copyOf(dataDir: string, out: string): string {
  cpSync(dataDir, out, { recursive: true })
  return out
}
