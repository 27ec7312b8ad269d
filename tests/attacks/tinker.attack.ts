// Clients of Tinker's API that take the trainer, the engine or the memory from others.
import assert from 'node:assert/strict'
import { existsSync, mkdirSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { appOfTests } from '../support/service.ts'
import { floats, textDatum, tinkerClient, trainingMessage } from '../support/tinker-client.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
const mine = () => tinkerClient(app.address, app.key)
const theirs = () => tinkerClient(app.address, app.otherKey)
const text = [5, 60, 61, 62, 63, 64, 65, 66, 2]

test('numbers that become infinite fail the request of their run, and others keep theirs', async () => {
  const [client, victim] = [mine(), theirs()]
  const data = [textDatum(text)]
  const other = await victim.run(tiny, await victim.session())
  await victim.train(other, 1, data)
  const { grad_norm } = await victim.step(other, 2)
  assert.ok(grad_norm > 0)
  await victim.train(other, 3, data)
  const model_id = await client.run(tiny, await client.session())
  const failing = async (seq: number, body: typeof data, options = {}) => {
    const { request_id } = await client.post('/forward_backward', trainingMessage(model_id, seq, body, options))
    const { error, category } = (await client.result(request_id)).json
    assert.match(error, /no finite number/)
    assert.equal(category, 'user')
  }
  const { tokens, inputs } = textDatum(text)
  const all = (value: number) => floats(tokens.map(() => value))
  await client.train(model_id, 1, data)
  await failing(2, [{ tokens, inputs: { ...inputs, weights: all(3e38) } }])
  const step = await client.post('/optim_step', { model_id, seq_id: 3, adam_params: {} })
  assert.match((await client.result(step.request_id)).json.error, /no gradients/)
  const { weights: _, ...targets } = inputs
  const sampled = { ...targets, logprobs: all(-1e30), advantages: all(1) }
  await failing(4, [{ tokens, inputs: sampled }], { loss_fn: 'importance_sampling' })
  await client.train(model_id, 5, data)
  await client.step(model_id, 6, 1e30)
  await failing(7, data)
  await failing(8, data, { forward_only: true })
  await victim.step(other, 4)
  assert.equal((await victim.send('GET', `/training_runs/${other}`)).json.corrupted, false)
})

test('one account’s many long samples let another sample at once', async () => {
  const [client, other] = [mine(), theirs()]
  const prompt = { chunks: [{ tokens: [5] }] }
  const long = { base_model: tiny, num_samples: 128, prompt, sampling_params: { max_tokens: 1_000_000, stop: [] } }
  const requests = await Promise.all(Array.from({ length: 4 }, () => client.post('/asample', long)))
  const waiting = requests.map(({ request_id }) => client.result(request_id))
  const short = other.sample({ base_model: tiny, prompt: [5, 60], sampling_params: { max_tokens: 2 } })
  const first = await Promise.race([short, ...waiting])
  assert.ok('sequences' in first, 'the short one is answered first')
  for (const { request_id } of requests) await client.post('/cancel_future', { request_id })
  for (const { json } of await Promise.all(waiting)) assert.match(json.error, /cancelled/)
})

test('a session that ends while its requests are at work leaves no files and no run in memory', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  await client.train(model_id, 1, [textDatum(text)])
  const saves = await Promise.all(
    [2, 3, 4, 5].map((seq_id) =>
      client.post('/save_weights_for_sampler', { model_id, seq_id, sampling_session_seq_id: seq_id }),
    ),
  )
  const missing = await client.post('/save_weights', { model_id, seq_id: 9, path: 'never' })
  await client.post(`/sessions/${session_id}/finish`, { reason: { type: 'success' } })
  for (const { request_id } of [...saves, missing]) await client.result(request_id)
  assert.match((await client.result(missing.request_id)).json.error, /session has ended/)
  const row = await app.db
    .selectFrom('tinker_runs')
    .select('state')
    .where('id', '=', model_id)
    .executeTakeFirstOrThrow()
  assert.equal(row.state, 'ended')
  assert.equal(existsSync(path.join(app.dataDir, 'tinker', session_id)), false)
})

test('the files of a session that ended as the server was killed are removed after its start', async () => {
  const client = mine()
  const session_id = await client.session()
  const folder = path.join(app.dataDir, 'tinker', session_id)
  mkdirSync(folder, { recursive: true })
  // What a kill between the two leaves.
  const ended = { ended_at: Date.now(), end_reason: 'success' as const }
  await app.db.updateTable('tinker_sessions').set(ended).where('id', '=', session_id).execute()
  while (existsSync(folder)) await sleep(100)
})

test('states and weights without a name count as what the account stores, until their session ends', async () => {
  const client = mine()
  const stored = async () => {
    const { items } = (await app.api('GET', '/usage/storage')).body
    return items.find(({ kind }: { kind: string }) => kind === 'checkpoints').bytes as number
  }
  const before = await stored()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  await client.done('/save_weights_for_sampler', { model_id, seq_id: 1, sampling_session_seq_id: 0 })
  assert.ok((await stored()) > before)
  await client.post(`/sessions/${session_id}/finish`, { reason: { type: 'success' } })
  assert.equal(await stored(), before)
})

test('what was computed of a cancelled sample is metered', async () => {
  const client = mine()
  const session_id = await client.session()
  const body = { session_id, sampling_session_seq_id: 0, base_model: tiny }
  const { sampling_session_id } = await client.post('/create_sampling_session', body)
  const prompt = { chunks: [{ tokens: [5, 60] }] }
  const sampling_params = { max_tokens: 1_000_000, stop: [] }
  const { request_id } = await client.post('/asample', { sampling_session_id, seq_id: 1, prompt, sampling_params })
  await sleep(500)
  await client.post('/cancel_future', { request_id })
  assert.match((await client.result(request_id)).json.error, /cancelled/)
  const row = () => app.db.selectFrom('usage').selectAll().where('request_id', '=', request_id).executeTakeFirst()
  let found = await row()
  for (; !found; found = await row()) await sleep(50)
  assert.equal(found.finish, 'client_left')
  assert.ok(found.completion_tokens > 0)
})

test('what waits and runs of a key ends within seconds of it', async () => {
  const { id, key } = (await app.api('POST', '/keys', { name: 'soon revoked' })).body
  const client = tinkerClient(app.address, key)
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  const prompt = { chunks: [{ tokens: [5] }] }
  const long = { base_model: tiny, num_samples: 128, prompt, sampling_params: { max_tokens: 1_000_000, stop: [] } }
  const taken = [
    await client.post('/asample', long),
    await client.post('/asample', long),
    await client.post('/save_weights', { model_id, seq_id: 7, path: 'never' }),
  ]
  await app.api('DELETE', `/keys/${id}`)
  const from = Date.now()
  for (const { request_id } of taken) assert.match((await mine().result(request_id)).json.error, /revoked/)
  assert.ok(Date.now() - from < 5000, `it took ${Date.now() - from} ms`)
})
