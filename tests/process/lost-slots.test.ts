// An account's concurrency slots are freed within 30 s, whichever process is killed.
import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, test } from 'node:test'
import { allowed } from '../support/allowed-time.ts'
import { client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { children, dataFolder, type RunningServer } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { endless, tiny } from '../support/tiny.ts'

const folder = dataFolder('slots', { TUNERY_DEFAULT_TIER: 'two', TUNERY_CHECKPOINT_SECONDS: '1' })
const plans = path.join(folder.dataDir, 'plans.json')
folder.env.TUNERY_PLANS_FILE = plans
writeFileSync(
  plans,
  JSON.stringify({
    tiers: [{ id: 'two', name: 'two', requests_per_minute: null, requests_per_day: null, max_concurrent: 2 }],
  }),
)
after(() => folder.remove())

const messages = [{ role: 'user', content: 'Tell me more.' }]
const long = { model: tiny, messages, stream: true, max_tokens: 2000, ...endless }
const within_ms = 30_000

test('slots are freed within 30 s of a SIGKILL of the engine, and of the server', full, async () => {
  let server = await folder.start()
  const key = folder.key()
  const ask = () => client(server.url, key).api('POST', '/chat/completions', { model: tiny, messages, max_tokens: 1 })
  const begin = async (at: RunningServer) => {
    const one = stream(`${at.url}/chat/completions`, key, long)
    await one.untilBytes(300)
    return one
  }
  const both = [await begin(server), await begin(server)]
  assert.equal((await ask()).status, 429)

  let killed = performance.now()
  for (const pid of children(server.pid, 'engine/main.ts')) process.kill(pid, 'SIGKILL')
  for (const stream of both)
    assert.equal((await stream.result).done, false, 'a stream whose engine died does not end with [DONE]')
  const again = await Promise.all([ask(), ask()])
  assert.deepEqual(
    again.map(({ status }) => status),
    [200, 200],
  )
  assert.ok(performance.now() - killed < allowed(within_ms))

  const mine = client(server.url, key)
  const dataset = (await mine.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const job = (await mine.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await mine.untilEvent(job.id, (event) => event.type === 'checkpoint')
  const broken = await begin(server)
  assert.equal((await ask()).status, 429, 'a running job takes a slot')

  killed = performance.now()
  await server.end('SIGKILL')
  await broken.result
  server = await folder.start()
  await client(server.url, key).api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
  await until('both slots', async () => (await Promise.all([ask(), ask()])).every(({ status }) => status === 200))
  assert.ok(performance.now() - killed < allowed(within_ms))
  assert.equal(await server.end('SIGTERM'), 0)
})
