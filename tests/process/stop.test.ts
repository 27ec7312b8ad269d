// A stopping service is not ready any more, and finishes what it has begun.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { freePort } from '../../bench/support/free-port.ts'
import { client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { children, dataFolder, ended } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { endless, tiny } from '../support/tiny.ts'

const folder = dataFolder('stop', { TUNERY_CHECKPOINT_SECONDS: '1' })
after(() => folder.remove())

test('a SIGTERM in the moment in which the service becomes ready stops it as one later does', async () => {
  const fresh = dataFolder('stop-early', { TUNERY_PORT: String(await freePort()) })
  after(() => fresh.remove())
  const started = fresh.start()
  started.catch(() => {})
  const ready = `http://127.0.0.1:${fresh.env.TUNERY_PORT}/health/live`
  await until('an answer', () =>
    fetch(ready).then(
      () => true,
      () => false,
    ),
  )
  const [pid] = children(process.pid, 'server/main.ts')
  process.kill(pid!, 'SIGTERM')
  // It may end before its start is seen.
  const status = await started.then(
    async (server) => {
      await ended(server.process)
      return String(server.process.exitCode)
    },
    (error: Error) => /status (.*)$/.exec(error.message)?.[1],
  )
  assert.equal(status, '0')
})

test('stop with 50 live streams and a job: not ready in 1 s, streams complete, the job is saved', full, async () => {
  const server = await folder.start()
  const key = folder.key()
  const mine = client(server.url, key)
  const dataset = (await mine.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const job = (await mine.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await mine.untilEvent(job.id, (event) => event.type === 'checkpoint')
  const max_tokens = 150
  const body = {
    model: tiny,
    messages: [{ role: 'user', content: 'Tell me more.' }],
    stream: true,
    max_tokens,
    ...endless,
  }
  const streams = Array.from({ length: 50 }, () => stream(`${server.url}/chat/completions`, key, body))
  await Promise.all(streams.map((stream) => stream.untilBytes(300)))

  const stopAt = performance.now()
  const status = server.end('SIGTERM')
  const ready = new URL('/health/ready', server.url)
  // A refused connection counts as not ready, like 503.
  while (
    await fetch(ready).then(
      ({ ok }) => ok,
      () => false,
    )
  );
  const notReady_ms = performance.now() - stopAt
  const whole = await Promise.all(streams.map((stream) => stream.result))
  const last_ms = performance.now() - stopAt
  assert.equal(await status, 0)
  assert.ok(notReady_ms < 1000, `not ready after ${Math.round(notReady_ms)} ms`)
  for (const { done, events } of whole) {
    assert.ok(done, 'each stream ends with [DONE]')
    assert.equal(events.findLast(({ choices }) => choices[0]?.finish_reason)?.choices[0].finish_reason, 'length')
  }
  assert.ok(last_ms < 20_000, `the last stream ended after ${Math.round(last_ms)} ms`)

  const second = await folder.start()
  const again = client(second.url, key)
  const resumed = await again.untilEvent(job.id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(resumed.data!.resumed_from_step) > 0)
  const { total } = (await again.api('GET', '/usage')).body
  assert.deepEqual([total.requests, total.completion_tokens], [50, 50 * max_tokens], 'all of it is metered')
  await again.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
  assert.equal(await second.end('SIGTERM'), 0)
})
