// Tinker's API with a real trainer and engine on the tiny base: training, sampling, checkpoints, and what goes wrong.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { appOfTests } from '../support/service.ts'
import { floats, ints, textDatum, tinkerClient, trainingMessage } from '../support/tinker-client.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_TINKER_IDLE_SECONDS: '5' })
const mine = () => tinkerClient(app.address, app.key)
const theirs = () => tinkerClient(app.address, app.otherKey)

const text = [5, 60, 61, 62, 63, 64, 65, 66, 2]
const close = (one: number[], other: number[], tolerance: number) =>
  one.forEach((value, at) => {
    assert.ok(Math.abs(value - other[at]!) < tolerance, `${at}: ${value} and ${other[at]}`)
  })

test('a run learns, and what is sampled from its weights has the trainer’s probabilities', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  assert.equal(model_id, `${session_id}:train:0`)
  const data = [textDatum(text)]
  let seq = 1
  const losses: number[] = []
  for (let step = 0; step < 12; step++) {
    const { metrics, logprobs } = await client.train(model_id, seq++, data)
    assert.equal(logprobs[0]!.length, text.length - 1)
    close([metrics['loss:sum']!], [-logprobs[0]!.reduce((sum, value) => sum + value)], 1e-2)
    losses.push(metrics['loss:sum']!)
    await client.step(model_id, seq++, 0.005)
  }
  assert.ok(losses.at(-1)! < losses[0]! - 2, losses.join(' '))
  const saved = await client.done('/save_weights_for_sampler', { model_id, seq_id: seq++, sampling_session_seq_id: 0 })
  const { sampling_session_id } = saved.json
  const prompt = text.slice(0, 3)
  // Its own end of an answer ends nothing: all tokens that are asked for come.
  const free = { max_tokens: 6, temperature: 0, stop: [] }
  const sample = (seq_id: number, fields: object) => client.sample({ sampling_session_id, seq_id, prompt, ...fields })
  const [answer] = (await sample(1, { sampling_params: free, topk_sample_logprobs: 2 })).sequences
  assert.equal(answer!.stop, false)
  assert.deepEqual([answer!.tokens.length, answer!.logprobs.length, answer!.hasTop], [6, 6, true])
  const whole = [...prompt, ...answer!.tokens]
  const { logprobs } = await client.train(model_id, seq++, [textDatum(whole)], { forward_only: true })
  close(answer!.logprobs, logprobs[0]!.slice(prompt.length - 1), 0.1)
  const scored = await sample(2, {
    prompt: whole,
    num_samples: 2,
    sampling_params: { max_tokens: 1 },
    prompt_logprobs: true,
    topk_prompt_logprobs: 3,
  })
  assert.equal(scored.sequences.length, 2)
  assert.ok(Number.isNaN(scored.prompt_logprobs![0]))
  close(scored.prompt_logprobs!.slice(1), logprobs[0]!, 0.1)
  const last = await sample(3, {
    prompt: whole,
    sampling_params: { max_tokens: 1 },
    prompt_logprobs: true,
    prompt_logprobs_last_n: 2,
  })
  assert.deepEqual(
    last.prompt_logprobs!.map((value) => Number.isNaN(value)),
    whole.map((_, at) => at < whole.length - 2),
  )
  // A token that ends an answer is one of its tokens.
  const end = answer!.tokens[2]!
  const [stopped] = (await sample(4, { sampling_params: { ...free, stop: [end] } })).sequences
  assert.deepEqual([stopped!.tokens, stopped!.stop], [answer!.tokens.slice(0, answer!.tokens.indexOf(end) + 1), true])
  // Other weights have other probabilities.
  const base = await client.sample({ base_model: tiny, prompt: whole, sampling_params: free, prompt_logprobs: true })
  assert.ok(base.prompt_logprobs!.slice(1).some((value, at) => Math.abs(value - logprobs[0]![at]!) > 0.2))
  await client.post(`/sessions/${session_id}/finish`, { reason: { type: 'success' } })
  const ended = await client.send('POST', '/session_heartbeat', { session_id })
  assert.equal(ended.status, 400)
})

