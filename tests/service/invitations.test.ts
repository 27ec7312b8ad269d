// What the link of an invitation must not be: a way to more than who made it may do.
import assert from 'node:assert/strict'
import http from 'node:http'
import { test } from 'node:test'
import { roleScopes, type Scope } from '../../contract/scopes.ts'
import { SeveralMembers } from '../../server/features/sign-in/index.ts'
import { removeOldTokens } from '../../server/features/sign-in/store.ts'
import { codeOf, newBrowser } from '../support/browser.ts'
import { client } from '../support/client.ts'
import { appOfTests, type TestApp } from '../support/service.ts'

const app = appOfTests()

const tokenOf = ({ body }: { body: { link: string } }) => new URL(body.link).hash.slice(1)
const accept = (token: string) => newBrowser(app).send('POST', '/sign-in/invitation', { token })
const invite = (by: Pick<TestApp, 'api'>, role: string) => by.api('POST', '/invitations', { name: 'Someone', role })
/** A member with a role, and a client with a key of theirs. */
async function addMember(role: string) {
  const { body } = await app.api('POST', '/members', { name: role, role })
  const { key } = (await app.api('POST', '/keys', { name: 'k', user_id: body.id })).body
  return { id: body.id as string, ...client(app.url, key) }
}

test('a key invites only to roles whose scopes it has: a session of the role may do all of them', async () => {
  const { key } = (await app.api('POST', '/keys', { name: 'people', scopes: ['members:write', 'members:read'] })).body
  const narrow = client(app.url, key)
  for (const role of ['viewer', 'member', 'admin', 'owner'])
    assert.deepEqual(codeOf(await invite(narrow, role)), [403, 'insufficient_permissions'], role)
  assert.equal((await app.api('GET', '/invitations')).body.items.length, 0)
  for (const role of ['viewer', 'member', 'admin', 'owner']) assert.equal((await invite(app, role)).status, 201, role)
  const admin = await addMember('admin')
  assert.equal((await invite(admin, 'admin')).status, 201)
  assert.deepEqual(codeOf(await invite(admin, 'owner')), [403, 'insufficient_permissions'])
})

test('no way lets a key grant more than it has: not by a role, not by an address, not by a link', async () => {
  const scopes = ['members:write', 'members:read', 'keys:write']
  const { key, id: key_id } = (await app.api('POST', '/keys', { name: 'narrow', scopes })).body
  const narrow = client(app.url, key)
  const all = roleScopes.viewer.concat(scopes as Scope[]).filter((scope, at, list) => list.indexOf(scope) === at)
  const { key: viewers } = (await app.api('POST', '/keys', { name: 'viewers', scopes: all })).body
  const viewer = client(app.url, viewers)
  const refused = [403, 'insufficient_permissions']
  const members = (await app.api('GET', '/members')).body.items.length

  for (const role of ['viewer', 'member', 'admin', 'owner'])
    for (const email of [null, 'mallory@example.com'])
      assert.deepEqual(codeOf(await narrow.api('POST', '/members', { name: 'M', role, email })), refused, role)
  for (const role of ['member', 'admin', 'owner'])
    assert.deepEqual(codeOf(await viewer.api('POST', '/members', { name: 'M', role })), refused, role)
  assert.equal((await app.api('GET', '/members')).body.items.length, members)

  // Invites a viewer and raises them before the link is used.
  const invited = (await invite(viewer, 'viewer')).body
  const member = `/members/${invited.member.id}`
  for (const role of ['member', 'admin', 'owner'])
    assert.deepEqual(codeOf(await viewer.api('PUT', member, { role })), refused, role)
  assert.equal((await viewer.api('PUT', member, { email: 'v@example.com', name: 'V' })).status, 200)
  // The address of one who may more, the owner whose key it is among them.
  const strong = await addMember('admin')
  for (const id of [strong.id, app.owner.user_id])
    assert.deepEqual(codeOf(await viewer.api('PUT', `/members/${id}`, { email: 'mallory@example.com' })), refused)
  assert.equal((await viewer.api('PUT', `/members/${strong.id}`, { name: 'Renamed' })).status, 200)

  // Somebody else raises the member: the link that the key knows is void from then on.
  const look = () =>
    newBrowser(app).send('POST', '/sign-in/invitation/look', { token: new URL(invited.link).hash.slice(1) })
  assert.equal((await look()).status, 200)
  await app.api('PUT', member, { role: 'admin' })
  assert.deepEqual(codeOf(await look()), [400, 'link_invalid'])
  await app.api('PUT', member, { role: 'viewer' })
  assert.equal((await look()).status, 200)
  // A key that was revoked leaves no link behind.
  const { items } = (await app.api('GET', '/keys?limit=100')).body
  const used = items.find(({ name }: { name: string }) => name === 'viewers').id
  assert.equal((await app.api('DELETE', `/keys/${used}`)).status, 200)
  assert.deepEqual(codeOf(await look()), [400, 'link_invalid'])
  assert.equal((await app.api('DELETE', `/keys/${key_id}`)).status, 200)
})

