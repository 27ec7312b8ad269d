// Supervision of the engine process: restarts after crashes, failed starts, a watchdog for hangs.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import pino from 'pino'
import { EngineClient } from '../../server/features/serving/engine/client.ts'
import { createEngineHealth } from '../../server/features/serving/engine/health.ts'
import { createEngineProcess, type EngineInstance } from '../../server/features/serving/engine/process.ts'
import { ServingSleep } from '../../server/features/serving/engine/sleep.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'

const log = pino({ level: 'silent' })

const make = (options: string[] = []) => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-test-'))
  const engine = createEngineProcess({ dataDir, threads: 1, options, log })
  return {
    engine,
    async stop() {
      await engine.stop()
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}

test('an idle engine that is killed is restarted without a request, and no problem is reported', async () => {
  const { engine, stop } = make()
  const first = await engine.instance()
  process.kill(first.pid, 'SIGKILL')
  const second = await until('the next engine', async () => {
    assert.equal(engine.problem(), undefined)
    const now = engine.current()
    return now && now.pid !== first.pid ? now : undefined
  })
  await stop()
  assert.ok(second.ended.aborted)
  assert.equal(engine.current(), undefined)
})

test('an engine that is started again gets the claims of trainings before it serves', async () => {
  const options = ['--vllm', '/no/such/python']
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-test-'))
  const onStart = (started: EngineInstance) => sleep.begin(started)
  const engine = createEngineProcess({ dataDir, threads: 1, options, onStart, log })
  const client = new EngineClient(engine, log)
  const sleep = new ServingSleep(engine, client, log)
  const claimed = async () => JSON.parse((await client.read('/internal/claim_devices'))!).claims
  const { pid } = await engine.instance()
  const claim = { job: 'job_1', devices: ['GPU-1'], end: false }
  await sleep.claim(claim.job, claim.devices, claim.end, new AbortController().signal)
  assert.deepEqual(await claimed(), [claim])
  process.kill(pid, 'SIGKILL')
  await until('the next engine', async () => engine.current() && engine.current()!.pid !== pid)
  assert.deepEqual(await claimed(), [claim])
  sleep.release(claim.job)
  await until('no claims', async () => (await claimed()).length === 0)
  await engine.stop()
  rmSync(dataDir, { recursive: true, force: true })
})

test('a failing start is reported as a problem until the engine starts', async () => {
  const refusing = make(['--no-such-option'])
  await assert.rejects(refusing.engine.instance(), { code: 'engine_unavailable' })
  assert.match(refusing.engine.problem()!, /could not be started/)
  await refusing.stop()

  const { execPath } = process
  const { engine, stop } = make()
  try {
    process.execPath = '/no/such/node'
    await assert.rejects(engine.instance(), { code: 'engine_unavailable' })
    assert.match(engine.problem()!, /could not be started/)
  } finally {
    process.execPath = execPath
  }
  await until('an engine', async () => engine.current())
  assert.equal(engine.problem(), undefined)
  await stop()
})

test('a hung engine is reported in time, can recover, and is killed if it has requests', async () => {
  const { engine, stop } = make()
  const { pid } = await engine.instance()
  let isBusy = false
  const health = createEngineHealth(engine, { isBusy: () => isBusy }, log, {
    answer_ms: 300,
    watch_ms: 50,
    misses_max: 3,
  })
  const unwatch = health.watch()
  assert.equal(await health.problem(), undefined)
  process.kill(pid, 'SIGSTOP')
  const began = performance.now()
  assert.match((await health.problem())!, /has not answered within 0.3 s/)
  assert.ok(performance.now() - began < allowed(3_000))
  process.kill(pid, 'SIGCONT')
  await until('its answer', async () => (await health.problem()) === undefined)
  assert.equal(engine.current()?.pid, pid, 'an idle engine is not killed')

  process.kill(pid, 'SIGSTOP')
  isBusy = true
  await until('the next engine', async () => engine.current() && engine.current()!.pid !== pid)
  isBusy = false
  unwatch()
  await stop()
})