test('a request that is sent twice is computed once, and requests are worked on in their order', async () => {
  const client = mine()
  const model_id = await client.run(tiny, await client.session())
  const data = [textDatum(text)]
  // The step comes first, and the gradients twice at once.
  const step = await client.post('/optim_step', { model_id, seq_id: 2, adam_params: { learning_rate: 0.01 } })
  const message = trainingMessage(model_id, 1, data)
  const [one, other] = await Promise.all([
    client.post('/forward_backward', message),
    client.post('/forward_backward', message),
  ])
  assert.equal(one.request_id, other.request_id)
  const first = await client.result(one.request_id)
  const { grad_norm } = (await client.result(step.request_id)).json.metrics
  const again = await client.post('/forward_backward', message)
  assert.deepEqual((await client.result(again.request_id)).bytes, first.bytes)
  // The same gradients in another run have the same norm: they were not added twice.
  const twin = await client.run(tiny, await client.session())
  await client.train(twin, 1, data)
  close([grad_norm], [(await client.step(twin, 2)).grad_norm], 1e-4)
})

test('a state goes on exactly in another run, and through the disk when its client pauses', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  const data = [textDatum(text, 3)]
  await client.train(model_id, 1, data)
  await client.step(model_id, 2)
  const { path: saved } = (await client.done('/save_weights', { model_id, seq_id: 3, path: 'first' })).json
  assert.equal(saved, `tinker://${model_id}/weights/first`)
  const taken = await client.post('/save_weights', { model_id, seq_id: 4, path: 'first' })
  assert.match((await client.result(taken.request_id)).json.error, /already/)
  const resumed = `${session_id}:train:1`
  await client.done('/load_weights', { session_id, model_seq_id: 1, path: saved, optimizer: true })
  const twice = [model_id, resumed].map(async (id, at) => {
    const seq = at === 0 ? 5 : 1
    await client.train(id, seq, data)
    await client.step(id, seq + 1)
    return client.train(id, seq + 2, data, { forward_only: true })
  })
  const [original, copy] = await Promise.all(twice)
  assert.deepEqual(copy!.logprobs, original!.logprobs)
  // Without the optimizer's moments another step follows.
  await client.done('/load_weights', { session_id, model_seq_id: 2, path: saved, optimizer: false })
  const fresh = `${session_id}:train:2`
  await client.train(fresh, 1, data)
  await client.step(fresh, 2)
  assert.notDeepEqual((await client.train(fresh, 3, data, { forward_only: true })).logprobs, original!.logprobs)
  const states = async () =>
    app.db.selectFrom('tinker_runs').select('state').where('session_id', '=', session_id).execute()
  while ((await states()).some(({ state }) => state !== 'saved')) await sleep(200)
  assert.deepEqual((await client.train(model_id, 8, data, { forward_only: true })).logprobs, original!.logprobs)
})

test('more runs than a trainer has in memory go on through the disk', async () => {
  const client = mine()
  const session_id = await client.session()
  const data = [textDatum(text)]
  const learned: number[][] = []
  for (let run = 0; run < 10; run++) {
    const model_id = await client.run(tiny, session_id, run)
    await client.train(model_id, 1, data)
    await client.step(model_id, 2, 0.001 * (run + 1))
    learned.push((await client.train(model_id, 3, data, { forward_only: true })).logprobs[0]!)
  }
  for (let run = 0; run < 10; run++) {
    const { logprobs } = await client.train(`${session_id}:train:${run}`, 4, data, { forward_only: true })
    assert.deepEqual(logprobs[0], learned[run])
  }
})

