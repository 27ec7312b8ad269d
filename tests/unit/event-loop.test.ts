// What holds the event loop is measured and named.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import pino from 'pino'
import { requestComes, watchEventLoop } from '../../server/platform/telemetry/event-loop.ts'
import { createServerMetrics } from '../../server/platform/telemetry/metrics.ts'
import { until } from '../support/client.ts'

function holdTheLoop(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

test('a blocked event loop is reported with its time, the function that held it, and the last request', async () => {
  const lines: Record<string, unknown>[] = []
  const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) })
  const metrics = createServerMetrics()
  watchEventLoop({ metrics, log })
  requestComes('POST /v1/evaluations')
  // The thread has to be up, and its look may come just after the work when other processes hold the cores.
  const named = () => lines.find(({ stack }) => /^holdTheLoop /.test((stack as string[] | undefined)?.[0] ?? ''))
  for (let count = 0; !named() && count < 20; count++) {
    await new Promise((resolve) => setTimeout(resolve, 250))
    holdTheLoop(1500)
    await new Promise((resolve) => setTimeout(resolve, 250))
  }
  const line = await until('its line', named)
  assert.equal(line.where, 'tests/unit/event-loop.test.ts')
  assert.ok(Number(line.blocked_ms) > 1000, JSON.stringify(line))
  assert.match((line.stack as string[])[0]!, /^holdTheLoop tests\/unit\/event-loop\.test\.ts:\d+$/)
  assert.equal(line.route, 'POST /v1/evaluations')
  assert.match(await metrics.text(), /tunery_event_loop_blocked_seconds_sum\{where="tests[^}]*\} [1-9]/)
})

test('without work nothing beats; the next request is watched again, and long work is seen anyway', async () => {
  const lines: Record<string, unknown>[] = []
  const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) })
  const watch = watchEventLoop({ metrics: createServerMetrics(), log, calm_beats: 3 })
  assert.ok(watch.isAwake())
  await until('it to sleep', () => !watch.isAwake())
  requestComes('GET /v1/models')
  assert.ok(watch.isAwake())
  await until('it to sleep again', () => !watch.isAwake())
  const told = () => lines.find(({ blocked_ms }) => Number(blocked_ms) > 300)
  // Nobody asked for it: what lies over a look is longer than it should be.
  for (let count = 0; !told() && count < 20; count++) {
    holdTheLoop(700)
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
  assert.ok(told(), JSON.stringify(lines))
})
