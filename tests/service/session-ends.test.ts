// Where a session ends and where it holds: in streams in progress, after a restore, in the cookies of a browser.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { backUp } from '../../server/maintenance/backup/backup.ts'
import { restore } from '../../server/maintenance/backup/restore.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { newBrowser } from '../support/browser.ts'
import { colourRows } from '../support/client.ts'
import { onSqlite } from '../support/postgres.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp({ TUNERY_PUBLIC_URL: 'https://tunery.example' })
})
after(() => app.stop())

test('every server of the installation knows a session, whatever its port; an old one by its old name', async () => {
  const page = newBrowser(app)
  await page.enter()
  const [name, token] = page.cookie().split('=') as [string, string]
  const port = new URL(app.address).port
  assert.ok(!name.includes(port))
  const look = async (cookie: string) => (await fetch(`${app.url}/session`, { headers: { cookie } })).status
  assert.equal(await look(`${name}=${token}`), 200)
  assert.equal(await look(`tunery_session_${port}=${token}`), 200)
  // Another service on this host has another cookie, which does not count here and is not taken away.
  assert.equal(await look(`tunery_session_other=x; ${name}=${token}`), 200)
  assert.equal(await look(`tunery_session_other=${token}`), 401)
  const ended = await page.send('DELETE', '/session')
  assert.deepEqual(
    ended.cookies.map((cookie) => cookie.split('=')[0]),
    [name],
  )
})

test('a stream of events in progress ends with its session or key, before the next event', async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const { id } = (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id })).body
  const page = newBrowser(app)
  await page.enter()
  const made = (await app.api('POST', '/keys', { name: 'to be revoked' })).body
  const open = async (headers: Record<string, string>) => {
    const response = await fetch(`${app.url}/fine-tuning/jobs/${id}/events`, { headers })
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
    assert.match((await reader.read()).value ?? '', /"seq":1\b/)
    return async () => {
      let rest = ''
      for (;;) {
        const { done, value } = await reader.read()
        if (done) return rest
        rest += value
      }
    }
  }
  const streams = [
    await open({ cookie: page.cookie() }),
    await open({ authorization: `Bearer ${made.key}` }),
    await open({ authorization: `Bearer ${app.key}` }),
  ]
  await page.send('DELETE', '/session')
  await app.api('DELETE', `/keys/${made.id}`)
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)).status, 200)
  const [ofSession, ofKey, ofOther] = await Promise.all(streams.map((read) => read()))
  assert.match(ofOther!, /cancelled/)
  assert.doesNotMatch(ofSession!, /cancelled/)
  assert.doesNotMatch(ofKey!, /cancelled/)
})

test('a backup has no token, and a restore signs everyone out and voids every link', onSqlite, async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-session-'))
  const [backup, restored] = [path.join(folder, 'backup'), path.join(folder, 'restored')]
  try {
    const page = newBrowser(app)
    await page.enter()
    await page.send('PUT', '/user/password', { email: 'a@example.com', password: 'a password to keep' })
    const { token } = await app.services.signIn.createLink()
    await backUp(app.dataDir, backup, 'test')
    const bytes = readFileSync(path.join(backup, 'tunery.db'), 'latin1')
    for (const secret of [token, page.cookie().split('=')[1]!, page.csrf(), 'a password to keep'])
      assert.ok(!bytes.includes(secret), secret)
    await restore(backup, restored)
    const db = await openDatabase(restored)
    try {
      assert.deepEqual(await db.selectFrom('sessions').selectAll().execute(), [])
      assert.deepEqual(await db.selectFrom('sign_in_tokens').selectAll().execute(), [])
      assert.equal((await db.selectFrom('passwords').selectAll().execute()).length, 1)
    } finally {
      await db.destroy()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

test(
  'with a public address of TLS the cookie is for TLS alone, though no proxy may say so; a local page has its ' + 'own',
  async () => {
    const enter = async (headers: Record<string, string>) => {
      const { token } = await app.services.signIn.createLink()
      const page = newBrowser(app, headers)
      const { cookies } = await page.send('POST', '/sign-in/link', { token })
      assert.equal((await page.send('GET', '/session')).status, 200)
      const out = await page.send('DELETE', '/session')
      return [cookies[0]!.replace(/=[\w-]{43}/, '=T'), out.cookies[0]!]
    }
    const rest = 'Path=/; HttpOnly; SameSite=Lax'
    for (const headers of [{ origin: 'https://tunery.example' }, {}] as Record<string, string>[])
      assert.deepEqual(await enter(headers), [
        `__Host-tunery_session=T; Max-Age=7776000; ${rest}; Secure`,
        `__Host-tunery_session=; Max-Age=0; ${rest}; Secure`,
      ])
    const { installation } = app.services
    assert.deepEqual(await enter({ origin: app.address }), [
      `tunery_session_${installation}=T; Max-Age=7776000; ${rest}`,
      `tunery_session_${installation}=; Max-Age=0; ${rest}`,
    ])
  },
)
