// Deployments with dedicated replicas: real engines on single cores.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import {
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { request } from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { afterEach, before, test } from 'node:test'
import type { Scaling } from '../../contract/scaling.ts'
import { openObjectStore } from '../../server/platform/storage/objects/index.ts'
import { client, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { artifactsOn } from '../support/object-store.ts'
import { dataFolder } from '../support/server.ts'
import { appOfTests, startApp, type TestApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { endless, tiny, tinyModelsDir } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_REPLICA_CORES: '1', TUNERY_THREADS: '1' })
/** Two adapters with different weights. */
let first: string
let second: string
before(async () => {
  await app.started
  first = await app.colourModel()
  second = await app.colourModel()
  await weaken(second)
  await deploy('keeper', tiny)
})

const adapterFile = (model: string) => path.join(app.dataDir, 'models', model, 'adapter.gguf')
const baseFile = path.join(tinyModelsDir(), tiny, 'model.gguf')
const sha256 = (file: string) => createHash('sha256').update(readFileSync(file)).digest('hex')
const shown = (file: string) => `sha256:${sha256(file).slice(0, 16)}`
const weightsOf = (model: string) => `base=${tiny} ${shown(baseFile)}; adapter=${model} ${shown(adapterFile(model))}`

/** Changes the weights of an adapter by a factor of its alpha; `record`: as if it had been trained so. */
async function weaken(model: string, factor = 0.9, record = true): Promise<void> {
  const file = adapterFile(model)
  const bytes = readFileSync(file)
  const key = 'adapter.lora.alpha'
  const position = bytes.indexOf(key) + key.length + 4
  bytes.writeFloatLE(factor * bytes.readFloatLE(position), position)
  writeFileSync(`${file}.new`, bytes)
  copyFileSync(`${file}.new`, file)
  if (!record) return
  const gguf_sha256 = sha256(file)
  await app.db
    .transaction()
    .execute((trx) => trx.updateTable('models').set({ gguf_sha256 }).where('id', '=', model).execute())
}

/** The processes of replicas, by their cores. */
function replicaPids(parent = process.pid): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const isOurs = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')[1] === String(parent)
        return isOurs && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('--cache-mb') ? [Number(pid)] : []
      } catch {
        return []
      }
    })
}

const messages = [{ role: 'user', content: 'code of blue?' }]
const chat = (model: string, fields: object = {}) =>
  app.api('POST', '/chat/completions', { model, messages, max_tokens: 4, temperature: 0, ...fields })
const policy = {
  min_replicas: 1,
  max_replicas: 2,
  target_requests_per_replica: 4,
  scale_up_cooldown: '1s',
  scale_down_cooldown: '3s',
}
const scale = (name: string, fields: object = {}) =>
  app.api('PUT', `/deployments/${name}/scaling`, { scaling: { ...policy, ...fields } })
const show = async (name: string) => {
  const { status, body } = await app.api('GET', `/deployments/${name}/scaling`)
  assert.equal(status, 200, JSON.stringify(body))
  return body as Scaling
}
const ready = (name: string, count: number) =>
  until(`${count} replicas of ${name}`, async () => {
    const scaling = await show(name)
    return scaling.replicas.ready === count && scaling.replicas.items.length === count ? scaling : undefined
  })
const deploy = async (name: string, model: string) => {
  const answer = await app.api('POST', '/deployments', { name, model })
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
}
afterEach(async () => {
  const { items } = (await app.api('GET', '/deployments')).body
  for (const { name } of items) if (name !== 'keeper') await app.api('DELETE', `/deployments/${name}`)
  await until('the places to be free', async () => {
    const { instance_types } = await show('keeper')
    return instance_types.find((instanceType) => instanceType.name === 'cpu')!.free === 2
  })
})

