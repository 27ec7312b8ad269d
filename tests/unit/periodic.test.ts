import assert from 'node:assert/strict'
import { mock, test } from 'node:test'
import { runPeriodically } from '../../lib/periodic.ts'

test('a periodic task skips runs while one is not done, and waits for it at its end', async () => {
  mock.timers.enable({ apis: ['setInterval'] })
  try {
    let started = 0
    let finish = () => {}
    const work = () => {
      started++
      return new Promise<void>((resolve) => {
        finish = resolve
      })
    }
    const task = runPeriodically(100, work)
    assert.equal(started, 1, 'at once')
    mock.timers.tick(300)
    assert.equal(started, 1, 'the first run is not done')
    finish()
    await new Promise(setImmediate)
    mock.timers.tick(100)
    assert.equal(started, 2)
    let closed = false
    const closing = task.close().then(() => {
      closed = true
    })
    await new Promise(setImmediate)
    assert.ok(!closed)
    finish()
    await closing
    mock.timers.tick(300)
    assert.equal(started, 2, 'closed')

    const delayed = runPeriodically(100, work, { delayed: true })
    assert.equal(started, 2)
    mock.timers.tick(100)
    assert.equal(started, 3)
    finish()
    await delayed.close()
  } finally {
    mock.timers.reset()
  }
})
