// Keys and tiers that change while a request is still being sent, or while the service is down.
import assert from 'node:assert/strict'
import net from 'node:net'
import { test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { appOfTests, createAccount } from '../support/service.ts'

const app = appOfTests()

/** Sends a request's head and the start of its body. `finish` sends the rest and resolves with the status line. */
function sendSlowly(key: string, route: string, type: string, body: string) {
  const socket = net.connect(Number(new URL(app.url).port), '127.0.0.1')
  let text = ''
  const answer = new Promise<string>((resolve) => {
    socket.on('data', (piece) => {
      text += piece
      if (text.includes('\r\n\r\n')) resolve(text)
    })
  })
  const head = [
    `POST /v1${route} HTTP/1.1`,
    'host: x',
    `authorization: Bearer ${key}`,
    `content-type: ${type}`,
    `content-length: ${Buffer.byteLength(body)}`,
  ]
  socket.write(`${head.join('\r\n')}\r\n\r\n${body.slice(0, 5)}`)
  return {
    async finish() {
      socket.write(body.slice(5))
      const first = (await answer).split('\r\n')[0]!
      socket.destroy()
      return first
    },
  }
}

test('a key that is revoked during an upload creates no key and stores no dataset', async () => {
  const leaked = (await app.api('POST', '/keys', { name: 'leaked' })).body
  const before = await app.api('GET', '/datasets')
  const key = sendSlowly(leaked.key, '/keys', 'application/json', '{"name":"minted"}')
  const disposition = 'content-disposition: form-data; name="file"; filename="a.jsonl"'
  const form = `--x\r\n${disposition}\r\n\r\n${colourRows(4)}\r\n--x--\r\n`
  const upload = sendSlowly(leaked.key, '/datasets', 'multipart/form-data; boundary=x', form)
  // Both have passed authentication once later requests with the same key have been counted.
  await until(
    'the key to have been used',
    async () => (await client(app.url, leaked.key).api('GET', '/user/profile')).body.usage.minute.used >= 4,
  )
  await app.api('DELETE', `/keys/${leaked.id}`)
  assert.match(await key.finish(), / 401 /)
  assert.match(await upload.finish(), / 401 /)
  const { items } = (await app.api('GET', '/keys')).body
  assert.ok(!items.some(({ name }: { name: string }) => name === 'minted'))
  assert.deepEqual((await app.api('GET', '/datasets')).body, before.body)
})

test('an account with an unknown tier gets the strictest limits', async () => {
  const db = await app.openDatabase()
  const { account_id, user_id } = await createAccount(app.services, app.db, 'elsewhere')
  const { key } = await app.services.accounts.createKey('k', 'full', user_id)
  await db.updateTable('accounts').set({ tier: 'of-another-file' }).where('id', '=', account_id).execute()
  await db.destroy()
  const { status, body } = await client(app.url, key).api('GET', '/user/profile')
  assert.equal(status, 200)
  assert.deepEqual([body.limits.requests_per_minute, body.limits.max_concurrent], [60, 2])
})