test('from zero: the first request waits for a start and is told so; later it goes back to zero', async () => {
  await deploy('sleeper', first)
  const set = await scale('sleeper', { min_replicas: 0, scale_down_cooldown: '2s' })
  assert.equal(set.status, 200, JSON.stringify(set.body))
  assert.equal(set.body.replicas.desired, 0)
  const [answer, beside] = await Promise.all([chat('sleeper'), chat('sleeper')])
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
  assert.equal(beside.status, 200)
  assert.match(answer.headers.get('server-timing')!, /^start;dur=\d\d+\.\d, load;dur=/)
  assert.equal(answer.headers.get('x-weights'), weightsOf(first))
  assert.equal(answer.body.model, 'sleeper')
  const warm = await chat('sleeper')
  assert.doesNotMatch(warm.headers.get('server-timing')!, /start/)
  const state = await show('sleeper')
  assert.deepEqual([state.replicas.ready, state.replicas.items[0]!.state], [1, 'ready'])
  const { place } = state.replicas.items[0]!
  assert.match(place, /^core \d$/)
  const metrics = await (await fetch(`${app.address}/metrics`)).text()
  assert.match(metrics, new RegExp(`^tunery_engine_generation_tokens_total\\{engine="${place}"\\} [1-9]`, 'm'))
  const idle = await ready('sleeper', 0)
  assert.deepEqual(
    idle.decisions.map(({ from, to }) => [from, to]),
    [
      [1, 0],
      [0, 1],
    ],
  )
  assert.match(idle.decisions[0]!.reason, /^No request in the last/)
  assert.match(idle.decisions[1]!.reason, /^\d requests? at 4 a replica takes? 1 replica/)
})

test('killed replicas restart, their requests are retried, no name is answered by another’s weights', async (t) => {
  await Promise.all([deploy('one', first), deploy('two', second)])
  const names = { one: weightsOf(first), two: weightsOf(second) }
  for (const name of Object.keys(names)) {
    assert.equal((await scale(name, { max_replicas: 1 })).status, 200)
    await ready(name, 1)
  }
  assert.equal(replicaPids().length, 2)
  for (const pid of replicaPids()) assert.match(readFileSync(`/proc/${pid}/status`, 'utf8'), /Cpus_allowed_list:\t\d\n/)
  // Probabilities of a text, which the adapters change.
  const ask = (name: string) =>
    app.api('POST', '/completions', {
      model: name,
      prompt: 'code of red? code of blue?',
      echo: true,
      logprobs: 1,
      max_tokens: 0,
    })
  const probabilities = (body: { choices: { logprobs: { token_logprobs: (number | null)[] } }[] }) =>
    body.choices[0]!.logprobs.token_logprobs.reduce<number>((sum, logprob) => sum + (logprob ?? 0), 0)
  const expected = { one: probabilities((await ask('one')).body), two: probabilities((await ask('two')).body) }
  assert.ok(Math.abs(expected.one - expected.two) > 1e-3, `the adapters differ: ${JSON.stringify(expected)}`)
  let stop = false
  const answers = [0, 0, 0, 0]
  const work = async (name: 'one' | 'two', worker: number) => {
    while (!stop) {
      const answer = await ask(name)
      assert.equal(answer.status, 200, JSON.stringify(answer.body))
      assert.equal(answer.headers.get('x-weights'), names[name])
      assert.ok(Math.abs(probabilities(answer.body) - expected[name]) < 1e-4)
      answers[worker]!++
    }
  }
  const workers = [work('one', 0), work('two', 1), work('one', 2), work('two', 3)]
  const failed = Promise.race(workers.map((worker) => worker.then(() => new Promise<never>(() => {}))))
  t.after(() => {
    stop = true
  })
  for (let kills = 0; kills < (process.env.TEST_FULL ? 6 : 3); kills++) {
    const before = [...answers]
    const victims = kills % 3 === 2 ? replicaPids() : replicaPids().slice(kills % 2, (kills % 2) + 1)
    for (const pid of victims) process.kill(pid, 'SIGKILL')
    await Promise.race([
      failed,
      until('the others to take over', async () => {
        const pids = replicaPids()
        return pids.length === 2 && victims.every((pid) => !pids.includes(pid))
      }),
    ])
    await Promise.race([failed, Promise.all([ready('one', 1), ready('two', 1)])])
    await Promise.race([
      failed,
      until('more answers to each, so that no request is lost twice', () =>
        answers.every((count, worker) => count > before[worker]! + 2),
      ),
    ])
  }
  stop = true
  await Promise.all(workers)
})

