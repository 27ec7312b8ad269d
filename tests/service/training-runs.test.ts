// A run in a cluster as the service sees it: its routes, and the real program of the cluster's machine, started here.
// No cluster answers in these tests, which is what a job must outlive.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { freePort } from '../../bench/support/free-port.ts'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import { packTrainer } from '../../server/features/jobs/ray/code-package.ts'
import { gpuFor, resourcesFor } from '../../server/features/jobs/ray/resources.ts'
import { createSecrets } from '../../server/platform/storage/secrets.ts'
import { colourRows, until } from '../support/client.ts'
import { draftTokens } from '../support/draft-tokens.ts'
import { full } from '../support/full.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const onPostgres = { skip: process.env.TEST_DATABASE_URL ? false : 'runs on Postgres: set TEST_DATABASE_URL' }

let app: TestApp
let dataset: string
const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-runs-'))
let settings: Record<string, string>
before(async () => {
  settings = { TUNERY_RAY_ADDRESS: `http://127.0.0.1:${await freePort()}`, TUNERY_CHECKPOINT_SECONDS: '1' }
  mkdirSync(path.join(scratch, 'storage'))
  app = await startApp({
    ...settings,
    ...(!onPostgres.skip && { TUNERY_STORAGE_URL: `file://${path.join(scratch, 'storage')}` }),
  })
  dataset = (await app.upload(colourRows(16))).body.id
})
after(async () => {
  await app.stop()
  rmSync(scratch, { recursive: true, force: true })
})

