// Files of a row whose transaction was committed and then reported as failed stay, on SQLite and on Postgres.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { colourRows, until } from '../support/client.ts'
import { same } from '../support/evaluations.ts'
import { full } from '../support/full.ts'
import { loseCommit } from '../support/lost-commits.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let trained: string
before(async () => {
  if (full.skip) return
  await app.started
  trained = await app.colourModel()
})

const one = async (route: string) => (await app.api('GET', route)).body
/** Throws unless it is there. */
async function requireFile(id: string, pattern: RegExp) {
  const { status, body } = await app.api('GET', `/files/${id}/content`)
  assert.equal(status, 200)
  assert.match(typeof body === 'string' ? body : JSON.stringify(body), pattern)
}
/** Throws unless the request failed for its caller, whose commit was lost. */
const requireLost = ({ status, body }: Awaited<ReturnType<typeof app.api>>) =>
  assert.ok([500, 503].includes(status), JSON.stringify(body))
function requireModel(id: string) {
  for (const name of ['adapter.gguf', 'adapter/adapter_model.safetensors'])
    assert.ok(existsSync(path.join(app.dataDir, 'models', id, name)), name)
}

interface Case {
  /** Counts the rows whose commit is lost. */
  rows: string
  /** Makes such a row, and returns what throws unless its files are there. */
  make: () => Promise<() => Promise<void>>
  /** Starts processes that take seconds. */
  isLong?: true
}

const cases: Record<string, Case> = {
  'the results of a batch': {
    rows: `select count(*) from files where purpose = 'batch_output'`,
    async make() {
      const body = { model: 'none', messages: [] }
      const request = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }
      const input_file_id = (await upload('requests.jsonl', JSON.stringify(request), 'batch')).body.id
      const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
      const { id } = (await app.api('POST', '/batches', batch)).body
      return async () => {
        const { error_file_id } = await until('the batch to end', async () => {
          const batch = await one(`/batches/${id}`)
          return batch.error_file_id ? batch : undefined
        })
        await requireFile(error_file_id, /"custom_id":"a"/)
      }
    },
  },
  'an uploaded dataset': {
    rows: `select count(*) from datasets where name = 'lost'`,
    async make() {
      requireLost(await app.upload(colourRows(8), { name: 'lost' }))
      return async () => {
        const { id } = (await one('/datasets/')).items.find(({ name }: { name: string }) => name === 'lost')
        const dataset = await until('the dataset to be read', async () => {
          const dataset = await one(`/datasets/${id}`)
          return dataset.status === 'preparing' ? undefined : dataset
        })
        assert.deepEqual([dataset.status, dataset.rows], ['ready', 8])
      }
    },
  },
  'an uploaded file': {
    rows: `select count(*) from files where filename = 'lost.txt'`,
    async make() {
      requireLost(await upload('lost.txt', 'these bytes', 'user_data'))
      return async () => {
        const files = (await one('/files')).data
        await requireFile(
          files.find(({ filename }: { filename: string }) => filename === 'lost.txt').id,
          /^these bytes$/,
        )
      }
    },
  },
  'the rows of an evaluation run': {
    rows: `select count(*) from evaluations where eval_id is not null`,
    async make() {
      const data_source_config = { type: 'custom', item_schema: { type: 'object' }, include_sample_schema: true }
      const { id } = (await app.api('POST', '/evals', { data_source_config, testing_criteria: [same] })).body
      const content = [{ item: { reference: 'red' }, sample: { output_text: 'red' } }]
      const source = { type: 'file_content', content }
      requireLost(await app.api('POST', `/evals/${id}/runs`, { data_source: { type: 'jsonl', source } }))
      return async () => {
        const run = await until('the run to end', async () => {
          const [run] = (await one(`/evals/${id}/runs`)).data
          return ['queued', 'in_progress'].includes(run.status) ? undefined : run
        })
        assert.deepEqual([run.status, run.result_counts.passed], ['completed', 1])
        await requireFile(run.data_source.source.id, /"reference":"red"/)
      }
    },
  },
  'the models of a job': {
    isLong: true,
    rows: `select count(*) from tuning_jobs where status = 'completed' and name = 'lost'`,
    async make() {
      const dataset_id = (await app.upload(colourRows(8))).body.id
      const config = { training_config: { epochs: 1, batch_size: 4 } }
      const job = { model_id: tiny, dataset_id, name: 'lost', config }
      const { id } = (await app.api('POST', '/fine-tuning/jobs', job)).body
      return async () => {
        const job = await app.untilEnded(id)
        assert.equal(job.status, 'completed', JSON.stringify(job.error))
        requireModel(job.model!)
        const [result] = (await one(`/fine_tuning/jobs/${id}`)).result_files
        const csv = Buffer.from((await one(`/files/${result}/content`)) as string, 'base64').toString()
        assert.match(csv, /^step,/)
      }
    },
  },
  'an imported adapter': {
    isLong: true,
    rows: `select count(*) from models where name = 'imported'`,
    async make() {
      const adapter = path.join(app.dataDir, 'models', trained, 'adapter')
      const zips = mkdtempSync(path.join(os.tmpdir(), 'tunery-zips-'))
      const program = ['-m', 'tests.support.adapter_zips', adapter, zips]
      execFileSync(path.join(root, '.local/python/bin/python'), program, { cwd: root })
      const form = new FormData()
      form.set('name', 'imported')
      form.set('file', new Blob([new Uint8Array(readFileSync(path.join(zips, 'good.zip')))]), 'good.zip')
      rmSync(zips, { recursive: true })
      requireLost(await app.api('POST', '/fine-tuning/models', form))
      return async () => {
        const models = (await one('/fine-tuning/models')).items
        requireModel(models.find(({ name }: { name: string }) => name === 'imported').id)
      }
    },
  },
  'an export': {
    isLong: true,
    rows: `select count(*) from exports where status = 'ready'`,
    async make() {
      const { id } = (await app.api('POST', '/exports', { model: trained, format: 'gguf', merge: false })).body
      return async () => {
        const ready = await until('the export to be ready', async () => {
          const row = await one(`/exports/${id}`)
          return row.status === 'ready' ? row : undefined
        })
        const { headers, status } = await app.api('GET', `/exports/${id}/download`)
        assert.deepEqual([status, Number(headers.get('content-length'))], [200, ready.files[0].size_bytes])
      }
    },
  },
}

async function upload(name: string, content: string, purpose: string) {
  const form = new FormData()
  form.set('purpose', purpose)
  form.set('file', new Blob([content]), name)
  return app.api('POST', '/files', form)
}

for (const [name, { rows, make, isLong }] of Object.entries(cases))
  test(
    `${name}: the files stay if the commit of the row succeeded and its answer was lost`,
    isLong ? full : {},
    async (t) => {
      const isLost = await loseCommit(t, app, rows)
      const requireFiles = await make()
      await until('the commit to be lost', isLost)
      await requireFiles()
    },
  )
