import type { Kysely } from 'kysely'
import { asDisplayName } from '../../../../contract/common.ts'

interface Job {
  id: string
  account_id: string
  model_id: string
  dataset_id: string
  validation_dataset_id: string | null
  model: string | null
  resolved_config_json: string
  created_at: number
}
interface Model {
  id: string
  name: string | null
  base_model_id: string
  job_id: string | null
  step: number | null
  gguf_sha256: string
}
interface Tables {
  datasets: { id: string; name: string; sha256: string; size_bytes: number }
  tuning_jobs: Job & { name: string; base_model_id: string; parent_json: string | null; recipe_json: string }
  models: Model & { parent_model_id: string | null }
  job_events: { job_id: string; seq: number; type: string; data_json: string | null; created_at: number }
  job_evaluations: { job_id: string; step: number; data_json: string; created_at: number }
}

/**
 * Jobs and models get name, description and metadata. A job stores a snapshot of its starting model and datasets, which
 * may be deleted later. `weights_model_id` is separate from `parent_model_id`. Evaluations get their own table.
 */
export async function up(connection: Kysely<unknown>): Promise<void> {
  const { schema } = connection
  for (const table of ['tuning_jobs', 'models']) {
    if (table === 'tuning_jobs')
      await schema
        .alterTable(table)
        .addColumn('name', 'text', (c) => c.notNull().defaultTo(''))
        .execute()
    await schema
      .alterTable(table)
      .addColumn('description', 'text', (c) => c.notNull().defaultTo(''))
      .execute()
    await schema
      .alterTable(table)
      .addColumn('metadata_json', 'text', (c) => c.notNull().defaultTo('{}'))
      .execute()
  }
  await schema
    .alterTable('tuning_jobs')
    .addColumn('base_model_id', 'text', (c) => c.notNull().defaultTo(''))
    .execute()
  await schema.alterTable('tuning_jobs').addColumn('parent_json', 'text').execute()
  await schema
    .alterTable('tuning_jobs')
    .addColumn('recipe_json', 'text', (c) => c.notNull().defaultTo('{}'))
    .execute()
  await schema.alterTable('models').renameColumn('parent_model_id', 'weights_model_id').execute()
  await schema.alterTable('models').addColumn('parent_model_id', 'text').execute()
  await schema
    .createTable('job_evaluations')
    .addColumn('job_id', 'text', (c) => c.notNull().references('tuning_jobs.id').onDelete('cascade'))
    .addColumn('step', 'integer', (c) => c.notNull())
    .addColumn('data_json', 'text', (c) => c.notNull())
    .addColumn('created_at', 'bigint', (c) => c.notNull())
    .addPrimaryKeyConstraint('job_evaluations_key', ['job_id', 'step'])
    .execute()
  // Index for estimating when a queued job starts.
  await schema
    .createIndex('tuning_jobs_base')
    .on('tuning_jobs')
    .columns(['base_model_id', 'status', 'finished_at'])
    .execute()
  const db = connection as Kysely<Tables>
  await fillJobs(db)
  await fillEvaluations(db)
}

async function fillJobs(db: Kysely<Tables>): Promise<void> {
  const models = new Map(
    (
      await db.selectFrom('models').select(['id', 'name', 'base_model_id', 'job_id', 'step', 'gguf_sha256']).execute()
    ).map((m) => [m.id, m]),
  )
  const datasets = new Map(
    (await db.selectFrom('datasets').selectAll().execute()).map((dataset) => [dataset.id, dataset]),
  )
  const jobs = await db.selectFrom('tuning_jobs').selectAll().orderBy('created_at').execute()
  /** The results of jobs, also those that were deleted. */
  const results = new Map<string, { job_id: string; base_model_id: string }>()
  const made_by = Map.groupBy(models.values(), ({ job_id }) => job_id)
  const dataset = (id: string | null) => {
    if (id === null) return null
    const dataset = datasets.get(id)
    return {
      id,
      name: dataset?.name ?? null,
      sha256: dataset?.sha256 ?? null,
      size_mb: dataset ? dataset.size_bytes / 1e6 : null,
    }
  }
  for (const job of jobs) {
    const parent = models.get(job.model_id)
    const origin = parent ?? results.get(job.model_id)
    const base_model_id = origin?.base_model_id ?? job.model_id
    const parent_json = origin
      ? JSON.stringify({
          model_id: job.model_id,
          name: parent?.name ?? null,
          job_id: origin.job_id,
          step: parent?.step ?? null,
          sha256: parent?.gguf_sha256 ?? null,
        })
      : null
    const { method, training_config } = JSON.parse(job.resolved_config_json)
    const recipe = {
      method: method.value,
      epochs: training_config.epochs.value,
      dataset: dataset(job.dataset_id),
      validation_dataset: dataset(job.validation_dataset_id),
    }
    const of = ` · ${base_model_id.split('/').at(-1)}`
    const data = (recipe.dataset?.name ?? job.dataset_id).replace(/\.(jsonl?|csv|parquet)$/i, '')
    const name = `${asDisplayName(data.slice(0, 200 - of.length))}${of}`
    await db
      .updateTable('tuning_jobs')
      .set({ name, base_model_id, parent_json, recipe_json: JSON.stringify(recipe) })
      .where('id', '=', job.id)
      .execute()
    if (job.model) results.set(job.model, { job_id: job.id, base_model_id })
    const parent_model_id = origin ? job.model_id : null
    for (const model of made_by.get(job.id) ?? []) {
      const named =
        model.name ??
        (model.id === job.model || model.step === null ? name : `${name.slice(0, 180)} · step ${model.step}`)
      await db.updateTable('models').set({ name: named, parent_model_id }).where('id', '=', model.id).execute()
    }
  }
  await db
    .updateTable('models')
    .set((eb) => ({ name: eb.ref('id') }))
    .where('name', 'is', null)
    .execute()
}

async function fillEvaluations(db: Kysely<Tables>): Promise<void> {
  const events = db
    .selectFrom('job_events')
    .selectAll()
    .where('type', '=', 'metrics')
    .where('data_json', 'like', '%"validation_loss"%')
  for (const { job_id, data_json, created_at } of await events.orderBy('job_id').orderBy('seq').execute()) {
    const { step, validation_loss, validation_exact } = JSON.parse(data_json!)
    if (typeof step !== 'number' || typeof validation_loss !== 'number') continue
    const row = { job_id, step, data_json: JSON.stringify({ validation_loss, validation_exact }), created_at }
    await db
      .insertInto('job_evaluations')
      .values(row)
      .onConflict((conflict) => conflict.columns(['job_id', 'step']).doUpdateSet(row))
      .execute()
  }
}
