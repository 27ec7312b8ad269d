// A place of what an account may have under way comes back within 30 s, whichever process is killed.
import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { children, dataFolder, type RunningServer } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { endless, tiny } from '../support/tiny.ts'

const folder = dataFolder('places', { TUNERY_DEFAULT_TIER: 'two', TUNERY_CHECKPOINT_SECONDS: '1' })
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

test('both places are free again within 30 s of a SIGKILL, of the engine with two streams and of the server with a stream and a job', async () => {
  let server = await folder.start()
  const key = folder.key()
  const ask = () => client(server.url, key).api('POST', '/chat/completions', { model: tiny, messages, max_tokens: 1 })
  const begin = async (at: RunningServer) => {
    const one = stream(`${at.url}/chat/completions`, key, long)
    await one.until(300)
    return one
  }
  const both = [await begin(server), await begin(server)]
  assert.equal((await ask()).status, 429)

  let killed = performance.now()
  for (const pid of children(server.pid, 'engine/main.ts')) process.kill(pid, 'SIGKILL')
  for (const each of both)
    assert.equal((await each.whole).done, false, 'a stream whose engine died is not told to be whole')
  const again = await Promise.all([ask(), ask()])
  assert.deepEqual(
    again.map(({ status }) => status),
    [200, 200],
  )
  assert.ok(performance.now() - killed < within_ms)

  const mine = client(server.url, key)
  const dataset = (await mine.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const job = (await mine.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await mine.untilEvent(job.id, (event) => event.type === 'checkpoint')
  const broken = await begin(server)
  assert.equal((await ask()).status, 429, 'a running job takes a place')

  killed = performance.now()
  await server.end('SIGKILL')
  await broken.whole
  server = await folder.start()
  await client(server.url, key).api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
  await until('both places', async () => (await Promise.all([ask(), ask()])).every(({ status }) => status === 200))
  assert.ok(performance.now() - killed < within_ms)
  assert.equal(await server.end('SIGTERM'), 0)
})
