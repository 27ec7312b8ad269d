// Secrets never leak into a log, an error, a metric, or in clear text onto the disk.
import assert from 'node:assert/strict'
import { globSync, readFileSync, rmSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { startReceiver } from '../support/receiver.ts'
import { dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const upstreamKey = 'canary-upstream-key-5c1f'
const log = path.join(os.tmpdir(), `tunery-canaries-${process.pid}.log`)
const folder = dataFolder(
  'canaries',
  {
    TUNERY_LOG_LEVEL: 'debug',
    TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
    TUNERY_HUGGINGFACE_URL: 'http://127.0.0.1:9',
    TUNERY_UPSTREAMS: JSON.stringify([
      { model: 'canary/upstream', url: 'http://127.0.0.1:9/v1', kind: 'openai', api_key: upstreamKey },
    ]),
  },
  { log },
)
let receiver: Awaited<ReturnType<typeof startReceiver>> | undefined
after(() => {
  receiver?.stop()
  folder.remove()
  rmSync(log, { force: true })
})

test('secrets, tokens and signatures appear only in the first response: not in logs, metrics or on disk', async () => {
  receiver = await startReceiver()
  const { port, of } = receiver
  const server = await folder.start()
  const key = folder.key()
  const api = client(server.url, key)
  const responses: string[] = []
  const ask = async (method: string, route: string, body?: unknown, headers: Record<string, string> = {}, as = api) => {
    const answer = await as.api(method, route, body, headers)
    responses.push(JSON.stringify([answer.body, [...answer.headers]]))
    return answer
  }
  const ownSecret = 'canary webhook secret 9f3a'
  const hubToken = 'hf_canaryTokenOfTheHub77d2'
  const made = (await api.api('POST', '/keys', { name: 'canary' }, { 'idempotency-key': 'canary-1' })).body.key
  const url = `http://127.0.0.1:${port}/canary`
  const hook = await ask('POST', '/webhooks', {
    url,
    events: ['training.completed', 'model.deployed'],
    secret: ownSecret,
  })
  const rotated = (await api.api('POST', `/webhooks/${hook.body.id}/rotate`)).body.secret
  const secrets = { key, made, ownSecret, rotated, hubToken, upstreamKey }
  for (const [name, secret] of Object.entries(secrets)) assert.ok(secret.length > 15, name)

  const form = new FormData()
  form.set('format', 'huggingface')
  form.set('hf_token', hubToken)
  form.set('file', new Blob(['{"repo":"canary/dataset"}']), 'dataset.json')
  await ask('POST', '/datasets', form)
  await ask('POST', `/webhooks/${hook.body.id}/test`)
  await ask('POST', '/deployments', { name: 'canary', model: tiny })
  await until('deliveries', () => of('/canary').length >= 2)
  const set = (await api.upload(colourRows(8))).body.id
  await ask('GET', `/datasets/${set}`)
  // Error paths are the most likely to leak.
  await ask('POST', '/chat/completions', { model: 'canary/upstream', messages: [{ role: 'user', content: 'x' }] })
  await ask('POST', '/webhooks', { url, events: ['model.deployed'], secret: ownSecret, colour: made })
  await ask('POST', '/webhooks', {
    url: `http://user:${rotated}@127.0.0.1/`,
    events: ['model.deployed'],
    secret: `${ownSecret}\n`,
  })
  await ask('POST', '/keys', `{"name": "${made}`)
  await ask('GET', '/user/profile', undefined, {}, client(server.url, `${made}x`))
  for (const route of [
    '/keys',
    '/webhooks',
    `/webhooks/${hook.body.id}`,
    `/webhooks/${hook.body.id}/deliveries`,
    '/audit?limit=100',
    '/user/profile',
    '/usage',
  ])
    await ask('GET', route)
  for (const { id } of (await api.api('GET', `/webhooks/${hook.body.id}/deliveries`)).body.items)
    await ask('GET', `/webhooks/${hook.body.id}/deliveries/${id}`)
  responses.push(await (await fetch(new URL('/metrics', server.url))).text())
  assert.equal(await server.end('SIGTERM'), 0)

  const outputs = new Map(responses.map((text, index) => [`answer ${index}`, Buffer.from(text)]))
  outputs.set('the log', readFileSync(log))
  // Without a terminal, the first key is written to a file.
  for (const file of globSync('**/*', { cwd: folder.dataDir }))
    if (statSync(path.join(folder.dataDir, file)).isFile() && file !== 'first-key.txt')
      outputs.set(file, readFileSync(path.join(folder.dataDir, file)))
  assert.ok(outputs.get('the log')!.length > 100 && outputs.has('tunery.db'))
  for (const [name, secret] of Object.entries(secrets))
    for (const [output, bytes] of outputs) {
      // A malformed value is reported only to the client that sent it.
      const echoed = /^answer/.test(output) && (name === 'made' || name === 'rotated')
      if (!echoed) assert.ok(!bytes.includes(secret), `${name} is in ${output}`)
    }
})