test('weights with a name are a tuned model, with lineage, and their checkpoints are the account’s own', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  await client.train(model_id, 1, [textDatum(text)])
  await client.step(model_id, 2)
  const { path: saved } = (await client.done('/save_weights_for_sampler', { model_id, seq_id: 3, path: 'v1' })).json
  const { checkpoints } = (await client.send('GET', '/checkpoints')).json
  const own = checkpoints.find((one: { tinker_path: string }) => one.tinker_path === saved)
  assert.equal(own.checkpoint_type, 'sampler')
  assert.ok(own.size_bytes > 0)
  const model = (await app.api('GET', `/fine-tuning/models/${own.model_id}`)).body
  assert.deepEqual([model.name, model.base_model_id, model.metadata.tinker_path], ['v1', tiny, saved])
  const messages = [{ role: 'user', content: 'hi' }]
  const chat = await app.api('POST', '/chat/completions', { model: own.model_id, messages, max_tokens: 2 })
  assert.equal(chat.status, 200, JSON.stringify(chat.body))
  const deployed = await app.api('POST', '/deployments/', { name: 'from-tinker', model: own.model_id })
  assert.equal(deployed.status, 201, JSON.stringify(deployed.body))
  const info = (await client.post('/weights_info', { tinker_path: saved })) as { lora_rank: number }
  assert.equal(info.lora_rank, 4)
  const at = `/training_runs/${model_id}/checkpoints/sampler_weights/v1`

  // Nothing of another account is there until it is published.
  const other = theirs()
  const prompt = { prompt: [5, 60], sampling_params: { max_tokens: 2 }, model_path: saved }
  const chunks = { prompt: { chunks: [{ tokens: [5, 60] }] }, sampling_params: { max_tokens: 2 }, model_path: saved }
  for (const [method, where, body] of [
    ['POST', '/weights_info', { tinker_path: saved }],
    ['POST', '/asample', chunks],
    ['GET', `/training_runs/${model_id}`, undefined],
    ['GET', `/training_runs/${model_id}/checkpoints`, undefined],
    ['GET', `/sessions/${session_id}`, undefined],
    ['POST', '/session_heartbeat', { session_id }],
    ['POST', '/get_info', { model_id }],
    ['POST', '/optim_step', { model_id, seq_id: 4, adam_params: {} }],
    ['POST', '/forward_backward', trainingMessage(model_id, 4, [textDatum(text)])],
    ['POST', '/retrieve_future', { request_id: `${model_id}:1` }],
    ['DELETE', at, undefined],
    ['POST', `${at}/publish`, {}],
    ['PUT', `${at}/ttl`, { ttl_seconds: 3600 }],
  ] as const)
    assert.equal((await other.send(method, where, body)).status, 404, `${method} ${where}`)
  assert.equal((await client.send('POST', `${at}/publish`, {})).status, 200)
  assert.equal((await other.sample(prompt)).sequences[0]!.logprobs.length, 2)
  assert.equal((await other.send('DELETE', at)).status, 404)

  // A deployment needs it.
  assert.equal((await client.send('DELETE', at)).json.error.code, 'in_use')
  await app.api('DELETE', '/deployments/from-tinker')
  assert.equal((await client.send('DELETE', at)).status, 200)
  assert.equal((await app.api('GET', `/fine-tuning/models/${own.model_id}`)).status, 404)
  assert.equal((await client.send('POST', '/weights_info', { tinker_path: saved })).status, 404)
})

test('weights in Hugging Face’s form are fetched by links that are good for one file', async () => {
  const client = mine()
  const model_id = await client.run(tiny, await client.session())
  await client.done('/save_weights_external', { model_id, seq_id: 1, path: 'peft' })
  const where = `/training_runs/${model_id}/checkpoints/external_weights/peft/external_weights_urls`
  const { urls } = (await client.send('GET', where)).json as { urls: Record<string, string> }
  assert.deepEqual(Object.keys(urls), ['adapter_config.json', 'adapter_model.safetensors'])
  const config = await (await fetch(urls['adapter_config.json']!)).json()
  assert.deepEqual([config.r, config.lora_alpha], [4, 32])
  for (const wrong of [
    urls['adapter_config.json']!.replace('adapter_config.json', 'adapter_model.safetensors'),
    urls['adapter_config.json']!.replace(/[0-9]{13}/, '9999999999999'),
    urls['adapter_config.json']!.replace('adapter_config.json', '..%2Fadapter_config.json'),
  ])
    assert.equal((await fetch(wrong)).status, 404, wrong)
})

