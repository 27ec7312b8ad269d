// Names, metadata and metrics of jobs, estimates of their start, and the jobs of an older database.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import SQLite from 'better-sqlite3'
import { Kysely, SqliteDialect, sql } from 'kysely'
import { Description, DisplayName, Labels } from '../../contract/common.ts'
import { CreateJob } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import { nameOfJob, nameOfStep } from '../../server/features/jobs/names.ts'
import { estimateQueue, playTurns } from '../../server/features/jobs/queue-estimate.ts'
import { metricsAfter } from '../../server/features/jobs/recorder.ts'
import * as store from '../../server/features/jobs/store.ts'
import { lineageOf } from '../../server/features/models/lineage.ts'
import { parentOf, recipeOf } from '../../server/features/models/training.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { allowed } from '../support/allowed-time.ts'
import { jobRow } from '../support/job-row.ts'
import { newPostgresDatabase } from '../support/postgres.ts'

test('a job without a name is named after its dataset and base, within the length limit', () => {
  assert.equal(nameOfJob('tickets.jsonl', 'HuggingFaceTB/SmolLM2-135M-Instruct'), 'tickets · SmolLM2-135M-Instruct')
  assert.equal(nameOfJob('v1.2', 'gpt2'), 'v1.2 · gpt2')
  for (const dataset of ['x'.repeat(300), '🙂'.repeat(150), '\u202e\u0007', `a${'🙂'.repeat(150)}`]) {
    const name = nameOfJob(dataset, `org/${'b'.repeat(96)}`)
    assert.equal(DisplayName.parse(name), name)
    assert.match(name, / ?· b{96}$/)
    assert.equal(DisplayName.parse(nameOfStep(name, 12345)), nameOfStep(name, 12345))
    assert.match(nameOfStep(name, 12345), / · step 12345$/)
  }
})

test('metadata accepts up to 16 pairs of plain text', () => {
  const pairs = (count: number, value: unknown = 'v') =>
    Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, value]))
  const accepts = (metadata: unknown) =>
    Labels.safeParse({ metadata }).success && CreateJob.safeParse({ model_id: 'm', dataset_id: 'd', metadata }).success
  for (const good of [{}, pairs(16), { ['k'.repeat(64)]: 'v'.repeat(512) }, { a: '' }])
    assert.ok(accepts(good), JSON.stringify(good))
  for (const bad of [
    pairs(17),
    { ['k'.repeat(65)]: 'v' },
    { a: 'v'.repeat(513) },
    { '': 'v' },
    pairs(1, 1),
    pairs(1, null),
    ['v'],
    'v',
    { 'a\u0000': 'v' },
    { a: '\u202e' },
  ])
    assert.equal(accepts(bad), false, JSON.stringify(bad).slice(0, 80))
  assert.equal(Description.parse('two\nlines'), 'two\nlines')
})

