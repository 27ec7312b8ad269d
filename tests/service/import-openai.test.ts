// `./tunery import openai` on a running service: the same training starts here, or nothing is left behind.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, mock, test } from 'node:test'
import { importOpenai } from '../../cli/remote/import-openai.ts'
import { colourRows } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-import-'))
const write = (name: string, content: unknown) => {
  const file = path.join(folder, name)
  writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content))
  return file
}
/** A job as OpenAI's API returns it. */
const exported = {
  object: 'fine_tuning.job',
  id: 'ftjob-abc123',
  model: 'gpt-4o-mini-2024-07-18',
  created_at: 1721764800,
  fine_tuned_model: 'ft:gpt-4o-mini-2024-07-18:my-org:triage:7q8mpxmy',
  organization_id: 'org-123',
  result_files: ['file-abc'],
  status: 'succeeded',
  validation_file: 'file-val',
  training_file: 'file-abc123',
  seed: 42,
  metadata: { team: 'support' },
  integrations: [{ type: 'wandb', wandb: { project: 'x' } }],
  hyperparameters: { n_epochs: 2, batch_size: 1, learning_rate_multiplier: 1.8 },
  method: {
    type: 'supervised',
    supervised: { hyperparameters: { n_epochs: 2, batch_size: 1, learning_rate_multiplier: 1.8 } },
  },
}
const rows = write('rows.jsonl', colourRows(8))

let app: TestApp
before(async () => {
  app = await startApp()
  process.env.TUNERY_URL = app.url
  process.env.TUNERY_KEY = app.key
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

async function run(job: unknown, options: object = {}) {
  const log = mock.method(console, 'log', () => {})
  try {
    const settings = { model: tiny, training: rows, dryRun: false, json: true, ...options }
    await importOpenai(write('job.json', job), settings)
    return JSON.parse(String(log.mock.calls.at(-1)!.arguments[0]))
  } finally {
    log.mock.restore()
  }
}
const files = async () => (await app.api('GET', '/files')).body.data.length

test('the same training starts here, and what differs is said', async () => {
  const { job, differences } = await run(exported)
  assert.deepEqual(
    [job.model, job.seed, job.metadata, job.user_provided_suffix, job.method.supervised.hyperparameters],
    [tiny, 42, { team: 'support' }, 'triage', exported.hyperparameters],
  )
  assert.match(differences[0], /not gpt-4o-mini-2024-07-18/)
  for (const part of ['1.8 times', 'Integrations', '--validation'])
    assert.ok(
      differences.some((difference: string) => difference.includes(part)),
      part,
    )
  await app.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
})

test('a dry run checks the rows and leaves nothing', async () => {
  const before = await files()
  assert.ok((await run(exported, { dryRun: true })).differences.length > 3)
  assert.equal(await files(), before)
})

test('what cannot be started is refused with the reason, and leaves nothing', async () => {
  const before = await files()
  const bad = write('bad.jsonl', `${colourRows(2)}\n{"messages":[]}\n`)
  for (const [job, options, reason] of [
    [exported, { training: bad }, /line 3/],
    [exported, { training: path.join(folder, 'none.jsonl') }, /There is no file/],
    [exported, { model: 'nobody/none' }, /nobody\/none/],
    [{ ...exported, method: { type: 'dpo' } }, {}, /'dpo'/],
    [{ object: 'file' }, {}, /not a job of that API/],
    ['not json', {}, /is not JSON/],
    [exported, { model: undefined }, /--model/],
  ] as const)
    await assert.rejects(run(job, options), reason)
  assert.equal(await files(), before)
})
