// Training in a real Ray cluster of two machines (processes of this one): the same result as here, and every part of it
// killed in the middle.
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { freePort } from '../../bench/support/free-port.ts'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import { createRayClient } from '../../server/platform/ray/client.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { type RayCluster, type RayNode, rayTest, startRay } from '../support/ray.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const token = 'a-token-of-the-cluster-for-tests-0123456789'
const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-ray-'))
let cluster: RayCluster
let head: RayNode
const nodes: RayNode[] = []
let folder: DataFolder
let server: RunningServer
let key: string
let api: Client
let dataset: string

async function startServer() {
  server = await folder.start()
  key ??= folder.key()
  api = client(server.url, key)
}

before(async () => {
  if (rayTest.skip) return
  cluster = await startRay({ token })
  head = await cluster.startHead()
  for (let index = 0; index < 2; index++) nodes.push(await cluster.addNode())
  folder = dataFolder(
    'ray',
    {
      TUNERY_RAY_ADDRESS: cluster.url,
      TUNERY_RAY_TOKEN: token,
      TUNERY_RAY_PYTHON: path.join(root, '.local/python/bin/python'),
      TUNERY_CHECKPOINT_SECONDS: '1',
      TUNERY_PORT: String(await freePort()),
      TUNERY_LOG_LEVEL: 'warn',
    },
    { log: path.join(scratch, 'server.log') },
  )
  await startServer()
  dataset = (await api.upload(colourRows(16))).body.id
})
after(async () => {
  folder?.remove()
  await cluster?.stop()
  rmSync(scratch, { recursive: true, force: true })
})

const long = { epochs: 40, batch_size: 1, learning_rate: 0.001 }
const create = async (training_config: object): Promise<string> => {
  const config = { training_config }
  const { status, body } = await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })
  assert.equal(status, 201, JSON.stringify(body))
  return body.id
}

async function eventsOf(id: string): Promise<JobEvent[]> {
  const events: JobEvent[] = []
  for await (const event of api.events(id)) events.push(event)
  return events
}
const statuses = (events: JobEvent[]) => events.flatMap(({ data }) => (data?.status ? [data.status] : []))

async function completed(id: string) {
  const job = await api.untilEnded(id)
  const log = () => readFileSync(path.join(scratch, 'server.log'), 'utf8').slice(-3000)
  assert.equal(job.status, 'completed', `${JSON.stringify(job.error)}\n${log()}`)
  return job
}

/** No step is reported twice by one attempt, and the last is the end. */
function stepsReported(events: JobEvent[]): number[] {
  return events
    .filter(({ type }) => type === 'metrics' || type === 'checkpoint')
    .flatMap(({ data }) => ((data?.losses ?? []) as [number, number][]).map(([step]) => step))
}

test('a job trains in the cluster, to the same weights as here', rayTest, async () => {
  const training_config = { epochs: 12, batch_size: 4, learning_rate: 0.02 }
  const id = await create(training_config)
  const job = await completed(id)
  const events = await eventsOf(id)
  assert.deepEqual(statuses(events), ['queued', 'running', 'completed'])
  assert.deepEqual(
    stepsReported(events),
    Array.from({ length: 48 }, (_, index) => index + 1),
    'the loss of every step, once',
  )
  assert.ok(!JSON.stringify(events).includes('/tmp/'), 'no path of a machine leaks')
  await until('its run folder to be removed', () => !existsSync(path.join(folder.dataDir, 'runs', id)))
  const ray = createRayClient(cluster.url, token)
  await until('the cluster to forget it', async () => !(await ray.job(`tunery-${id}-1`)))

  const here = await startApp()
  try {
    const { body } = await here.upload(colourRows(16))
    const config = { training_config }
    const local = (await here.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: body.id, config })).body.id
    const { model } = await here.untilEnded(local)
    const weights = (dataDir: string, id: string) =>
      readFileSync(path.join(dataDir, 'models', id, 'adapter/adapter_model.safetensors'))
    assert.ok(weights(folder.dataDir, job.model!).equals(weights(here.dataDir, model!)), 'bit for bit')
  } finally {
    await here.stop()
  }
  const deployed = await api.api('POST', '/deployments', { model: job.model, name: 'colours' })
  assert.equal(deployed.body.status, 'ready', JSON.stringify(deployed.body))
})