test('a replica that would serve other weights takes no traffic, and its name says why', async () => {
  const model = await app.colourModel()
  const original = readFileSync(adapterFile(model))
  const right = weightsOf(model)
  await deploy('strict', model)
  assert.equal((await scale('strict', { max_replicas: 1 })).status, 200)
  await ready('strict', 1)
  assert.equal((await chat('strict')).headers.get('x-weights'), right)
  // Changed on disk: the running replica keeps what it has, the next one has other weights than were recorded.
  await weaken(model, 0.5, false)
  assert.equal((await chat('strict')).headers.get('x-weights'), right)
  process.kill(replicaPids()[0]!, 'SIGKILL')
  const refused = await until('a refusal', async () => {
    const answer = await chat('strict')
    if (answer.status !== 200) return answer
    assert.equal(answer.headers.get('x-weights'), right)
    return undefined
  })
  assert.equal(refused.body.error.code, 'engine_failed')
  assert.match(
    refused.body.error.message,
    /has other weights than those asked for.*restore it from a backup.*The next try is in \d+ s/,
  )
  assert.match((await show('strict')).error!, /No replica of 'strict' could be started/)
  // The right hash, but not the probabilities that the trainer kept.
  await weaken(model, -1)
  await scale('strict', { max_replicas: 1, target_requests_per_replica: 5 })
  await until('the probe to refuse', async () =>
    /does not answer as the model/.test((await show('strict')).error ?? ''),
  )
  writeFileSync(adapterFile(model), original)
  const gguf_sha256 = sha256(adapterFile(model))
  await app.db
    .transaction()
    .execute((trx) => trx.updateTable('models').set({ gguf_sha256 }).where('id', '=', model).execute())
  await scale('strict', { max_replicas: 1 })
  await ready('strict', 1)
  assert.equal((await chat('strict')).headers.get('x-weights'), right)
})

test(
  'a replica whose weights are exchanged after its verification is stopped before it answers with them',
  full,
  async () => {
    await deploy('exchanged', first)
    assert.equal((await scale('exchanged', { max_replicas: 1 })).status, 200)
    await ready('exchanged', 1)
    const [pid] = replicaPids()
    const [, socketPath] = /unix:([^\0]+)/.exec(readFileSync(`/proc/${pid}/cmdline`, 'utf8'))!
    const command = async (route: string, body: object) => {
      const sent = request({ socketPath, path: route, method: 'POST', headers: { 'content-type': 'application/json' } })
      sent.end(JSON.stringify(body))
      const [answer] = await once(sent, 'response')
      assert.equal(answer.resume().statusCode, 200)
    }
    await command('/v1/unload_lora_adapter', { lora_name: first })
    await command('/v1/load_lora_adapter', { lora_name: first, lora_path: adapterFile(second), base_model_name: tiny })
    for (let requests = 0; requests < 5; requests++) {
      const answer = await chat('exchanged')
      assert.equal(answer.status, 200, JSON.stringify(answer.body))
      assert.equal(answer.headers.get('x-weights'), weightsOf(first))
    }
    assert.ok(!replicaPids().includes(pid!))
  },
)

test('load adds replicas, and less of it removes them without cutting an answer', full, async () => {
  await deploy('busy', first)
  assert.equal((await scale('busy', { target_requests_per_replica: 1 })).status, 200)
  await ready('busy', 1)
  const streams = Array.from({ length: 4 }, () =>
    stream(`${app.url}/chat/completions`, app.key, {
      model: 'busy',
      messages,
      max_tokens: 1500,
      stream: true,
      ...endless,
    }),
  )
  const more = await ready('busy', 2)
  assert.match(more.decisions[0]!.reason, /requests? at a time.* at 1 a replica takes? \d replicas/)
  assert.match(more.limit ?? '', /^$|room for/)
  for (const stream of streams.slice(1)) stream.hangUp()
  const draining = await until('one to be drained', async () => {
    const scaling = await show('busy')
    return scaling.decisions[0]!.to === 1 ? scaling : undefined
  })
  assert.match(draining.decisions[0]!.reason, /The load of the last .* takes 1 replica|No request in the last/)
  const { done, events } = await streams[0]!.result
  assert.ok(done)
  assert.equal(events.at(-1).choices[0].finish_reason, 'length')
  await ready('busy', 1)
})

