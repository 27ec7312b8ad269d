// Recovery from SIGKILL: of the server during a training, of the engine during an answer.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { after, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { alive, children, dataFolder, ended } from '../support/server.ts'
import { startApp } from '../support/service.ts'
import { metricsOver } from '../support/socket-metrics.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('crash', { TUNERY_CHECKPOINT_SECONDS: '1' })
after(() => folder.remove())

const preferenceRows = (count: number) =>
  Array.from({ length: count }, (_, index) =>
    JSON.stringify({ prompt: `code of ${index}?`, chosen: `${index}-1`, rejected: `maybe ${index}` }),
  ).join('\n')

// A training by preferences has all that a supervised one has, and its reference.
for (const objective of process.env.TEST_FULL ? (['sft', 'dpo'] as const) : (['dpo'] as const))
  test(
    `a server killed during a training (${objective}) leaves no processes; the next start resumes from the ` +
      'checkpoint',
    async () => {
      const first = await folder.start()
      const key = folder.key()
      let api: Client = client(first.url, key)
      const rows = objective === 'sft' ? colourRows(16) : preferenceRows(16)
      const dataset = (await api.upload(rows)).body.id
      const training_config = { epochs: 12, batch_size: 1, learning_rate: 0.001 }
      const config = { training_config, method_options: { objective } }
      const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
      let saved: number | undefined
      // Steps after the checkpoint are reported, and will be trained again.
      await api.untilEvent(id, ({ type, data }) => {
        if (type === 'checkpoint') saved ??= Number(data!.step)
        return type === 'metrics' && saved !== undefined && Number(data!.step) > saved
      })
      const childPids = [...children(first.pid, 'trainer.cli.train'), ...children(first.pid, 'engine/main.ts')]
      assert.equal(childPids.length, 2, 'a trainer and an engine are running')

      await first.end('SIGKILL')
      await until('the trainer and the engine to end', () => !childPids.some(alive))

      const second = await folder.start()
      api = client(second.url, key)
      const job = await api.untilEnded(id)
      assert.equal(job.status, 'completed', JSON.stringify(job.error))
      const statuses: unknown[] = []
      let checkpoint: unknown
      let resumed: unknown
      let references = 0
      const losses: number[] = []
      const progress: number[] = []
      for await (const { type, data } of api.events(id)) {
        for (const [step] of (data?.losses ?? []) as [number, number][]) losses.push(step)
        if (type === 'progress') progress.push(Number(data!.progress))
        if (data?.status) statuses.push(data.status)
        if (data?.phase === 'reference') references++
        if (type === 'checkpoint' && resumed === undefined) checkpoint = data!.step
        resumed ??= data?.resumed_from_step
      }
      assert.deepEqual(statuses, ['queued', 'running', 'queued', 'running', 'completed'])
      assert.ok(Number(resumed) > 0, 'an event has the step')
      assert.equal(resumed, checkpoint, 'it resumed from the newest checkpoint')
      const steps = Array.from({ length: Number(job.metrics.steps_total) }, (_, index) => index + 1)
      assert.deepEqual(losses, steps, 'each step is reported once, and none is missing')
      assert.deepEqual(
        progress,
        [...new Set(progress)].sort((a, b) => a - b),
        'the progress never goes back',
      )
      assert.equal(references, objective === 'sft' ? 0 : 1, 'the reference is kept with the run')

      assert.equal(await second.end('SIGTERM'), 0)
    },
  )

test('a server that is stopped during a training saves its progress and requeues the job', full, async () => {
  const first = await folder.start()
  const key = folder.key()
  let api: Client = client(first.url, key)
  const dataset = (await api.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await api.untilEvent(id, (event) => event.type === 'metrics')
  const left = [...children(first.pid, 'trainer.cli.train'), ...children(first.pid, 'engine/main.ts')]
  assert.equal(await first.end('SIGTERM'), 0)
  assert.deepEqual(left.filter(alive), [])

  const second = await folder.start()
  api = client(second.url, key)
  const resumed = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(resumed.data!.resumed_from_step) > 0)
  await api.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  await second.end('SIGTERM')
})

test('a dataset whose reading was killed is read by the next server', full, async () => {
  const first = await folder.start()
  const key = folder.key()
  const rows = Array.from({ length: 300_000 }, (_, i) => `question ${i},answer ${i}`).join('\n')
  const upload = client(first.url, key)
    .upload(`prompt,completion\n${rows}`, { format: 'csv' })
    .catch(() => undefined)
  await until('the file to be read', () => children(first.pid, 'reader/main.ts').length > 0)
  await first.end('SIGKILL')
  await upload

  const second = await folder.start()
  const { api } = client(second.url, key)
  const { id } = (await api('GET', '/datasets/')).body.items[0]
  await until('the rows to be there', async () => (await api('GET', `/datasets/${id}`)).body.status === 'ready')
  assert.equal((await api('GET', `/datasets/${id}`)).body.rows, 300_000)
  assert.equal((await api('POST', `/datasets/${id}/validate`)).body.valid, true)
  await second.end('SIGTERM')
})

test('a second server on the same data folder refuses to start, with the reason', async () => {
  const first = await folder.start()
  const second = spawn(process.execPath, ['server/main.ts'], {
    cwd: root,
    env: folder.env,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let stderr = ''
  second.stderr.on('data', (text) => {
    stderr += text
  })
  await ended(second)
  assert.equal(second.exitCode, 1)
  assert.match(stderr, /already serves the data folder/)
  await first.end('SIGTERM')
})

test('when the engine is killed, running requests fail cleanly and the next one works', async () => {
  const app = await startApp()
  try {
    const engine = () => app.services.startEngine()
    const chat = (max_tokens: number) =>
      app.api('POST', '/chat/completions', {
        model: tiny,
        messages: [{ role: 'user', content: 'hello' }],
        max_tokens,
        temperature: 2,
      })
    assert.equal((await chat(1)).status, 200)

    const { pid, socket } = await engine()
    const requests = Promise.all(Array.from({ length: 8 }, () => chat(2000)))
    await until('requests to be decoded', async () => /sequences_running [1-9]/.test(await metricsOver(socket)))
    process.kill(pid, 'SIGKILL')
    const failed = (await requests).filter(({ status }) => status !== 200)
    assert.ok(failed.length > 0)
    for (const { status, body, headers } of failed) {
      assert.equal(status, 503)
      assert.equal(body.error.code, 'engine_unavailable')
      assert.equal(headers.get('retry-after'), '1')
    }
    assert.equal((await chat(1)).status, 200, 'the next one works')

    const openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
    const stream = await openai.chat.completions.create({
      model: tiny,
      messages: [{ role: 'user', content: 'hello' }],
      max_tokens: 2000,
      stream: true,
    })
    const second = await engine()
    assert.notEqual(second.pid, pid)
    await assert.rejects(async () => {
      let pieces = 0
      for await (const _ of stream) if (++pieces === 5) process.kill(second.pid, 'SIGKILL')
    }, /ended in the middle of this answer/)
    // A request before the server notices the engine's end would get a 503 with Retry-After.
    await until('the server to notice the end of the engine', () => app.services.enginePid() !== second.pid)
    assert.equal((await chat(1)).status, 200, 'and again')
  } finally {
    await app.stop()
  }
})
