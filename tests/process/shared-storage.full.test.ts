// One storage, several machines: a server on another machine, with an empty data folder and the same database, serves,
// trains from, evaluates and exports everything. The folder driver; tests/scale/s3.test.ts does it on S3.
import assert from 'node:assert/strict'
import {
  copyFileSync,
  existsSync,
  globSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { same } from '../support/evaluations.ts'
import { dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const shared = mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-'))
const settings = { TUNERY_STORAGE_URL: `file://${shared}`, TUNERY_CHECKPOINT_SECONDS: '1' }
const machines = [dataFolder('here', settings)]
after(() => {
  for (const machine of machines) machine.remove()
  rmSync(shared, { recursive: true, force: true })
})

/** Another machine with the database of the last one, which has ended, and nothing else. */
function nextMachine() {
  const before = machines.at(-1)!
  const machine = dataFolder('there', settings)
  for (const name of ['tunery.db', 'tunery.db-wal', 'secret.key'])
    if (existsSync(path.join(before.dataDir, name)))
      copyFileSync(path.join(before.dataDir, name), path.join(machine.dataDir, name))
  machines.push(machine)
  return machine
}

const objects = (pattern: string) => globSync(`objects/${pattern}`, { cwd: shared })
let key: string
let dataset: string
let model: string
let exported: { id: string; sha256: string }

test('a job whose machine died resumes on another one from its checkpoint in the storage', async () => {
  const first = await machines[0]!.start()
  key = machines[0]!.key()
  let api = client(first.url, key)
  const csv = ['prompt,completion', ...Array.from({ length: 16 }, (_, n) => `colour ${n}?,blue ${n}`)].join('\n')
  dataset = (await api.upload(csv, { format: 'csv' })).body.id
  const training_config = { epochs: 12, batch_size: 1, learning_rate: 0.001 }
  const request = { model_id: tiny, dataset_id: dataset, config: { training_config } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', request)).body
  const { data } = await api.untilEvent(id, (event) => event.type === 'checkpoint')
  assert.ok(objects(`runs/${id}/1/checkpoints/step-${data!.step}/.tunery-manifest.json`).length === 1)
  await first.end('SIGKILL')

  const second = await nextMachine().start()
  api = client(second.url, key)
  const resumed = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(resumed.data!.resumed_from_step) >= Number(data!.step))
  const job = await api.untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  model = job.model!
  await until('the checkpoints of the job to be removed', () => objects(`runs/${id}/**/*`).length === 0)
  assert.equal(objects(`models/${model}/.tunery-manifest.json`).length, 1)
  const created = (await api.api('POST', '/exports', { model, format: 'gguf', quantization: 'q8_0' })).body
  await until('the export', async () => (await api.api('GET', `/exports/${created.id}`)).body.status === 'ready')
  exported = { id: created.id, sha256: (await api.api('GET', `/exports/${created.id}`)).body.files[0].sha256 }
  await second.end('SIGKILL')
})

test('a third machine serves, trains from, evaluates, exports and hands out all of it', async () => {
  const machine = nextMachine()
  const server = await machine.start()
  const api = client(server.url, key)
  const rows = await api.api('GET', `/datasets/${dataset}/rows?limit=2`)
  assert.equal(rows.body.items.length, 2, JSON.stringify(rows.body))
  const answer = await api.api('POST', '/chat/completions', {
    model,
    messages: [{ role: 'user', content: 'colour 1?' }],
    max_tokens: 4,
  })
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
  const headers = { authorization: `Bearer ${key}` }
  const download = await fetch(`${server.url}/exports/${exported.id}/download`, { headers })
  assert.equal(download.status, 200)
  const { createHash } = await import('node:crypto')
  const bytes = Buffer.from(await download.arrayBuffer())
  assert.equal(createHash('sha256').update(bytes).digest('hex'), exported.sha256)
  const more = { model_id: model, dataset_id: dataset, config: { training_config: { epochs: 1 } } }
  const job = await api.untilEnded((await api.api('POST', '/fine-tuning/jobs', more)).body.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const request = { model, dataset, graders: [same] }
  const evaluation = await api.api('POST', '/evaluations', request)
  assert.equal(evaluation.status, 201, JSON.stringify(evaluation.body))
  await until('the evaluation', async () => {
    const { status } = (await api.api('GET', `/evaluations/${evaluation.body.id}`)).body
    assert.notEqual(status, 'failed')
    return status === 'completed'
  })

  // A damaged object is an error that says so; a lost one too.
  const file = path.join(machine.dataDir, 'datasets', `${dataset}.rows.jsonl`)
  rmSync(file)
  const [object] = objects(`datasets/${dataset}.rows.jsonl`)
  const original = readFileSync(path.join(shared, object!))
  writeFileSync(path.join(shared, object!), 'other bytes')
  const damaged = await api.api('GET', `/datasets/${dataset}/rows`)
  assert.equal(damaged.body.error?.code, 'stored_object_damaged', JSON.stringify(damaged.body))
  assert.match(damaged.body.error.message, /is damaged: its SHA-256/)
  writeFileSync(path.join(shared, object!), original)

  // A storage that is away is a 503; what is here keeps working, and so does the service.
  renameSync(shared, `${shared}.away`)
  const away = await api.api('GET', `/datasets/${dataset}/rows`)
  assert.deepEqual([away.status, away.body.error.code], [503, 'storage_unavailable'])
  assert.equal((await api.upload(colourRows(4))).status, 503)
  assert.equal(
    (await api.api('POST', '/chat/completions', { model, messages: [{ role: 'user', content: 'x' }], max_tokens: 1 }))
      .status,
    200,
  )
  await until('readiness to say so', async () => {
    const ready = await fetch(new URL('/health/ready', server.url))
    assert.equal(ready.status, 200)
    return ((await ready.json()) as { warnings?: string[] }).warnings?.[0]?.includes('storage')
  })
  renameSync(`${shared}.away`, shared)
  assert.equal((await api.api('GET', `/datasets/${dataset}/rows`)).status, 200)

  // What is deleted is gone from the storage.
  await api.api('DELETE', `/exports/${exported.id}`)
  assert.deepEqual(objects(`exports/${exported.id}/*`), [])
  await server.end('SIGTERM')
})