/** A job, and the address and token of its run, which the cluster was to get. */
async function createRun(training_config: object) {
  const body = { model_id: tiny, dataset_id: dataset, config: { training_config } }
  const created = await app.api('POST', '/fine-tuning/jobs', body)
  assert.equal(created.status, 201, JSON.stringify(created.body))
  const { id } = created.body
  const row = await until('the run to be there', () =>
    app.db.selectFrom('training_runs').selectAll().where('job_id', '=', id).executeTakeFirst(),
  )
  const secrets = createSecrets(path.join(app.dataDir, 'secret.key'))
  const token = secrets.decrypt(row.token_encrypted, `training run ${id} ${row.attempt}`)
  const url = `${app.address}/internal/runs/${id}/${row.attempt}`
  const call = async (method: string, route: string, body?: unknown, headers: Record<string, string> = {}) => {
    const raw = typeof body === 'string'
    const response = await fetch(`${url}/${route}`, {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        ...(body !== undefined && { 'content-type': raw ? 'application/octet-stream' : 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && { body: raw ? body : JSON.stringify(body) }),
    })
    const text = await response.text()
    const isJson = response.headers.get('content-type')?.includes('json')
    return { status: response.status, body: isJson ? JSON.parse(text) : text }
  }
  return { id, url, token, call }
}

/** The status that a POST of 100 MB is answered with, of which only the headers were sent. */
async function statusBeforeBody(url: string, token: string): Promise<string> {
  const { hostname, port, pathname } = new URL(url)
  const socket = net.connect(Number(port), hostname)
  const headers = [
    'Host: x',
    `Authorization: Bearer ${token}`,
    'Content-Type: application/json',
    'Content-Length: 100000000',
  ]
  socket.write(`POST ${pathname} HTTP/1.1\r\n${headers.join('\r\n')}\r\n\r\n`)
  const [answer] = await once(socket, 'data', { signal: AbortSignal.timeout(10_000) })
  socket.destroy()
  return String(answer).split(' ')[1]!
}

const python = path.join(root, '.local/python/bin/python')

/** The program that a cluster would start, from the package that it would get. */
async function startMachine({ url, token }: { url: string; token: string }): Promise<ChildProcess> {
  const code = path.join(scratch, 'code')
  if (!existsSync(code)) {
    const { content } = await packTrainer(app.services.converters)
    writeFileSync(`${code}.zip`, content)
    execFileSync(python, ['-m', 'zipfile', '-e', `${code}.zip`, code])
  }
  return spawn(python, ['-m', 'trainer.cli.remote'], {
    cwd: code,
    env: {
      ...process.env,
      TUNERY_RUN_URL: url,
      TUNERY_RUN_TOKEN: token,
      TUNERY_RUN_PYTHON: python,
      TUNERY_RUN_DIR: path.join(scratch, 'runs'),
    },
    stdio: ['ignore', 'ignore', 'ignore'],
  })
}

const line = (message: string) => ({ type: 'log', message })

test('lines are recorded in order and once, whatever is sent twice', async () => {
  const { id, call } = await createRun({ epochs: 1 })
  const messages = async () => {
    const rows = await app.db
      .selectFrom('job_events')
      .select('message')
      .where('job_id', '=', id)
      .orderBy('seq')
      .execute()
    return rows.map(({ message }) => message).filter((message) => /^line/.test(message))
  }
  assert.deepEqual((await call('POST', 'lines', { first: 1, lines: [line('line 1'), line('line 2')] })).body, {
    received: 2,
    stop: false,
  })
  await until('the job to run', async () => (await app.job(id)).status === 'running')
  assert.equal((await call('POST', 'lines', { first: 1, lines: [line('line 1'), line('line 2')] })).body.received, 2)
  assert.equal((await call('POST', 'lines', { first: 2, lines: [line('line 2'), line('line 3')] })).body.received, 3)
  const gap = await call('POST', 'lines', { first: 9, lines: [line('line 9')] })
  assert.deepEqual([gap.status, gap.body.error.message], [409, 'Line 4 is missing.'])
  await Promise.all(
    Array.from({ length: 5 }, () => call('POST', 'lines', { first: 4, lines: [line('line 4'), line('line 5')] })),
  )
  await until('all to be recorded', async () => (await messages()).length >= 5)
  assert.deepEqual(await messages(), ['line 1', 'line 2', 'line 3', 'line 4', 'line 5'])
  const left = app.db.selectFrom('training_run_lines').selectAll().where('job_id', '=', id)
  await until('recorded lines to be dropped', async () => (await left.execute()).length === 0)

  await app.api('POST', `/fine-tuning/jobs/${id}/pause`)
  assert.equal((await call('POST', 'lines', { first: 0, lines: [] })).body.stop, true)
  await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  assert.equal((await call('POST', 'lines', { first: 0, lines: [] })).status, 410)
})

test('a run whose account’s turn is over is told to stop, and its job waits for its next turn', async () => {
  const { id, call } = await createRun({ epochs: 1 })
  await call('POST', 'lines', { first: 1, lines: [line('it runs')] })
  // As the worker does that finds another account waiting; this one may have been restarted since.
  await app.db.updateTable('training_runs').set({ turn_over: 1 }).where('job_id', '=', id).execute()
  assert.equal((await call('POST', 'lines', { first: 0, lines: [] })).body.stop, true)
  await call('POST', 'lines', { first: 2, lines: [{ type: 'exit', message: '', data: { status: 75 } }] })
  const passed = await app.untilEvent(id, ({ data }) => data?.code === 'turn_passed')
  assert.equal(passed.message, "The job gave its turn to another account's job.")
  assert.equal(
    (await app.db.selectFrom('tuning_jobs').select('crashes').where('id', '=', id).executeTakeFirst())!.crashes,
    0,
  )
  await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
})

test('a run is known by its token alone, and stores and reads only what is its own', async () => {
  const { id, url, token, call } = await createRun({ epochs: 1 })
  const other = await createRun({ epochs: 1 })
  // As long as a token, but not in bytes.
  const odd = 'é'.repeat(other.token.length)
  for (const authorization of ['', 'Bearer', 'Bearer x', `Bearer ${odd}`, `Bearer ${other.token}`, `Bearer ${app.key}`])
    assert.equal((await call('GET', 'spec', undefined, { authorization })).status, 401, authorization)
  for (const route of ['lines', 'files/out/a'])
    assert.equal(
      (await call(route === 'lines' ? 'POST' : 'PUT', route, 'x', { authorization: 'Bearer x' })).status,
      401,
    )
  assert.deepEqual(
    await Promise.all(['x', token].map((each) => statusBeforeBody(`${url}/lines`, each))),
    ['401', '413'],
    'no body is read that is not wanted',
  )
  const { spec, files } = (await call('GET', 'spec')).body
  assert.ok(!JSON.stringify({ spec, files }).includes(app.dataDir), 'no path of this machine but the converters')
  const file = files.find(({ path }: { path: string }) => path === spec.dataset.path)
  assert.equal(file.sha256, spec.dataset.sha256)
  assert.equal(file.cache, false, 'no data of an account stays on the machine')
  assert.equal((await call('GET', `files/${file.sha256}`)).status, 200)
  for (const name of [createHash('sha256').update('x').digest('hex'), '..%2Fsecret.key', 'spec.json'])
    assert.equal((await call('GET', `files/${name}`)).status, 404, name)

  const sha256 = createHash('sha256').update('weights').digest('hex')
  const put = (name: string, hash = sha256) => call('PUT', `files/${name}`, 'weights', { 'x-content-sha256': hash })
  const folder = path.join(app.dataDir, 'runs', id, '1')
  assert.equal((await put('checkpoints/step-3/weights.safetensors')).status, 204)
  assert.equal(readFileSync(path.join(folder, 'checkpoints/step-3/weights.safetensors'), 'utf8'), 'weights')
  assert.equal((await put('out/result/adapter/a.json', 'another')).status, 503)
  assert.deepEqual(readdirSync(path.join(folder, 'out/result/adapter')), [], 'a damaged file is not kept')
  for (const name of [
    'spec.json',
    'checkpoints/step-3/../../../secret.key',
    'checkpoints%2F..%2F..%2Fx',
    'out/../../x',
    'out/.hidden',
    'out//x',
    'checkpoints/step-x/a',
  ])
    assert.ok([404, 422].includes((await put(name)).status), name)
  for (const body of [
    {},
    { first: -1, lines: [] },
    { first: 0, lines: [line('a')] },
    { first: 1, lines: [{ type: 1 }] },
  ])
    assert.equal((await call('POST', 'lines', body)).status, 422, JSON.stringify(body))
  assert.equal((await call('POST', 'lines', 'no json', { 'content-type': 'application/json' })).status, 422)
  for (const each of [id, other.id]) await app.api('POST', `/fine-tuning/jobs/${each}/cancel`)
})

test('a job waits for a cluster that does not answer, and says so', async () => {
  const { id } = await createRun({ epochs: 1 })
  await app.untilEvent(id, ({ data }) => data?.code === 'cluster_away')
  assert.equal((await app.job(id)).status, 'queued')
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)).body.status, 'cancelled')
})