test('a switched name is prepared on its replicas first, then answers with the other weights', async () => {
  await deploy('moving', first)
  assert.equal((await scale('moving', { max_replicas: 1, target_gpu_utilization: 90 })).status, 200)
  const { replicas } = await ready('moving', 1)
  // Between two looks at the processor time of its engine.
  await until('its utilization', async () => {
    const { utilization } = await show('moving')
    return utilization !== null && utilization >= 0 && utilization <= 1
  })
  assert.equal((await chat('moving')).headers.get('x-weights'), weightsOf(first))
  assert.equal((await app.api('PUT', '/deployments/moving', { model: second })).status, 200)
  const answer = await chat('moving')
  assert.equal(answer.headers.get('x-weights'), weightsOf(second))
  assert.ok(Number(/load;dur=([\d.]+)/.exec(answer.headers.get('server-timing')!)![1]) < 500)
  assert.equal((await show('moving')).replicas.items[0]!.id, replicas.items[0]!.id, 'the same replica')
  assert.equal((await app.api('DELETE', '/deployments/moving/scaling')).status, 200)
  assert.equal((await show('moving')).scaling, null)
  assert.equal((await chat('moving')).headers.get('x-weights'), weightsOf(second), 'the shared engine serves it')
})

test(
  'where all places are taken, a name without replicas gets one of another’s, or is refused in words',
  full,
  async () => {
    await Promise.all([deploy('rich', first), deploy('poor', second)])
    assert.equal(
      (await scale('rich', { min_replicas: 1, scale_down_cooldown: '1h', target_requests_per_replica: 1 })).status,
      200,
    )
    const hold = Array.from({ length: 3 }, () =>
      stream(`${app.url}/chat/completions`, app.key, {
        model: 'rich',
        messages,
        max_tokens: 1500,
        stream: true,
        ...endless,
      }),
    )
    await ready('rich', 2)
    const set = await scale('poor', { min_replicas: 0 })
    assert.match(
      (
        await until('the limit', async () => {
          const scaling = await show('poor')
          return scaling.limit ? scaling : undefined
        })
      ).limit!,
      /room for 0 replicas on cpu now; max_replicas is 2/,
    )
    assert.equal(set.status, 200)
    for (const streaming of hold) streaming.hangUp()
    const answer = await until('an answer', async () => {
      const answer = await chat('poor')
      if (answer.status === 200) return answer
      assert.equal(answer.body.error.code, 'overloaded')
      assert.match(answer.body.error.message, /There is no room for a replica of 'poor' now/)
      return undefined
    })
    assert.equal(answer.headers.get('x-weights'), weightsOf(second))
    await until('the reason', async () => /Gave a place/.test((await show('rich')).decisions[0]!.reason))
  },
)

test(
  'after a SIGKILL of the server its replicas are gone, and the next server starts them by the configuration',
  full,
  async () => {
    const folder = dataFolder('scaling', { TUNERY_REPLICA_CORES: '1' })
    try {
      const server = await folder.start()
      const { api } = client(server.url, folder.key())
      await api('POST', '/deployments', { name: 'lasting', model: tiny })
      await api('PUT', '/deployments/lasting/scaling', { scaling: { ...policy, max_replicas: 1 } })
      const isReady = async (from: ReturnType<typeof client>['api']) =>
        (await from('GET', '/deployments/lasting/scaling')).body.replicas.ready === 1
      await until('a replica', () => isReady(api))
      const [pid] = replicaPids(server.pid)
      await server.end('SIGKILL')
      await until('its end', () => !existsSync(`/proc/${pid}`))
      const next = await folder.start()
      const { api: again } = client(next.url, folder.key())
      await until('a replica again', () => isReady(again))
      const answer = await again('POST', '/chat/completions', { model: 'lasting', messages, max_tokens: 2 })
      assert.equal(answer.headers.get('x-weights'), `base=${tiny} ${shown(baseFile)}`)
      const { decisions } = (await again('GET', '/deployments/lasting/scaling')).body as Scaling
      assert.equal(decisions.length, 2)
      await next.end('SIGTERM')
      assert.deepEqual(replicaPids(next.pid), [])
    } finally {
      folder.remove()
    }
  },
)

