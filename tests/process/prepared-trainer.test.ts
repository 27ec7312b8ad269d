// A trainer that waits for its run: who takes it, what ends it, and a job whose prepared trainer is killed.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, type TestContext, test } from 'node:test'
import pino from 'pino'
import { childEnv } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import { createPreparedTrainer } from '../../server/platform/trainer/prepared-trainer.ts'
import { client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('prepared', {
  TUNERY_PREPARED_TRAINER_SECONDS: '600',
  TUNERY_CHECKPOINT_SECONDS: '1',
  // In the idle class it waits for every other program of the machine.
  TUNERY_TRAINING_PRIORITY: 'low',
})
const run_dir = mkdtempSync(path.join(os.tmpdir(), 'tunery-prepared-run-'))
after(() => {
  folder.remove()
  rmSync(run_dir, { recursive: true })
})

const prepared = (parent: number) => children(parent, 'trainer.cli.prepared')
const begun = (parent: number) => children(parent, 'trainer.cli.train')
const io = (lines: string[]) => ({
  stdout: (line: string) => void lines.push(line),
  onStderr() {},
  signal: new AbortController().signal,
  grace_ms: 5000,
})
const enough_memory = { skip: process.availableMemory() < 5e9 && 'less than 5 GB of memory are free' }

function create(t: TestContext, { idle_seconds = 600 } = {}) {
  let availableMb = 8000
  const trainer = createPreparedTrainer({
    python: path.join(root, '.local/python/bin/python'),
    threads: 1,
    env: () => childEnv(),
    idle_seconds,
    ready: () => true,
    log: pino({ level: 'silent' }),
    check_ms: 20,
    availableMb: () => availableMb,
  })
  trainer.start()
  t.after(trainer.close)
  const setMemory = (mb: number) => {
    availableMb = mb
  }
  return { trainer, setMemory }
}

test('one trainer waits, while memory is free, and none beside a run', async (t) => {
  const { trainer, setMemory } = create(t)
  setMemory(3000)
  trainer.prepare()
  assert.deepEqual(prepared(process.pid), [], 'memory is short')
  setMemory(8000)
  trainer.prepare()
  trainer.prepare()
  assert.equal(prepared(process.pid).length, 1)
  await trainer.during(async (take) => {
    const spec = { method: 'qlora', threads: 1 }
    const run = { module: 'trainer.cli.train', run_dir, env: {}, spec }
    assert.equal(await take(run, io([])), undefined, 'it lacks the library of quantized bases')
    await until('it to make room', () => prepared(process.pid).length === 0)
    trainer.prepare()
    assert.deepEqual(prepared(process.pid), [])
  })
  await until('the next one to wait', () => prepared(process.pid).length === 1)
  setMemory(1000)
  await until('it to make room', () => prepared(process.pid).length === 0)
  setMemory(8000)
  trainer.prepare()
  await trainer.close()
  trainer.prepare()
  assert.deepEqual(prepared(process.pid), [])
})

test('a trainer that nobody needs ends', async (t) => {
  const { trainer } = create(t, { idle_seconds: 0.2 })
  trainer.prepare()
  assert.equal(prepared(process.pid).length, 1)
  await until('it to end', () => prepared(process.pid).length === 0)
})

test('of two runs at once one takes the trainer, and gets its output; a stop ends it', async (t) => {
  const { trainer } = create(t)
  trainer.prepare()
  const run = { module: 'trainer.cli.train', run_dir, env: {}, spec: { method: 'lora', threads: 1 } }
  const lines: string[] = []
  await trainer.during(async (take) => {
    const [one, other] = await Promise.all([take(run, io(lines)), take(run, io([]))])
    assert.equal(other, undefined)
    assert.equal((await one!.ended).status, 1, 'the folder has no run')
  })
  assert.match(lines.join(), /"type": "error".*spec\.json/)

  await until('the next one to wait', () => prepared(process.pid).length === 1)
  const stop = new AbortController()
  stop.abort()
  assert.equal(await trainer.during((take) => take(run, { ...io([]), signal: stop.signal })), undefined)
  await trainer.close()
})

test('a trainer that is killed before it has answered leaves the run to a new one', async (t) => {
  const { trainer } = create(t)
  trainer.prepare()
  const [waiting] = prepared(process.pid)
  process.kill(waiting!, 'SIGSTOP')
  const run = { module: 'trainer.cli.train', run_dir, env: {}, spec: { method: 'lora', threads: 1 } }
  await trainer.during(async (take) => {
    const taken = take(run, io([]))
    process.kill(waiting!, 'SIGKILL')
    assert.equal(await taken, undefined)
  })
})

test('an upload prepares a trainer for the first job, which ends with the server', enough_memory, async () => {
  const server = await folder.start()
  const api = client(server.url, folder.key())
  assert.deepEqual(prepared(server.pid), [], 'nothing was uploaded')
  const dataset_id = (await api.upload(colourRows(16))).body.id
  await until('a trainer to wait', () => prepared(server.pid).length === 1)
  const [first] = prepared(server.pid)
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body
  await api.untilEvent(id, (event) => event.type === 'metrics')
  assert.deepEqual(prepared(server.pid), [first], 'it trains, and no other one waits beside it')
  assert.deepEqual(begun(server.pid), [])
  await api.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  await until('the next one to wait', () => prepared(server.pid).some((pid) => pid !== first))
  const left = prepared(server.pid)
  await server.end('SIGKILL')
  await until('all to end with the server', () => !left.some(alive))
})

test('a job whose trainer had waited resumes in a new one after a kill', full, async () => {
  const server = await folder.start()
  const api = client(server.url, folder.key())
  const dataset_id = (await api.upload(colourRows(16))).body.id
  await until('a trainer to wait', () => prepared(server.pid).length === 1)
  const [waiting] = prepared(server.pid)
  const config = { training_config: { epochs: 30, batch_size: 1 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body
  await api.untilEvent(id, (event) => event.type === 'checkpoint')
  process.kill(waiting!, 'SIGKILL')
  const resumed = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(resumed.data!.resumed_from_step) > 0)
  assert.equal((await api.untilEnded(id)).status, 'completed')
  await server.end('SIGTERM')
  await until('all to end with the server', () => prepared(server.pid).length === 0)
})
