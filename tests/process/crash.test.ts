// What a SIGKILL may not break: the server's in the middle of a training, the engine's in the middle of an answer.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import http from 'node:http'
import { after, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { alive, children, dataFolder, ended } from '../support/server.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('crash', { TUNERY_CHECKPOINT_SECONDS: '1' })
after(() => folder.remove())

function metrics(socketPath: string): Promise<string> {
  return new Promise((resolve, reject) => {
    http
      .get({ socketPath, path: '/metrics' }, async (response) => {
        let text = ''
        for await (const chunk of response) text += chunk
        resolve(text)
      })
      .on('error', reject)
  })
}

test('a server killed while a job trains: no trainer and no engine stays, the next start goes on from the checkpoint', async () => {
  const first = await folder.start()
  const key = folder.key()
  let api: Client = client(first.url, key)
  const dataset = (await api.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1, learning_rate: 0.001 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await api.untilEvent(id, (event) => event.type === 'checkpoint')
  const left = [...children(first.pid, 'trainer.cli.train'), ...children(first.pid, 'engine/main.ts')]
  assert.equal(left.length, 2, 'a trainer and an engine were at work')

  await first.end('SIGKILL')
  await until('the trainer and the engine to be gone', () => !left.some(alive))

  const second = await folder.start()
  api = client(second.url, key)
  const job = await api.untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const statuses: unknown[] = []
  let checkpoint: unknown
  let resumed: unknown
  for await (const { type, data } of api.events(id)) {
    if (data?.status) statuses.push(data.status)
    if (type === 'checkpoint' && resumed === undefined) checkpoint = data!.step
    resumed ??= data?.resumed_from_step
  }
  assert.deepEqual(statuses, ['queued', 'running', 'queued', 'running', 'completed'])
  assert.ok(Number(resumed) > 0, 'an event tells the step')
  assert.equal(resumed, checkpoint, 'the newest checkpoint was taken')

  assert.equal(await second.end('SIGTERM'), 0)
})

test('a server that is asked to stop while a job trains gives the job back with its progress saved', async () => {
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

test('a dataset whose reading a SIGKILL cut off is read by the next server', async () => {
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

test('a second server on the same data folder is refused with the reason', async () => {
  const first = await folder.start()
  const second = spawn(process.execPath, ['server/main.ts'], {
    cwd: root,
    env: folder.env,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  second.stderr.on('data', (text) => {
    said += text
  })
  await ended(second)
  assert.equal(second.exitCode, 1)
  assert.match(said, /already serves the data folder/)
  await first.end('SIGTERM')
})

test('an engine killed while it serves: the request fails cleanly, the next one works', async () => {
  const app = await startApp()
  try {
    const engine = () => app.services.warm()
    const chat = (max_tokens: number) =>
      app.api('POST', '/chat/completions', {
        model: tiny,
        messages: [{ role: 'user', content: 'hello' }],
        max_tokens,
        temperature: 2,
      })
    assert.equal((await chat(1)).status, 200)

    const { pid, socket } = await engine()
    const whole = Promise.all(Array.from({ length: 8 }, () => chat(2000)))
    await until('requests to be decoded', async () => /sequences_running [1-9]/.test(await metrics(socket)))
    process.kill(pid, 'SIGKILL')
    const failed = (await whole).filter(({ status }) => status !== 200)
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
    // A request on a connection whose end is not known yet is told to come again.
    await until('the end of the engine is known', () => app.services.enginePid() !== second.pid)
    assert.equal((await chat(1)).status, 200, 'and again')
  } finally {
    await app.stop()
  }
})