test('migration 0012 adds names, parents, recipes and evaluations to an older database', async () => {
  const old = new Kysely<unknown>({ dialect: new SqliteDialect({ database: new SQLite(':memory:') }) })
  const folder = path.join(root, 'server/platform/db/migrations')
  const steps = readdirSync(folder)
    .filter((file) => file < '0013')
    .sort()
  for (const file of steps.slice(0, -1)) await (await import(path.join(folder, file))).up(old)
  const insert = (table: string, row: object) => {
    const columns = sql.join(Object.keys(row).map((name) => sql.ref(name)))
    return sql`insert into ${sql.table(table)} (${columns}) values (${sql.join(Object.values(row))})`.execute(old)
  }
  const of = { account_id: 'a', created_at: 1 }
  await insert('accounts', { id: 'a', name: 'a', tier: 'free', created_at: 1 })
  const file = {
    format: 'jsonl',
    rows: 1,
    size_bytes: 2_000_000,
    sha256: 'abc',
    check_json: '{}',
    status: 'ready',
    description: '',
  }
  await insert('datasets', { id: 'ds_1', name: 'tickets.jsonl', ...of, ...file })
  const resolved_config_json = JSON.stringify({ method: { value: 'lora' }, training_config: { epochs: { value: 3 } } })
  const {
    name: _,
    description,
    metadata_json,
    base_model_id,
    parent_json,
    recipe_json,
    slowed_by,
    openai_json,
    result_file_id,
    evaluation_id,
    result_evaluation_id,
    traceparent,
    deleted_at,
    checkpoint_bytes,
    ...row
  } = jobRow({ ...of, resolved_config_json, status: 'completed' })
  await insert('tuning_jobs', { ...row, id: 'job_1', model_id: 'org/base', model: 'mdl_1' })
  // The model that it continued and its dataset were deleted.
  await insert('tuning_jobs', {
    ...row,
    id: 'job_2',
    model_id: 'mdl_1',
    dataset_id: 'ds_gone',
    model: 'mdl_2',
    created_at: 2,
  })
  const model = { base_model_id: 'org/base', kind: 'adapter', method: 'lora', gguf_sha256: 'def', size_bytes: 1, ...of }
  await insert('models', { ...model, id: 'mdl_2', job_id: 'job_2', step: 9 })
  await insert('models', { ...model, id: 'mdl_3', job_id: 'job_2', step: 6 })
  await insert('models', { ...model, id: 'mdl_4', name: 'mine' })
  for (const [seq, validation_loss] of [3, 2].entries())
    await insert('job_events', {
      job_id: 'job_1',
      seq,
      type: 'metrics',
      message: '',
      data_json: JSON.stringify({ step: 4, validation_loss, validation_exact: 0 }),
      created_at: seq,
    })
  await (await import(path.join(folder, steps.at(-1)!))).up(old)

  const db = old as Db
  const [first, second] = [(await store.findJobUnscoped(db, 'job_1'))!, (await store.findJobUnscoped(db, 'job_2'))!]
  assert.deepEqual([first.name, first.base_model_id, first.parent_json], ['tickets · base', 'org/base', null])
  const dataset = { id: 'ds_1', name: 'tickets.jsonl', sha256: 'abc', size_mb: 2 }
  assert.deepEqual(recipeOf(first), { method: 'lora', epochs: 3, dataset, validation_dataset: null })
  assert.deepEqual(
    [second.name, second.base_model_id, parentOf(second)!.job_id],
    ['ds_gone · base', 'org/base', 'job_1'],
  )
  const models = await db.selectFrom('models').selectAll().orderBy('id').execute()
  assert.deepEqual(
    models.map(({ name, parent_model_id }) => [name, parent_model_id]),
    [
      ['ds_gone · base', 'mdl_1'],
      ['ds_gone · base · step 6', 'mdl_1'],
      ['mine', null],
    ],
  )
  const { base_model_id: base, steps: lineage } = await lineageOf(db, models[0]!)
  assert.equal(base, 'org/base')
  assert.deepEqual(
    lineage.map(({ model_id, job_id, dataset }) => [model_id, job_id, dataset?.id]),
    [
      ['mdl_1', 'job_1', 'ds_1'],
      ['mdl_2', 'job_2', 'ds_gone'],
    ],
  )
  assert.deepEqual(
    (await store.evaluations(db, 'job_1')).map(({ step, data_json }) => [step, JSON.parse(data_json).validation_loss]),
    [[4, 2]],
  )
  await old.destroy()
})

test('the metrics of a job all belong to one step', () => {
  const first = metricsAfter({}, { step: 1, steps_total: 9, loss: 3, learning_rate: 0.1, tokens: 5 })
  assert.deepEqual(first, { step: 1, steps_total: 9, loss: 3, learning_rate: 0.1, train_loss: 3 })
  const evaluated = metricsAfter(first, { step: 1, steps_total: 9, validation_loss: 2, train_loss: 2.5 })
  assert.deepEqual(evaluated, { ...first, validation_loss: 2, train_loss: 2.5 })
  assert.deepEqual(metricsAfter(evaluated, { step: 2, steps_total: 9, loss: 1 }), {
    step: 2,
    steps_total: 9,
    loss: 1,
    train_loss: 1,
  })
  assert.deepEqual(metricsAfter(first, { step: 3, steps_total: 9, validation_loss: 2, train_loss: 2.5 }), {
    step: 3,
    steps_total: 9,
    validation_loss: 2,
    train_loss: 2.5,
  })
})

