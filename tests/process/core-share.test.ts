// Training beside serving: the engine leaves a share of the cores' time, and is asked for as much as a training lacks.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { after, test } from 'node:test'
import pino from 'pino'
import { createRests } from '../../engine/batching/yielding.ts'
import { createCoreShare, type Slowed } from '../../server/fine-tuning/core-share.ts'
import { until } from '../support/client.ts'

const cores = availableParallelism()

/** A program that computes on every core. */
function busy(priority: number) {
  const code = `require('os').setPriority(${priority})
    const work = 'for (;;);'
    for (let i = 0; i < ${cores}; i++) new (require('worker_threads').Worker)(work, { eval: true })`
  const child = spawn(process.execPath, ['-e', code], { stdio: 'ignore' })
  after(() => child.kill('SIGKILL'))
  return child
}

/** Computes in steps for a while, resting as it is told; the share of the time that it left. */
async function leftBy(rests: ReturnType<typeof createRests>, for_ms: number): Promise<number> {
  const began = performance.now()
  let computed_ms = 0
  while (performance.now() - began < for_ms) {
    const step = performance.now()
    while (performance.now() - step < 10);
    const took_ms = performance.now() - step
    computed_ms += took_ms
    rests.computed(took_ms)
    await rests.due()
  }
  return 1 - computed_ms / (performance.now() - began)
}

test('an engine that is asked to leaves its share between steps, for as long as it is asked, and no more than that', async () => {
  const rests = createRests()
  assert.ok((await leftBy(rests, 100)) < 0.05, 'nobody asked')
  rests.leave(0.2, 60_000)
  const left = await leftBy(rests, 1500)
  assert.ok(left > 0.15 && left < 0.3, `it left ${left}`)
  rests.leave(0.2, 0)
  await leftBy(rests, 100)
  assert.ok((await leftBy(rests, 100)) < 0.05, 'the time is over')
})

test('a training that starves beside a busy engine is said to be slowed by serving and is asked for; once the engine is idle, neither', async () => {
  const [engine, training] = [busy(0), busy(19)]
  const asked: number[] = []
  const told: Slowed[] = []
  const leaveCores = async (share: number) => void asked.push(share)
  const log = pino({ level: 'silent' })
  const share = createCoreShare({ share: 0.2, cores, enginePid: () => engine.pid, leaveCores, log, tick_ms: 200 })
  const stop = share.keep(training.pid!, (slowed) => told.push(slowed))
  after(stop)
  assert.equal(share.count(), 1)
  await until('it to be told', () => told.length > 0)
  assert.equal(told[0]!.by, 'serving')
  assert.ok(told[0]!.pace < 0.6)
  await until('it to be asked for its share', () => asked.at(-1) === 0.2)
  engine.kill('SIGKILL')
  await until('it to be told that this is over', () => told.length > 1)
  assert.equal(told[1], null)
  const before = asked.length
  assert.ok(Math.max(...asked) <= 0.2, 'never more than the share')
  await until('some looks more', () => told.length > 1 && share.count() === 1)
  assert.equal(asked.length, before)
  stop()
  assert.equal(share.count(), 0)
})