test(
  'an admin’s link is void once its member is an owner, and anybody’s once they were removed or may invite no ' +
    'more',
  async () => {
    const admin = await addMember('admin')
    const [promoted, left, demoted] = [
      await invite(admin, 'member'),
      await invite(admin, 'member'),
      await invite(app, 'viewer'),
    ]
    await app.api('PUT', `/members/${promoted.body.member.id}`, { role: 'owner' })
    assert.deepEqual(codeOf(await accept(tokenOf(promoted))), [400, 'link_invalid'])
    const look = await newBrowser(app).send('POST', '/sign-in/invitation/look', { token: tokenOf(promoted) })
    assert.deepEqual(codeOf(look), [400, 'link_invalid'])

    await app.api('PUT', `/members/${admin.id}`, { role: 'member' })
    assert.deepEqual(codeOf(await accept(tokenOf(left))), [400, 'link_invalid'])
    await app.api('PUT', `/members/${admin.id}`, { role: 'admin' })
    assert.equal((await newBrowser(app).send('POST', '/sign-in/invitation/look', { token: tokenOf(left) })).status, 200)
    await app.api('DELETE', `/members/${admin.id}`)
    assert.deepEqual(codeOf(await accept(tokenOf(left))), [400, 'link_invalid'])
    const { items } = (await app.api('GET', '/invitations?limit=100')).body
    const open = items.map((item: { id: string }) => item.id)
    assert.deepEqual(
      [left, promoted, demoted].map(({ body }) => open.includes(body.id)),
      [false, false, true],
    )
    // An owner's invitation stays good for whatever became of the member.
    await app.api('PUT', `/members/${demoted.body.member.id}`, { role: 'owner' })
    assert.equal((await accept(tokenOf(demoted))).status, 200)
  },
)

test('a sign-in link is for no member of another account who has entered the same address', async () => {
  const email = 'both@example.com'
  const { body: mine } = await app.api('POST', '/members', { name: 'Mine', email })
  assert.equal((await app.services.signIn.createLink(email)).user.id, mine.id)
  const { body: theirs } = await app.other.api('POST', '/members', { name: 'Theirs', email })
  const several = (error: unknown) =>
    error instanceof SeveralMembers &&
    [mine.id, theirs.id].every((id) => error.members.some((member) => member.id === id))
  await assert.rejects(app.services.signIn.createLink(email), several)
  const { user } = await app.services.signIn.createLink(email, app.owner.account_id)
  assert.equal(user.id, mine.id)
  await assert.rejects(app.services.signIn.createLink(email, 'acc_none'), { code: 'member_not_found' })
})

test('another owner can neither demote nor remove the operator, and thereby become one', async () => {
  const second = await addMember('owner')
  const operator = `/members/${app.owner.user_id}`
  for (const [method, body] of [
    ['PUT', { role: 'member' }],
    ['PUT', { email: 'mine@example.com' }],
    ['DELETE'],
  ] as const)
    assert.deepEqual(codeOf(await second.api(method, operator, body)), [403, 'insufficient_permissions'], method)
  assert.equal((await second.api('PUT', operator, { name: 'Boss' })).status, 200)
  const { user } = await app.services.signIn.createLink()
  assert.equal(user.id, app.owner.user_id)
  assert.equal((await app.api('PUT', operator, { role: 'owner', email: 'boss@example.com' })).status, 200)
})

test('a host that is no address is an error of the request', async () => {
  const { hostname, port } = new URL(app.address)
  for (const host of ['a b', '[', 'x:99999']) {
    const status = await new Promise((resolve) =>
      http.get({ hostname, port, path: '/v1/sign-in', headers: { host } }, (answer) =>
        resolve(answer.resume().statusCode),
      ),
    )
    assert.equal(status, 400, `'${host}'`)
  }
})

test('a withdrawn or expired invitation leaves no member, and its email can be invited again', async () => {
  const email = 'again@example.com'
  const inviteAgain = () => app.api('POST', '/invitations', { name: 'Again', email, role: 'member' })
  const isMember = async (id: string) =>
    (await app.api('GET', '/members?limit=100')).body.items.some((member: { id: string }) => member.id === id)
  const first = (await inviteAgain()).body
  assert.equal((await inviteAgain()).status, 400, 'the email is taken while the invitation is open')
  assert.equal((await app.api('DELETE', `/invitations/${first.id}`)).status, 200)
  assert.equal(await isMember(first.member.id), false)

  const second = (await inviteAgain()).body
  await removeOldTokens(app.db, Date.parse(second.expires_at) + 1)
  assert.equal(await isMember(second.member.id), false)

  // One who got a key meanwhile stays.
  const third = (await inviteAgain()).body
  await app.api('POST', '/keys', { name: 'k', user_id: third.member.id })
  await app.api('DELETE', `/invitations/${third.id}`)
  assert.equal(await isMember(third.member.id), true)
})