test('servers that share a database each scale their own replicas, by one configuration', {
  skip: process.env.TEST_DATABASE_URL ? false : 'runs on Postgres: set TEST_DATABASE_URL',
}, async () => {
  const storage = mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-'))
  const one = await startApp({ TUNERY_STORAGE_URL: `file://${storage}`, TUNERY_REPLICA_CORES: '1' })
  const two = await startApp({ TUNERY_REPLICA_CORES: '1' }, { join: one })
  try {
    await one.api('POST', '/deployments', { name: 'shared', model: tiny })
    await one.api('PUT', '/deployments/shared/scaling', { scaling: { ...policy, min_replicas: 0, max_replicas: 1 } })
    const ask = (from: TestApp) => from.api('POST', '/chat/completions', { model: 'shared', messages, max_tokens: 2 })
    const timing = await until('the other server to know', async () => {
      const answer = await ask(two)
      assert.equal(answer.status, 200, JSON.stringify(answer.body))
      const header = answer.headers.get('server-timing')!
      return header.startsWith('start') ? header : undefined
    })
    assert.match(timing, /^start;dur=/)
    const of = async (from: TestApp) => (await from.api('GET', '/deployments/shared/scaling')).body as Scaling
    assert.equal((await of(two)).replicas.ready, 1)
    assert.equal((await of(one)).replicas.ready, 0, 'nobody has asked it')
    assert.equal((await ask(one)).status, 200)
    const { decisions } = await of(one)
    assert.equal(new Set(decisions.map(({ server }) => server)).size, 2, 'each decided for itself')
    assert.equal((await one.api('DELETE', '/deployments/shared/scaling')).status, 200)
    await until('the other server to follow', async () => (await of(two)).replicas.items.length === 0)
    assert.equal((await ask(two)).status, 200)
  } finally {
    await two.stop()
    await one.stop()
    rmSync(storage, { recursive: true, force: true })
  }
})

test('requests that wait for a start are bounded, and each that leaves frees its place', async () => {
  const small = await startApp({ TUNERY_REPLICA_CORES: '1', TUNERY_MAX_WAITING: '2' })
  try {
    await small.api('POST', '/deployments', { name: 'narrow', model: tiny })
    await small.api('PUT', '/deployments/narrow/scaling', { scaling: { ...policy, min_replicas: 0, max_replicas: 1 } })
    const ask = () => small.api('POST', '/chat/completions', { model: 'narrow', messages, max_tokens: 2 })
    const left = stream(`${small.url}/chat/completions`, small.key, {
      model: 'narrow',
      messages,
      max_tokens: 2,
      stream: true,
    })
    await until('it to wait', async () => (await small.api('GET', '/deployments/narrow/scaling')).body.waiting === 1)
    left.hangUp()
    await until('it to leave', async () => (await small.api('GET', '/deployments/narrow/scaling')).body.waiting === 0)
    const answers = await Promise.all([ask(), ask(), ask(), ask()])
    const refused = answers.filter(({ status }) => status !== 200)
    assert.equal(refused.length, 2, JSON.stringify(answers.map(({ body }) => body)))
    for (const { status, body, headers } of refused) {
      assert.deepEqual([status, body.error.code], [503, 'overloaded'])
      assert.ok(Number(headers.get('retry-after')) > 0)
    }
  } finally {
    await small.stop()
  }
})

test(
  'requests for a name at zero whose weights cannot be fetched get the reason, and answers once they can',
  full,
  async () => {
    const storage = mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-'))
    const away = await startApp({ TUNERY_STORAGE_URL: `file://${storage}`, TUNERY_REPLICA_CORES: '1' })
    try {
      const model = await away.colourModel()
      const store = (await openObjectStore(`file://${storage}`))!
      await artifactsOn(store, away.dataDir).publish(`models/${model}/`)
      store.close()
      await away.api('POST', '/deployments', { name: 'remote', model })
      const set = await away.api('PUT', '/deployments/remote/scaling', {
        scaling: { ...policy, min_replicas: 0, max_replicas: 1 },
      })
      assert.equal(set.status, 200, JSON.stringify(set.body))
      const ask = () => away.api('POST', '/chat/completions', { model: 'remote', messages, max_tokens: 2 })
      rmSync(path.join(away.dataDir, 'models', model), { recursive: true })
      renameSync(storage, `${storage}.away`)
      const refused = await ask()
      assert.equal(refused.status, 503, JSON.stringify(refused.body))
      assert.match(refused.body.error.message, /No replica of 'remote' could be started: .*The next try is in \d+ s/)
      renameSync(`${storage}.away`, storage)
      await until('an answer', async () => (await ask()).status === 200)
    } finally {
      await away.stop()
      rmSync(storage, { recursive: true, force: true })
    }
  },
)
