// The receivers in docs/guides/receive-webhooks.md, run as written: they accept genuine deliveries, once, and
// nothing else.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { type Received, startReceiver } from '../support/receiver.ts'
import { by, startWebhooks } from '../support/webhooks.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-guide-'))
const guide = readFileSync(path.join(root, 'docs/guides/receive-webhooks.md'), 'utf8')
for (const [, name, code] of guide.matchAll(/```\w+\n(?:\/\/|#) ([\w.]+)\n([\s\S]*?)```/g))
  writeFileSync(path.join(folder, name!), code!)

const python = path.join(root, '.local/python/bin/python')
const programs = { node: [process.execPath, 'receiver.mjs'], python: [python, 'receiver.py'] } as const

let it: Awaited<ReturnType<typeof startWebhooks>>
let capture: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  it = await startWebhooks()
  capture = await startReceiver()
})
after(async () => {
  capture.stop()
  await it.stop()
  rmSync(folder, { recursive: true })
})

/** A genuine delivery as received, with its secret. */
async function genuine(secret?: string): Promise<{ id: string; secret: string; got: Received }> {
  const webhook = await it.webhooks.create(by, { url: capture.url, events: ['model.deployed'], secret })
  const { event_id } = await it.webhooks.test(by, webhook.id)
  const got = await until('the delivery', () =>
    capture.received.find(({ headers }) => headers['webhook-id'] === event_id),
  )
  return { id: webhook.id, secret: secret ?? webhook.secret!, got }
}

