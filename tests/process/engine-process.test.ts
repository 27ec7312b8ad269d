// The engine is there again after whatever ended it, without a request that asks for it.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import pino from 'pino'
import { createEngineHealth } from '../../server/inference/engine/health.ts'
import { createEngineProcess } from '../../server/inference/engine/process.ts'
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

test('an engine that was killed while nobody used it is followed by another, and no problem is told meanwhile', async () => {
  const { engine, stop } = make()
  const first = await engine.life()
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

test('while no engine can be started that is told, and it is over once one could be', async () => {
  const refusing = make(['--no-such-option'])
  await assert.rejects(refusing.engine.life(), { code: 'engine_unavailable' })
  assert.match(refusing.engine.problem()!, /could not be started/)
  await refusing.stop()

  const { execPath } = process
  const { engine, stop } = make()
  try {
    process.execPath = '/no/such/node'
    await assert.rejects(engine.life(), { code: 'engine_unavailable' })
    assert.match(engine.problem()!, /could not be started/)
  } finally {
    process.execPath = execPath
  }
  await until('an engine', async () => engine.current())
  assert.equal(engine.problem(), undefined)
  await stop()
})

test('an engine that does not answer is told of in time, is well again once it answers, and is replaced where it has requests', async () => {
  const { engine, stop } = make()
  const { pid } = await engine.life()
  let isBusy = false
  const health = createEngineHealth(engine, { isBusy: () => isBusy }, log, {
    answer_ms: 300,
    watch_ms: 50,
    unanswered: 3,
  })
  const unwatch = health.watch()
  assert.equal(await health.problem(), undefined)
  process.kill(pid, 'SIGSTOP')
  const began = performance.now()
  assert.match((await health.problem())!, /has not answered within 0.3 s/)
  assert.ok(performance.now() - began < 3_000)
  process.kill(pid, 'SIGCONT')
  await until('its answer', async () => (await health.problem()) === undefined)
  assert.equal(engine.current()?.pid, pid, 'one that nobody waits for is left alone')

  process.kill(pid, 'SIGSTOP')
  isBusy = true
  await until('the next engine', async () => engine.current() && engine.current()!.pid !== pid)
  isBusy = false
  unwatch()
  await stop()
})