test('a server that is killed or stopped finds the run again when it starts', rayTest, async () => {
  const id = await create(long)
  await api.untilEvent(id, ({ type }) => type === 'checkpoint')
  const trainers = cluster.processes(/trainer\.cli\.train/)
  assert.equal(trainers.length, 1)
  await server.end('SIGKILL')
  await startServer()
  assert.equal((await api.job(id)).status, 'running')
  await api.untilEvent(id, ({ type, data }) => type === 'checkpoint' && Number(data!.step) > 100)
  assert.equal(await server.end('SIGTERM'), 0)
  await startServer()
  assert.deepEqual(cluster.processes(/trainer\.cli\.train/), trainers, 'the same trainer')
  await completed(id)
  const events = await eventsOf(id)
  assert.deepEqual(statuses(events), ['queued', 'running', 'completed'])
  assert.deepEqual(
    stepsReported(events),
    Array.from({ length: 640 }, (_, index) => index + 1),
    'what was trained meanwhile is reported too, once',
  )
})

test('a paused job leaves the cluster and resumes where it was; a cancelled one is ended there', rayTest, async () => {
  const id = await create(long)
  await api.untilEvent(id, ({ type }) => type === 'metrics')
  await api.api('POST', `/fine-tuning/jobs/${id}/pause`)
  await until('it to be paused', async () => (await api.job(id)).status === 'paused')
  await until('the cluster to be free', () => cluster.processes(/trainer\.cli\.train/).length === 0)
  await api.api('POST', `/fine-tuning/jobs/${id}/resume`)
  const { data } = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(data!.resumed_from_step) > 0)
  await api.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  await until('the trainer to end', () => cluster.processes(/trainer\.cli\.(train|remote)/).length === 0)
  assert.equal((await api.job(id)).status, 'cancelled')
  await until('its files to be removed', () => !existsSync(path.join(folder.dataDir, 'runs', id)))
})

test('two machines train together as one does, and the death of one is no error of the job', rayTest, async () => {
  const training_config = { epochs: 40, batch_size: 4, learning_rate: 0.001 }
  const lossesOf = async (id: string) =>
    new Map((await eventsOf(id)).flatMap(({ data }) => (data?.losses ?? []) as [number, number][]))
  const alone = await create(training_config)
  await completed(alone)
  await server.end('SIGTERM')
  Object.assign(folder.env, { TUNERY_TRAINER_PROCESSES: '2', TUNERY_RAY_MACHINES: '2' })
  await startServer()
  try {
    const together = await create(training_config)
    await api.untilEvent(together, ({ type }) => type === 'checkpoint')
    const trainers = nodes.map((node) => cluster.processes(/-m trainer\.cli\.train/, node))
    assert.ok(
      trainers.every((found) => found.length > 0),
      'one on each machine',
    )
    // The second machine's, which reports nothing itself.
    const second = trainers.flat().find((pid) => readFileSync(`/proc/${pid}/environ`).includes('\0RANK=1\0'))!
    process.kill(second, 'SIGKILL')
    await api.untilEvent(together, ({ data }) => data?.resumed_from_step !== undefined)
    await completed(together)
    const [one, two] = [await lossesOf(alone), await lossesOf(together)]
    assert.equal(two.size, 160)
    for (const [step, loss] of two)
      assert.ok(Math.abs(loss - one.get(step)!) < 0.003 * one.get(step)!, `step ${step}: ${loss}, ${one.get(step)}`)
  } finally {
    await server.end('SIGTERM')
    Object.assign(folder.env, { TUNERY_TRAINER_PROCESSES: '1', TUNERY_RAY_MACHINES: '1' })
    await startServer()
  }
})

test('a machine killed in the middle of a training: it resumes on the other from its checkpoint', rayTest, async () => {
  const id = await create(long)
  const { data: last } = await api.untilEvent(id, ({ type }) => type === 'checkpoint')
  const at = nodes.findIndex((node) => cluster.processes(/trainer\.cli\.train/, node).length > 0)
  await nodes[at]!.kill()
  const { data } = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(data!.resumed_from_step) >= Number(last!.step))
  assert.equal(cluster.processes(/trainer\.cli\.train/, nodes[1 - at]).length, 1, 'on the other machine')
  await completed(id)
  assert.deepEqual(statuses(await eventsOf(id)), ['queued', 'running', 'queued', 'running', 'completed'])
  nodes[at] = await cluster.addNode()
})

test('a head killed and restarted: the job waits, is submitted again, and goes on', rayTest, async () => {
  const id = await create(long)
  await api.untilEvent(id, ({ type }) => type === 'checkpoint')
  // The whole cluster vanishes.
  for (const node of [head, ...nodes]) await node.kill()
  await until('the job to be shown as waiting', async () => (await api.job(id)).status === 'queued')
  head = await cluster.startHead()
  for (const index of nodes.keys()) nodes[index] = await cluster.addNode()
  const { data } = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(data!.resumed_from_step) > 0)
  await completed(id)
  const events = await eventsOf(id)
  assert.deepEqual(statuses(events), ['queued', 'running', 'queued', 'queued', 'running', 'completed'])
  assert.ok(events.some((event) => event.data?.code === 'run_lost'))
})