async function startProgram([command, file]: readonly [string, string], secret: string, old = '') {
  const env = { ...process.env, PORT: '0', WEBHOOK_SECRET: secret, WEBHOOK_SECRET_OLD: old }
  const child: ChildProcess = spawn(command, [path.join(folder, file)], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  child.stdout!.setEncoding('utf8').on('data', (text) => {
    output += text
  })
  const port = Number((await until('the receiver to listen', () => /listening on (\d+)/.exec(output)))[1])
  return {
    url: `http://127.0.0.1:${port}/`,
    events: () => output.split('\n').filter((line) => line.startsWith('event ')),
    async stop() {
      if (child.kill('SIGKILL')) await once(child, 'exit')
    },
  }
}

const send = async (
  url: string,
  { headers, body }: Received,
  changed: Record<string, string | undefined> = {},
  text: string | Uint8Array<ArrayBuffer> = body,
) => {
  const signed = ['content-type', 'x-service-signature', 'webhook-id', 'webhook-timestamp', 'webhook-signature'].map(
    (name) => [name, headers[name] as string],
  )
  const all = Object.entries({ ...Object.fromEntries(signed), ...changed }).filter(
    ([, value]) => value !== undefined,
  ) as [string, string][]
  return (await fetch(url, { method: 'POST', headers: all, body: text })).status
}

for (const [language, program] of Object.entries(programs)) {
  test(`the guide's receiver in ${language} accepts a delivery once and rejects altered or old ones`, async () => {
    const { secret, got } = await genuine()
    const receiver = await startProgram(program, secret)
    try {
      assert.equal(await send(receiver.url, got, {}, got.body.replace('webhook.test', 'webhook.tset')), 401)
      for (const changed of [
        { 'webhook-id': 'evt_other' },
        { 'webhook-timestamp': String(Number(got.headers['webhook-timestamp']) + 1) },
        { 'webhook-signature': undefined },
        { 'webhook-id': undefined },
        { 'webhook-timestamp': undefined },
        { 'webhook-timestamp': 'now' },
        { 'webhook-signature': '' },
        { 'webhook-signature': 'v1,' },
        { 'webhook-signature': `v1,${'A'.repeat(43)}=` },
        { 'webhook-signature': String(got.headers['webhook-signature']).replace('v1,', 'v2,') },
      ])
        assert.equal(await send(receiver.url, got, changed), 401, JSON.stringify(changed))
      // Signed with the right key, ten minutes ago.
      const [id, timestamp] = ['evt_old', String(Math.floor(Date.now() / 1000) - 600)]
      const signature = createHmac('sha256', Buffer.from(secret.slice(6), 'base64'))
        .update(`${id}.${timestamp}.${got.body}`)
        .digest('base64')
      assert.equal(
        await send(receiver.url, got, {
          'webhook-id': id,
          'webhook-timestamp': timestamp,
          'webhook-signature': `v1,${signature}`,
        }),
        401,
      )
      assert.equal(await send(receiver.url, got, {}, new Uint8Array(2_000_000)).catch(() => 413), 413)
      const leaving = net.connect(Number(new URL(receiver.url).port), '127.0.0.1')
      await once(leaving, 'connect')
      await new Promise((done) =>
        leaving.write('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf of', done),
      )
      leaving.resetAndDestroy()
      assert.deepEqual(receiver.events(), [])

      assert.equal(await send(receiver.url, got), 200)
      assert.equal(await send(receiver.url, got), 200, 'a replay is answered, so that it is not sent once more')
      await until('its line', () => receiver.events().length > 0)
      assert.equal(receiver.events().length, 1)
      assert.ok(receiver.events()[0]!.startsWith(`event ${got.headers['webhook-id']} webhook.test {`))
    } finally {
      await receiver.stop()
    }
  })

  test(`the guide's receiver in ${language} accepts the service's deliveries through a rotation`, async () => {
    const old = 'a secret of our own'
    const webhook = await it.webhooks.create(by, { url: capture.url, events: ['model.deployed'], secret: old })
    const deliver = async (receiver: { url: string }) => {
      await it.webhooks.change(by, webhook.id, { url: receiver.url })
      const { id } = await it.webhooks.test(by, webhook.id)
      const ended = await until('its end', async () =>
        (await it.deliveries(webhook.id)).find((delivery) => delivery.id === id && delivery.status !== 'pending'),
      )
      return ended.last_attempt!.response_status
    }
    const before = await startProgram(program, old)
    assert.equal(await deliver(before), 200)
    const fresh = (await it.webhooks.rotate(by, webhook.id, { overlap_hours: 24 })).secret!
    const after = await startProgram(program, fresh, old)
    for (const receiver of [before, after]) assert.equal(await deliver(receiver), 200)
    await it.webhooks.rotate(by, webhook.id, { secret: fresh, overlap_hours: 0 })
    assert.deepEqual([await deliver(after), await deliver(before)], [200, 401])
    await before.stop()
    await after.stop()
    await it.webhooks.delete(by, webhook.id)
  })
}

test('the guide’s checks of X-Service-Signature accept genuine deliveries only', async () => {
  for (const ownSecret of [undefined, 'a secret of our own']) {
    const { secret, got } = await genuine(ownSecret)
    const signature = String(got.headers['x-service-signature'])
    const wrong = [signature.toUpperCase(), signature.slice(1), '', 'ü', `${signature}0`, 'f'.repeat(64)]
    const cases = [
      [secret, signature, got.body],
      [secret, signature, `${got.body} `],
      [`${secret}x`, signature, got.body],
      ...wrong.map((header) => [secret, header, got.body]),
    ]
    const { isGenuine } = (await import(path.join(folder, 'plain.mjs'))) as { isGenuine(...of: string[]): boolean }
    const expected = cases.map((_, index) => index === 0)
    assert.deepEqual(
      cases.map((args) => isGenuine(...args)),
      expected,
    )
    const script =
      'import json, plain, sys; print(json.dumps([plain.is_genuine(s, g, b.encode()) for s, g, b in ' +
      'json.loads(sys.argv[1])]))'
    assert.deepEqual(
      JSON.parse(execFileSync(python, ['-c', script, JSON.stringify(cases)], { cwd: folder, encoding: 'utf8' })),
      expected,
    )
  }
})
