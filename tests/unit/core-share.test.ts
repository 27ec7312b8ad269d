// The share of CPU time that trainers are guaranteed, on a clock and with process statistics of the test.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import pino from 'pino'
import { createCpuThrottle } from '../../engine/batching/cpu-throttle.ts'
import { createCoreShare, type Slowdown } from '../../server/features/jobs/core-share.ts'

const [engine, trainer, trainerChild] = [10, 20, 21]

/**
 * A core share of 20 % on two cores. `pass` lets a tick pass in which these processes used and waited for so many
 * milliseconds of CPU time.
 */
function watchTwoCores(context: TestContext) {
  context.mock.timers.enable({ apis: ['setInterval'] })
  const proc = mkdtempSync(path.join(tmpdir(), 'tunery-proc-'))
  context.after(() => rmSync(proc, { recursive: true }))
  const totals = new Map<number, [used: number, waited: number]>()
  const add = (pid: number, used_ms: number, waited_ms: number, children = '') => {
    const [used, waited] = totals.get(pid) ?? [0, 0]
    totals.set(pid, [used + used_ms, waited + waited_ms])
    const folder = path.join(proc, `${pid}/task/${pid}`)
    mkdirSync(folder, { recursive: true })
    writeFileSync(
      path.join(folder, 'schedstat'),
      `${totals
        .get(pid)!
        .map((ms) => ms * 1e6)
        .join(' ')} 1\n`,
    )
    writeFileSync(path.join(folder, 'children'), children)
  }
  add(engine, 0, 0)
  add(trainer, 0, 0, `${trainerChild} `)
  add(trainerChild, 0, 0)
  let at_ms = 0
  const yields: number[] = []
  const slowdowns: Slowdown[] = []
  const share = createCoreShare({
    share: 0.2,
    cores: 2,
    enginePid: () => engine,
    yieldCores: async (share, for_ms) => {
      assert.equal(for_ms, 3000, 'it ends by itself three ticks later')
      yields.push(share)
    },
    log: pino({ level: 'silent' }),
    now: () => at_ms,
    proc,
  })
  const stop = share.watch(trainer, (slowdown) => slowdowns.push(slowdown))
  async function pass(engine_ms: number, [used_ms, waited_ms]: [number, number], ticks = 1) {
    for (let tick = 0; tick < ticks; tick++) {
      add(engine, engine_ms, 0)
      add(trainer, used_ms / 2, waited_ms / 2, `${trainerChild} `)
      add(trainerChild, used_ms / 2, waited_ms / 2)
      at_ms += 1000
      context.mock.timers.tick(1000)
      // The task of this tick ends before the next one is due.
      await setImmediate()
    }
  }
  return { share, yields, slowdowns, stop, pass }
}

test('a trainer starved by a busy engine is reported as slowed; the engine yields until it ends', async (context) => {
  const { share, yields, slowdowns, stop, pass } = watchTwoCores(context)
  assert.equal(share.count(), 1)
  await pass(1900, [100, 1900], 4)
  assert.deepEqual(slowdowns, [], 'not for a moment')
  await pass(1900, [100, 1900], 6)
  assert.deepEqual(slowdowns, [{ by: 'serving', cpu_share: 0.05 }])
  assert.equal(yields.length, 9, 'from the second reading of the engine on')
  assert.ok(yields.every((share, index) => share > (yields[index - 1] ?? 0) || share === 0.2))
  assert.equal(yields.at(-1), 0.2, 'the full share, and never more')
  // Without the engine it gets all that it wants.
  await pass(0, [1900, 100], 5)
  assert.deepEqual(slowdowns.slice(1), [null])
  assert.equal(yields.length, 9, 'nothing is asked of an idle engine')
  stop()
  assert.equal(share.count(), 0)
})

test('a trainer with its share takes nothing from the engine; one that wants no CPU is not slowed', async (context) => {
  const { yields, slowdowns, pass } = watchTwoCores(context)
  // 400 ms a second are 20 % of two cores.
  await pass(1600, [400, 100], 8)
  assert.deepEqual([yields, slowdowns], [[], []])
  // It waits for the disk.
  await pass(1990, [1, 9], 8)
  assert.deepEqual(slowdowns, [])
})

test('other programs are told apart from the engine, which does not yield for them', async (context) => {
  const { yields, slowdowns, pass } = watchTwoCores(context)
  await pass(100, [100, 1900], 8)
  assert.deepEqual([yields, slowdowns], [[], [{ by: 'other_work', cpu_share: 0.05 }]])
})

test('the throttle yields the requested share between steps, for the requested time only', async () => {
  let at_ms = 0
  const throttle = createCpuThrottle(
    () => at_ms,
    async (ms) => {
      at_ms += ms
    },
  )
  /** The share of time that it was idle while it computed in steps of 10 ms for `for_ms`. */
  async function idleShare(for_ms: number): Promise<number> {
    const began = at_ms
    let computed_ms = 0
    while (at_ms - began < for_ms) {
      at_ms += 10
      computed_ms += 10
      throttle.recordCompute(10)
      await throttle.pauseIfDue()
    }
    return 1 - computed_ms / (at_ms - began)
  }
  assert.equal(await idleShare(1000), 0, 'no request')
  throttle.yieldShare(0.2, 60_000)
  const idle_share = await idleShare(30_000)
  assert.ok(Math.abs(idle_share - 0.2) < 0.01, `it yielded ${idle_share}`)
  await idleShare(30_000)
  assert.equal(await idleShare(1000), 0, 'the request has expired')
})