test('the start of a queued job is estimated from the duration of similar completed jobs', async (t) => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-estimates-'))
  const postgres = await newPostgresDatabase()
  const db = await openDatabase(dataDir, postgres?.url)
  t.after(async () => {
    await db.destroy()
    await postgres?.drop()
    rmSync(dataDir, { recursive: true, force: true })
  })
  const accountOf = (ref: string) => (ref === 'half' ? 'other' : 'mine')
  const queueOf = (refs: string[]) => ({
    pending: async () => ({
      entries: refs.map((ref, id) => ({
        id,
        ref,
        account_id: accountOf(ref),
        run_at: 0,
        place: id,
        status: 'waiting' as const,
        turn_until: ref === 'runs' ? 900_000 : 0,
      })),
      served: new Map(),
    }),
  })
  const recipe = (size_mb: number, method = 'lora') =>
    JSON.stringify({ method, epochs: 2, dataset: { size_mb }, validation_dataset: null })
  const metrics_json = JSON.stringify({ train_seconds: 10 })
  await db.transaction().execute(async (trx) => {
    for (const id of ['mine', 'other'])
      await trx
        .insertInto('accounts')
        .values({ id, name: id, tier: 'free', suspended_at: null, created_at: 1 })
        .execute()
    const done = { status: 'completed' as const, metrics_json, recipe_json: recipe(1), finished_at: 1 }
    await store.insertJob(trx, jobRow({ created_at: 1, id: 'job_1', ...done, ran_ms: 12_000 }))
    const running = {
      status: 'running' as const,
      recipe_json: recipe(1),
      estimated_completion: 5000,
      paused: 0 as const,
    }
    await store.insertJob(trx, jobRow({ created_at: 2, ...running, id: 'runs' }))
    const queued = { status: 'queued' as const, paused: 0 as const }
    await store.insertJob(trx, jobRow({ created_at: 3, ...queued, id: 'twice', recipe_json: recipe(2) }))
    await store.insertJob(
      trx,
      jobRow({ created_at: 4, ...queued, id: 'half', account_id: 'other', recipe_json: recipe(1), progress: 0.5 }),
    )
    await store.insertJob(trx, jobRow({ created_at: 5, ...queued, id: 'unknown', recipe_json: recipe(1, 'full') }))
    await store.insertJob(trx, jobRow({ created_at: 6, ...queued, id: 'last', recipe_json: recipe(1) }))
    await store.insertJob(trx, jobRow({ created_at: 7, ...queued, id: 'paused', paused: 1, recipe_json: recipe(1) }))
  })
  const estimates = await estimateQueue(db, queueOf(['runs', 'twice', 'half', 'unknown', 'last']), 'tuning', 1000, {
    at_once: 1,
    slice_ms: 900_000,
  })
  assert.deepEqual(
    [...estimates].map(([id, estimate]) => [id, ...Object.values(estimate)]),
    [
      ['runs', null, null, 5000],
      ['twice', 1, 5000, 27_000],
      ['half', 2, 5000 + 2000 + 20_000, 34_000],
      ['unknown', 3, 27_000 + 2000 + 5000, null],
      ['last', 4, null, null],
    ],
  )
})

test('estimates know turns and time slices', () => {
  const [hour, minute] = [3_600_000, 60_000]
  const entry = (id: number, ref: string, account_id: string) => ({ id, ref, account_id, run_at: 0, turn_until: 0 })
  const turns = { at_once: 1, slice_ms: 15 * minute }
  const lengths: Record<string, number> = { a1: hour, a2: hour, b: minute, c: 20 * minute }
  const play = (waiting: ReturnType<typeof entry>[], left: number, more: Partial<typeof turns> = {}) => {
    const running = { ...entry(1, 'a1', 'a'), left, turn_ends: 10 * minute }
    const estimates = playTurns([running], waiting, (ref) => lengths[ref]!, new Map([['a', 1]]), 0, {
      ...turns,
      ...more,
    })
    return Object.fromEntries(
      [...estimates].map(([ref, { queue_position, estimated_start, estimated_end }]) => [
        ref,
        [queue_position, ...[estimated_start, estimated_end].map((time) => time !== null && time / minute)],
      ]),
    )
  }
  const waiting = [entry(2, 'a2', 'a'), entry(3, 'b', 'b'), entry(4, 'c', 'c')]
  // b after 10 minutes, c after 11 until 26, a1 until 41, c until 46, a1 until 81, a2.
  const ends = { a1: [null, false, 81], b: [1, 10, 11], c: [2, 11, 46], a2: [3, 81, 141] }
  assert.deepEqual(play(waiting, hour), ends)
  assert.deepEqual(play(waiting.slice(0, 1), hour), { a1: [null, false, 60], a2: [1, 60, 120] }, 'nobody else waits')
  assert.deepEqual(play(waiting, hour, { slice_ms: 0 }).b, [1, 60, 61], 'without slices it waits for its end')
  const unknown = play(waiting, Number.POSITIVE_INFINITY)
  assert.deepEqual(
    [unknown.b, unknown.a2],
    [
      [1, 10, 11],
      [3, false, false],
    ],
    'of unknown length',
  )
  const many = Array.from({ length: 100_000 }, (_, id) => entry(id + 2, `d${id}`, `account ${id % 1000}`))
  const began = performance.now()
  const positions = playTurns([], many, () => hour, new Map(), 0, turns)
  assert.equal(positions.size, 100_000)
  assert.ok(performance.now() - began < allowed(2000), `100,000 jobs took ${performance.now() - began} ms`)
})