test('the program of a machine trains, reports, and ends with its run', async () => {
  const run = await createRun({ epochs: 2, batch_size: 4 })
  const machine = await startMachine(run)
  const job = await app.untilEnded(run.id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  // The answers to draft from came along, and the engine has had them since it compared the model.
  const drafts = readFileSync(path.join(app.dataDir, 'drafts', `${job.model}.bin`))
  assert.equal((await draftTokens(app.services.enginePid()!))[job.model!], drafts.readUInt32LE(8))
  const events: JobEvent[] = []
  for await (const event of app.events(run.id)) events.push(event)
  assert.ok(!JSON.stringify(events).includes(scratch), 'no path of the machine leaks')
  if (machine.exitCode === null) await once(machine, 'exit')
  assert.equal(machine.exitCode, 0)
  assert.deepEqual(
    readdirSync(path.join(scratch, 'runs')),
    ['tunery-cache'],
    'its folder is removed, weights of the base stay',
  )

  const cancelled = await createRun({ epochs: 50, batch_size: 1 })
  const second = await startMachine(cancelled)
  await app.untilEvent(cancelled.id, ({ type }) => type === 'checkpoint')
  await app.api('POST', `/fine-tuning/jobs/${cancelled.id}/cancel`)
  if (second.exitCode === null) await once(second, 'exit')
  await until('its checkpoints to be removed', () => !existsSync(path.join(app.dataDir, 'runs', cancelled.id)))
})

test('a machine may report to another server than the one that follows its run', {
  skip: onPostgres.skip || full.skip,
}, async () => {
  const second = await startApp(settings, { join: app })
  try {
    const run = await createRun({ epochs: 50, batch_size: 1 })
    const entry = await app.db.selectFrom('queue_entries').select('worker').where('ref', '=', run.id).executeTakeFirst()
    const follows = (each: TestApp) => entry!.worker!.startsWith(each.services.servers.id)
    const [follower, other] = follows(app) ? [app, second] : [second, app]
    assert.ok(follows(follower))
    const machine = await startMachine({ ...run, url: run.url.replace(app.address, other.address) })
    const job = await app.untilEnded(run.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    assert.ok(!existsSync(path.join(other.dataDir, 'models', job.model!)), 'registered by the follower')
    assert.ok(existsSync(path.join(follower.dataDir, 'models', job.model!)))
    if (machine.exitCode === null) await once(machine, 'exit')
    for await (const { data } of app.events(run.id)) assert.ok(!data?.files, 'no names of files in events')
  } finally {
    await second.stop()
  }
})

test('a job asks for the smallest kind of GPU that has room for it, and for all machines at once', () => {
  const kinds = [
    { type: 'H100', memory_mb: 80_000 },
    { type: 'A10G', memory_mb: 22_500 },
  ]
  assert.equal(gpuFor(9000, kinds).type, 'A10G')
  assert.equal(gpuFor(22_000, kinds).type, 'H100', 'not to the last byte')
  assert.throws(() => gpuFor(90_000, kinds), /90\.0 GB of a GPU's memory, and the cluster's largest has 80\.0 GB/)
  const [small] = kinds
  assert.deepEqual(resourcesFor({ processes: 2, machines: 1, threads: 4 }, small).resources, {
    entrypoint_num_cpus: 8,
    entrypoint_num_gpus: 2,
    entrypoint_resources: { 'accelerator_type:H100': 0.001 },
  })
  assert.deepEqual(resourcesFor({ processes: 1, machines: 1, threads: 4 }, undefined).resources, {
    entrypoint_num_cpus: 4,
  })
  const spread = resourcesFor({ processes: 4, machines: 2, threads: 4 }, { type: 'any', memory_mb: 1 })
  assert.deepEqual(spread.resources, { entrypoint_num_cpus: 0 })
  assert.deepEqual(JSON.parse(spread.environment.TUNERY_RUN_RESOURCES!), { CPU: 8, GPU: 2 })
})
