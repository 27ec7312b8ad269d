// Training and serving on one machine: the engine yields the share of CPU time that a trainer lacks.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { after, test } from 'node:test'
import pino from 'pino'
import { createCpuThrottle } from '../../engine/batching/cpu-throttle.ts'
import { createCoreShare, type Slowdown } from '../../server/fine-tuning/core-share.ts'
import { until } from '../support/client.ts'

const cores = availableParallelism()

/** Starts a process that keeps every core busy. */
function busy(priority: number) {
  const code = `require('os').setPriority(${priority})
    const work = 'for (;;);'
    for (let i = 0; i < ${cores}; i++) new (require('worker_threads').Worker)(work, { eval: true })`
  const child = spawn(process.execPath, ['-e', code], { stdio: 'ignore' })
  after(() => child.kill('SIGKILL'))
  return child
}

/** Computes in steps for `for_ms` with the throttle, and returns the share of time that it was idle. */
async function idleShare(throttle: ReturnType<typeof createCpuThrottle>, for_ms: number): Promise<number> {
  const began = performance.now()
  let computed_ms = 0
  while (performance.now() - began < for_ms) {
    const step = performance.now()
    while (performance.now() - step < 10);
    const took_ms = performance.now() - step
    computed_ms += took_ms
    throttle.recordCompute(took_ms)
    await throttle.pauseIfDue()
  }
  return 1 - computed_ms / (performance.now() - began)
}

/** The least of three: other work of the machine may take a core for a while. */
async function leastIdleShare(throttle: ReturnType<typeof createCpuThrottle>): Promise<number> {
  return Math.min(await idleShare(throttle, 100), await idleShare(throttle, 100), await idleShare(throttle, 100))
}

test('the throttle yields the requested share between steps, for the requested time only', async () => {
  const throttle = createCpuThrottle()
  assert.ok((await leastIdleShare(throttle)) < 0.05, 'no request')
  throttle.yieldShare(0.2, 60_000)
  const idle_share = await idleShare(throttle, 1500)
  assert.ok(idle_share > 0.15 && idle_share < 0.3, `it yielded ${idle_share}`)
  throttle.yieldShare(0.2, 0)
  await idleShare(throttle, 100)
  assert.ok((await leastIdleShare(throttle)) < 0.05, 'the request has expired')
})

test('a trainer starved by a busy engine is reported as slowed, and the engine has to yield', async () => {
  const [engine, training] = [busy(0), busy(19)]
  const yieldRequests: number[] = []
  const slowdowns: Slowdown[] = []
  const yieldCores = async (share: number) => void yieldRequests.push(share)
  const log = pino({ level: 'silent' })
  const share = createCoreShare({ share: 0.2, cores, enginePid: () => engine.pid, yieldCores, log, tick_ms: 200 })
  const stop = share.watch(training.pid!, (slowdown) => slowdowns.push(slowdown))
  after(stop)
  assert.equal(share.count(), 1)
  await until('the slowdown to be reported', () => slowdowns.length > 0)
  assert.equal(slowdowns[0]!.by, 'serving')
  assert.ok(slowdowns[0]!.cpu_share < 0.6)
  await until('the engine to be asked for the full share', () => yieldRequests.at(-1) === 0.2)
  engine.kill('SIGKILL')
  await until('the recovery to be reported', () => slowdowns.length > 1)
  assert.equal(slowdowns[1], null)
  const before = yieldRequests.length
  assert.ok(Math.max(...yieldRequests) <= 0.2, 'never more than the share')
  await until('another tick', () => slowdowns.length > 1 && share.count() === 1)
  assert.equal(yieldRequests.length, before)
  stop()
  assert.equal(share.count(), 0)
})
