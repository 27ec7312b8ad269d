// What a SIGKILL may not break: the server's in the middle of a training, the engine's in the middle of an answer.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../server/config.ts'
import { type Client, client, colourRows, until } from './support/client.ts'
import { startApp } from './support/service.ts'
import { tiny, tinyModelsDir } from './support/tiny.ts'

const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-crash-'))
const env = {
  ...process.env,
  TUNERY_DATA_DIR: dataDir,
  TUNERY_MODELS_DIR: tinyModelsDir(),
  TUNERY_PORT: '0',
  TUNERY_LOG_LEVEL: 'fatal',
  TUNERY_CHECKPOINT_SECONDS: '1',
}
const servers: ChildProcess[] = []
after(() => {
  for (const server of servers) server.kill('SIGKILL')
  rmSync(dataDir, { recursive: true, force: true })
})

async function startServer(): Promise<{ server: ChildProcess; url: string }> {
  const file = path.join(dataDir, 'server.json')
  rmSync(file, { force: true })
  const server = spawn(process.execPath, ['server/main.ts'], { cwd: root, env, stdio: ['ignore', 'ignore', 'inherit'] })
  servers.push(server)
  await until('the server to listen', () => existsSync(file))
  return { server, url: JSON.parse(readFileSync(file, 'utf8')).url }
}

/** The process ids of a process's children whose command line has this text. */
function children(parent: number, text: string): number[] {
  try {
    return execFileSync('pgrep', ['-P', String(parent), '-f', text], { encoding: 'utf8' })
      .trim()
      .split('\n')
      .map(Number)
  } catch {
    return []
  }
}

function alive(pid: number): boolean {
  try {
    // A process that has ended but was not waited for is still listed, as a zombie.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}

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

const ended = (child: ChildProcess) =>
  new Promise<void>((resolve) => (child.exitCode !== null || child.signalCode ? resolve() : child.once('exit', () => resolve())))

test('a server killed while a job trains: no trainer and no engine stays, the next start goes on from the checkpoint', async () => {
  const first = await startServer()
  const { key } = JSON.parse(execFileSync(path.join(root, 'tunery'), ['keys', 'create', '--name', 'ci', '--json'], { env, encoding: 'utf8' }))
  let api: Client = client(first.url, key)
  const dataset = (await api.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1, learning_rate: 0.001 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await api.untilEvent(id, (event) => event.type === 'checkpoint')
  const left = [...children(first.server.pid!, 'trainer.train'), ...children(first.server.pid!, 'engine/main.ts')]
  assert.equal(left.length, 2, 'a trainer and an engine were at work')

  first.server.kill('SIGKILL')
  await ended(first.server)
  await until('the trainer and the engine to be gone', () => !left.some(alive))

  const second = await startServer()
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

  second.server.kill('SIGTERM')
  await ended(second.server)
  assert.equal(second.server.exitCode, 0)
})

test('a server that is asked to stop while a job trains gives the job back with its progress saved', async () => {
  const first = await startServer()
  const { key } = JSON.parse(execFileSync(path.join(root, 'tunery'), ['keys', 'create', '--name', 'ci', '--json'], { env, encoding: 'utf8' }))
  let api: Client = client(first.url, key)
  const dataset = (await api.upload(colourRows(16))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  const { id } = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body
  await api.untilEvent(id, (event) => event.type === 'metrics')
  const left = [...children(first.server.pid!, 'trainer.train'), ...children(first.server.pid!, 'engine/main.ts')]
  first.server.kill('SIGTERM')
  await ended(first.server)
  assert.equal(first.server.exitCode, 0)
  assert.deepEqual(left.filter(alive), [])

  const second = await startServer()
  api = client(second.url, key)
  const resumed = await api.untilEvent(id, (event) => event.data?.resumed_from_step !== undefined)
  assert.ok(Number(resumed.data!.resumed_from_step) > 0)
  await api.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  second.server.kill('SIGTERM')
  await ended(second.server)
})

test('a dataset whose reading a SIGKILL cut off is read by the next server', async () => {
  const first = await startServer()
  const { key } = JSON.parse(execFileSync(path.join(root, 'tunery'), ['keys', 'create', '--name', 'ci', '--json'], { env, encoding: 'utf8' }))
  const rows = Array.from({ length: 300_000 }, (_, i) => `question ${i},answer ${i}`).join('\n')
  const upload = client(first.url, key)
    .upload(`prompt,completion\n${rows}`, { format: 'csv' })
    .catch(() => undefined)
  await until('the file to be read', () => children(first.server.pid!, 'reader/main.ts').length > 0)
  first.server.kill('SIGKILL')
  await ended(first.server)
  await upload

  const second = await startServer()
  const { api } = client(second.url, key)
  const { id } = (await api('GET', '/datasets/')).body.items[0]
  await until('the rows to be there', async () => (await api('GET', `/datasets/${id}`)).body.status === 'ready')
  assert.equal((await api('GET', `/datasets/${id}`)).body.rows, 300_000)
  assert.equal((await api('POST', `/datasets/${id}/validate`)).body.valid, true)
  second.server.kill('SIGTERM')
  await ended(second.server)
})

test('a second server on the same data folder is refused with the reason', async () => {
  const first = await startServer()
  const second = spawn(process.execPath, ['server/main.ts'], { cwd: root, env, stdio: ['ignore', 'ignore', 'pipe'] })
  let said = ''
  second.stderr.on('data', (text) => {
    said += text
  })
  await ended(second)
  assert.equal(second.exitCode, 1)
  assert.match(said, /already serves the data folder/)
  first.server.kill('SIGTERM')
  await ended(first.server)
})

test('an engine killed while it serves: the request fails cleanly, the next one works', async () => {
  const app = await startApp()
  try {
    const engine = () => app.services.warm()
    const chat = (max_tokens: number) =>
      app.api('POST', '/chat/completions', { model: tiny, messages: [{ role: 'user', content: 'hello' }], max_tokens, temperature: 2 })
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
    const stream = await openai.chat.completions.create({ model: tiny, messages: [{ role: 'user', content: 'hello' }], max_tokens: 2000, stream: true })
    const second = await engine()
    assert.notEqual(second.pid, pid)
    await assert.rejects(async () => {
      let pieces = 0
      for await (const _ of stream) if (++pieces === 5) process.kill(second.pid, 'SIGKILL')
    }, /ended in the middle of this answer/)
    assert.equal((await chat(1)).status, 200, 'and again')
  } finally {
    await app.stop()
  }
})