test('policy losses take what a sampler tells, and have the log-probabilities of all positions', async () => {
  const client = mine()
  const model_id = await client.run(tiny, await client.session())
  const { logprobs } = await client.train(model_id, 1, [textDatum(text)], { forward_only: true })
  const tokens = text.slice(0, -1)
  // As the cookbook sends them: other targets where nothing is learned.
  const padded = [0, 0, ...text.slice(3)]
  const advantages = tokens.map((_, at) => (at < 2 ? 0 : 1))
  const old = logprobs[0]!.map((value, at) => (at < 2 ? 0 : value))
  const inputs = { target_tokens: ints(padded), logprobs: floats(old), advantages: floats(advantages) }
  let seq = 2
  for (const [loss_fn, config] of [
    ['importance_sampling', {}],
    ['ppo', { clip_low_threshold: 0.8, clip_high_threshold: 1.28 }],
    ['cispo', {}],
    ['gspo', {}],
  ] as const) {
    const masked = loss_fn === 'gspo' ? { ...inputs, sequence_ratio_mask: floats(advantages) } : inputs
    const { metrics, logprobs: found } = await client.train(model_id, seq++, [{ tokens, inputs: masked }], {
      loss_fn,
      config,
    })
    close(found[0]!.slice(2), logprobs[0]!.slice(2), 1e-4)
    // The ratios are 1.
    if (loss_fn === 'cispo') close([metrics['loss:sum']!], [-old.reduce((sum, value) => sum + value)], 1e-2)
    else close([metrics['loss:sum']!], [-(tokens.length - 2)], 1e-2)
    const { grad_norm } = await client.step(model_id, seq++, 0)
    assert.ok(grad_norm > 0)
  }
})

