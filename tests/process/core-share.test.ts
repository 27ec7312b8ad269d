// The kernel's figures of a trainer that lacks CPU time.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import path from 'node:path'
import { after, test } from 'node:test'
import pino from 'pino'
import { root } from '../../lib/root.ts'
import { allowedCores } from '../../lib/usable-cores.ts'
import { createCoreShare, type Slowdown } from '../../server/features/jobs/core-share.ts'
import { until } from '../support/client.ts'

/** Starts a process that keeps one core busy, the same for all. */
function busy(priority: number) {
  const code = `if True:
    import os
    os.sched_setaffinity(0, {${allowedCores()[0]}})
    os.nice(${priority})
    while True:
        pass`
  const python = path.join(root, '.local/python/bin/python')
  const child = spawn(python, ['-c', code], { stdio: 'ignore' })
  after(() => child.kill('SIGKILL'))
  return child
}

test('a trainer that shares a core with a program of higher priority is reported as slowed', async () => {
  busy(0)
  const training = busy(19)
  const slowdowns: Slowdown[] = []
  const log = pino({ level: 'silent' })
  const share = createCoreShare({
    share: 0.2,
    cores: 1,
    enginePid: () => undefined,
    yieldCores: async () => assert.fail('no engine runs'),
    log,
    tick_ms: 100,
  })
  after(share.watch(training.pid!, (slowdown) => slowdowns.push(slowdown)))
  await until('the slowdown to be reported', () => slowdowns.length > 0)
  assert.equal(slowdowns[0]!.by, 'other_work')
  assert.ok(slowdowns[0]!.cpu_share < 0.6)
  training.kill('SIGKILL')
  await until('it to want no CPU time any more', () => slowdowns.at(-1) === null)
})
