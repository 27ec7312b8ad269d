// The links of the first start and of the command line sign in once, and what people sign in with is nowhere to be
// read.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { dataFolder } from '../support/server.ts'
import { openTerminal } from '../support/terminal.ts'

const log = path.join(os.tmpdir(), `tunery-sign-in-link-${process.pid}.log`)
const folder = dataFolder('sign-in-link', { TUNERY_LOG_LEVEL: 'debug' }, { log })
const shown = dataFolder('sign-in-terminal')
after(() => {
  folder.remove()
  shown.remove()
  rmSync(log, { force: true })
})

const file = path.join(folder.dataDir, 'sign-in-link.txt')
const tokenOf = (link: string) => new URL(link).hash.slice(1)
const browserAt = (url: string) => newBrowser({ url, services: undefined as never })
const enter = (url: string, token: string) => browserAt(url).send('POST', '/sign-in/link', { token })

test('the first start leaves a link for its user alone, later ones none, and ./tunery makes another', async () => {
  let server = await folder.start()
  await until('the link', () => readdirSync(folder.dataDir).includes('sign-in-link.txt'))
  assert.equal(statSync(file).mode & 0o777, 0o600)
  const link = readFileSync(file, 'utf8').trim()
  // Browsers allow passkeys for a name alone.
  assert.equal(new URL(link).origin, new URL(server.url).origin.replace('127.0.0.1', 'localhost'))
  assert.equal(new URL(link).pathname, '/sign-in')
  const page = browserAt(server.url)
  const answers = [
    await page.send('POST', '/sign-in/link', { token: tokenOf(link) }),
    await enter(server.url, tokenOf(link)),
  ]
  assert.deepEqual(answers.map(codeOf), [
    [200, undefined],
    [400, 'link_invalid'],
  ])
  const { profile, scopes, csrf_token } = (await page.send('GET', '/session')).body
  assert.ok(profile.role === 'owner' && scopes.includes('operator'))
  const password = 'a canary of passwords'
  assert.equal((await page.send('PUT', '/user/password', { email: 'me@example.com', password })).status, 200)
  const invited = await page.send('POST', '/invitations', { name: 'Vera' })

  rmSync(file)
  await server.end('SIGKILL')
  server = await folder.start()
  assert.equal((await fetch(`${server.url}/datasets/`, { headers: { authorization: 'x' } })).status, 401)
  assert.ok(!readdirSync(folder.dataDir).includes('sign-in-link.txt'), 'a later start has no link')
  // The session has outlived the crash; the cookie's name has the port, and another port another cookie.
  const old = page.cookie().split('=')[1]!
  const moved = { cookie: `tunery_session_${new URL(server.url).port}=${old}` }
  assert.equal(
    (await newBrowser({ url: server.url, services: undefined as never }, moved).send('GET', '/session')).status,
    200,
  )

  const created = folder.tunery('sign-in-link', '--email', 'ME@example.com')
  assert.equal(new URL(created.link!).origin, new URL(server.url).origin.replace('127.0.0.1', 'localhost'))
  assert.equal(created.user_id, profile.id)
  assert.equal((await enter(server.url, tokenOf(created.link!))).status, 200)
  assert.equal((await enter(server.url, tokenOf(created.link!))).status, 400)
  assert.throws(() => folder.tunery('sign-in-link', '--email', 'nobody@example.com'))
  const unused = folder.tunery('sign-in-link')
  await server.end('SIGTERM')

  const canaries = [
    ...[tokenOf(link), tokenOf(created.link!), tokenOf(unused.link!), tokenOf(invited.body.link)],
    ...[password, old, csrf_token],
  ]
  const places = readdirSync(folder.dataDir, { recursive: true, encoding: 'utf8' })
    .map((name) => path.join(folder.dataDir, name))
    .filter((name) => statSync(name).isFile())
  for (const place of [log, ...places]) {
    const content = readFileSync(place)
    for (const canary of canaries) assert.ok(!content.includes(canary), `${place} has ${canary}`)
  }
  assert.ok(readFileSync(log, 'utf8').includes('The link to sign in to the dashboard is in'))
})

test(
  'of members of several accounts with one email, who makes the link says which: asked on a terminal, else told ' +
    'how',
  async () => {
    const email = 'both@example.com'
    const links = ['One', 'Two'].map((name) => {
      const created: unknown = folder.tunery('accounts', 'create', '--name', name, '--email', email)
      return created as { account: { id: string }; owner: { id: string } }
    })
    const [one, two] = links as [(typeof links)[0], (typeof links)[0]]
    const { status, stderr } = spawnSync('./tunery', ['sign-in-link', '--email', email], {
      cwd: root,
      env: folder.env,
      encoding: 'utf8',
    })
    assert.equal(status, 2)
    for (const { account } of links)
      assert.match(stderr, new RegExp(`${account.id}  (One|Two), as (One|Two) \\(owner\\)`))
    assert.match(stderr, /--account ID/)
    const chosen = folder.tunery('sign-in-link', '--email', email, '--account', two.account.id)
    assert.equal(chosen.user_id, two.owner.id)
    const terminal = openTerminal(folder.env, './tunery', 'sign-in-link', '--email', email, '--json')
    await until('the question', () => /Which account\?/.test(terminal.shown()))
    terminal.type(one.account.id)
    assert.equal(await terminal.ended, 0)
    assert.match(terminal.shown(), new RegExp(`"user_id":"${one.owner.id}"`))
  },
)

test('on a terminal the first start shows the link, and the second does not', full, async () => {
  const terminal = () => openTerminal(shown.env, process.execPath, 'server/main.ts')
  const first = terminal()
  await until('the link', () => /\/sign-in#[\w-]{43}\s/.test(first.shown()))
  const [, origin, token] = /(http:\/\/[^/\s]+)\/sign-in#([\w-]{43})/.exec(first.shown())!
  assert.equal((await enter(`${origin}/v1`, token!)).status, 200)
  first.press('C-c')
  await first.ended
  const second = terminal()
  await until('the service', () => /Tunery serves/.test(second.shown()))
  second.press('C-c')
  await second.ended
  assert.doesNotMatch(second.shown(), /sign-in#/)
  assert.ok(!readdirSync(shown.dataDir).includes('sign-in-link.txt'))
})