test('what cannot be computed is refused with a sentence, and the run goes on', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  const good = textDatum(text)
  const at = (inputs: object) => [{ tokens: good.tokens, inputs: { ...good.inputs, ...inputs } }]
  const refused = async (body: Buffer, expected: RegExp, status = 400) => {
    const answer = await client.send('POST', '/forward_backward', body)
    assert.equal(answer.status, status, JSON.stringify(answer.json))
    assert.match(answer.json.error.message, expected)
  }
  const message = (data: Parameters<typeof trainingMessage>[2], options = {}) =>
    trainingMessage(model_id, 1, data, options)
  await refused(Buffer.from('{"no": "message"}'), /Protocol Buffer/)
  await refused(Buffer.from([0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]), /cut off/)
  await refused(message([]), /no data/)
  await refused(message([{ tokens: [], inputs: good.inputs }]), /no tokens/)
  await refused(message([{ tokens: good.tokens, inputs: {} }]), /target_tokens is missing/)
  await refused(message(at({ weights: floats([1]) })), /one is needed for each/)
  await refused(message(at({ weights: floats(good.tokens.map(() => Number.NaN)) })), /not a finite number/)
  await refused(message(at({ weights: ints(good.tokens.map(() => 1)) })), /tensor of float32/)
  await refused(message(at({ target_tokens: { ...ints(good.tokens), shape: [2, 4] } })), /one number for each/)
  await refused(message(at({ target_tokens: { ...ints(good.tokens), shape: [7] } })), /its shape is \[7\]/)
  await refused(message(at({ advantages: floats(good.tokens) })), /does not read/)
  await refused(message([good], { loss_fn: 'toString' }), /no loss/)
  await refused(message([good], { config: { clip: 1 } }), /no setting 'clip'/)
  await refused(message(Array.from({ length: 1025 }, () => good)), /1024 at most/)
  // What only the trainer knows fails the request, and takes its number.
  const failing = async (seq: number, data: Parameters<typeof trainingMessage>[2]) =>
    (await client.result((await client.post('/forward_backward', trainingMessage(model_id, seq, data))).request_id))
      .json
  const outside = await failing(1, at({ target_tokens: ints(good.tokens.map(() => 9_999_999)) }))
  assert.match(outside.error, /tokens of the vocabulary/)
  assert.equal(outside.category, 'user')
  const long = Array.from({ length: 5000 }, () => 60)
  assert.match((await failing(2, [textDatum(long)])).error, /whole numbers/)
  const early = await client.post('/optim_step', { model_id, seq_id: 3, adam_params: {} })
  assert.match((await client.result(early.request_id)).json.error, /no gradients/)
  await client.train(model_id, 4, [good])
  await client.step(model_id, 5)
  const gone = await client.send('POST', '/optim_step', { model_id, seq_id: 5, adam_params: { learning_rate: -1 } })
  assert.equal(gone.status, 400)

  const sample = async (fields: object) => {
    const body = {
      base_model: tiny,
      prompt: { chunks: [{ tokens: [5] }] },
      sampling_params: { max_tokens: 1 },
      ...fields,
    }
    return await client.send('POST', '/asample', body)
  }
  assert.equal((await sample({ prompt: { chunks: [] } })).status, 400)
  assert.equal((await sample({ base_model: 'nobody/nothing' })).status, 404)
  assert.equal((await sample({ prompt: { chunks: [{ type: 'image', data: 'AA' }] } })).status, 400)
  assert.equal((await sample({ sampling_params: { max_tokens: 1, temperature: 'hot' } })).status, 400)
  const unknown = await client.result((await sample({ prompt: { chunks: [{ tokens: [9_999_999] }] } })).json.request_id)
  assert.match(unknown.json.error, /vocabulary/)
  for (const path of ['tinker://../../etc/weights/passwd', 'weights', 'tinker://a/weights/b/c'])
    assert.ok([400, 404].includes((await client.send('POST', '/weights_info', { tinker_path: path })).status), path)
  const named = await client.post('/save_weights', { model_id, seq_id: 6, path: '../../evil' })
  assert.match((await client.result(named.request_id)).json.error, /cannot be the name/)
})

test('a trainer that is killed fails its requests, and its runs go on from checkpoints', async () => {
  const client = mine()
  const session_id = await client.session()
  const model_id = await client.run(tiny, session_id)
  const data = [textDatum(text)]
  await client.train(model_id, 1, data)
  await client.step(model_id, 2)
  const { path: saved } = (await client.done('/save_weights', { model_id, seq_id: 3, path: 'safe' })).json
  const before = await client.train(model_id, 4, data, { forward_only: true })
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && isTrainer(name))
  assert.ok(pids.length > 0)
  const pending = await client.post('/forward_backward', trainingMessage(model_id, 5, data))
  for (const pid of pids) process.kill(Number(pid), 'SIGKILL')
  const failed = (await client.result(pending.request_id)).json
  // It may have been computed before the signal.
  if (failed) assert.match(failed.error, /checkpoint|SIGKILL/)
  const later = await client.post('/forward_backward', trainingMessage(model_id, 6, data))
  assert.match((await client.result(later.request_id)).json.error, /resume from your last checkpoint/)
  assert.equal((await client.send('GET', `/training_runs/${model_id}`)).json.corrupted, true)
  await client.done('/load_weights', { session_id, model_seq_id: 1, path: saved, optimizer: true })
  const after = await client.train(`${session_id}:train:1`, 1, data, { forward_only: true })
  assert.deepEqual(after.logprobs, before.logprobs)
})

/** Whether a process is a trainer of this service. */
function isTrainer(pid: string): boolean {
  try {
    const command = readFileSync(path.join('/proc', pid, 'cmdline'), 'utf8').split('\0')
    return command.includes('trainer.cli.commands') && command.some((word) => word.startsWith(app.dataDir))
  } catch {
    return false
  }
}
