// What sign-ins and the dashboard's sessions may use of the machine.
import assert from 'node:assert/strict'
import http from 'node:http'
import { test } from 'node:test'
import { hashesMax, hashPassword, verifyPassword } from '../../server/features/sign-in/passwords.ts'
import { sessionReadsPerMinute } from '../../server/platform/limits/service.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()

test('passwords at once are refused beyond a number, wait in line below it, and leave nothing behind', async () => {
  const hash = await hashPassword('a good password')
  const tries = await Promise.allSettled(
    Array.from({ length: hashesMax + 8 }, () => verifyPassword(hash, 'a good password')),
  )
  const right = tries.filter((attempt) => attempt.status === 'fulfilled' && attempt.value)
  const refused = tries.filter((attempt) => attempt.status === 'rejected' && attempt.reason.code === 'overloaded')
  assert.deepEqual([right.length, refused.length], [hashesMax, 8])
  assert.equal(await verifyPassword(hash, 'a good password'), true)
})

test('a sign-in that found no place in the line is no failed try', async () => {
  const email = 'busy@example.com'
  const { body } = await app.api('POST', '/invitations', { name: 'Busy', email })
  const send = (route: string, body: object) =>
    fetch(app.url + route, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  const password = 'a password for busy days'
  assert.equal((await send('/sign-in/invitation', { token: new URL(body.link).hash.slice(1), password })).status, 200)
  let isBusy = true
  const line = Array.from({ length: hashesMax }, async () => {
    while (isBusy) await hashPassword('another')
  })
  for (let count = 0; count < 7; count++)
    assert.equal((await send('/sign-in/password', { email, password })).status, 503, `try ${count}`)
  isBusy = false
  await Promise.all(line)
  assert.equal((await send('/sign-in/password', { email, password })).status, 200)
})

test('reads of a member’s sessions are bounded; keys and other members do not feel it', async () => {
  const { token } = await app.services.signIn.createLink()
  const entered = await fetch(`${app.url}/sign-in/link`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ token }),
  })
  const cookie = entered.headers.getSetCookie()[0]!.split(';')[0]!
  const read = () => fetch(`${app.url}/datasets/`, { headers: { cookie } })
  assert.equal((await read()).status, 200)
  const caller = { user_id: app.owner.user_id } as Parameters<typeof app.services.limits.countSessionRead>[0]
  for (let count = 2; count <= sessionReadsPerMinute; count++) await app.services.limits.countSessionRead(caller)
  const refused = await read()
  const { error } = (await refused.json()) as { error: { code: string; details: object } }
  assert.deepEqual([refused.status, error.code], [429, 'rate_limit_exceeded'])
  assert.deepEqual(
    { ...error.details, retry_after_seconds: 0 },
    { limit: 'session_reads_per_minute', max: sessionReadsPerMinute, retry_after_seconds: 0 },
  )
  assert.ok(Number(refused.headers.get('retry-after')) > 0)
  assert.equal((await app.api('GET', '/datasets/')).status, 200)
  assert.equal((await app.other.api('GET', '/datasets/')).status, 200)
})

test('no address of an asset leads out of the folder of assets', async () => {
  // Not by a URL, which would resolve the dots.
  const { hostname, port } = new URL(app.address)
  const status = (path: string) =>
    new Promise((resolve) => http.get({ hostname, port, path }, (answer) => resolve(answer.resume().statusCode)))
  for (const path of ['..', '.', '...', '..%2findex.html', '%2e%2e', '.hidden'])
    assert.equal(await status(`/assets/${path}`), 404, path)
})
