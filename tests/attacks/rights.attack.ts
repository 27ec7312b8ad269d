// Members, keys and strangers reach for more than they were given: a higher role, an address of others, rows and
// answers without their scope, a key that outlives its maker.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { type Role, roleScopes, roles, type Scope, scopes } from '../../contract/scopes.ts'
import { root } from '../../lib/root.ts'
import { withOneKey } from '../../web/lib/once.ts'
import { codeOf } from '../support/browser.ts'
import { type Answer, type Client, client, colourRows, until } from '../support/client.ts'
import { accountChoices, createBrowser, startOpenidProvider } from '../support/openid-provider.ts'
import { contractRoutes } from '../support/routes.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'
import { addMember, browserAt, linkToken, newAccount, signed } from './members.ts'

const people = {
  mallory: { email: 'mallory@elsewhere.example', email_verified: true, name: 'Mallory' },
  victim: { email: 'Victim@corp.example', email_verified: true, name: 'Victoria' },
  newcomer: { email: 'new@corp.example', email_verified: true, name: 'Newton' },
}
const refused = [403, 'insufficient_permissions']
const messages = [{ role: 'user', content: 'x' }]

let provider: Awaited<ReturnType<typeof startOpenidProvider>>
let folder: DataFolder
let server: RunningServer
let owner: Client
let other: Client
let owner_id: string
let owner_key: string
let model: string
before(async () => {
  provider = await startOpenidProvider(people)
  folder = dataFolder('attack-rights', {
    TUNERY_SHARE_LINKS: 'on',
    TUNERY_DEFAULT_TIER: 'enterprise',
    TUNERY_MAX_KEYS: '200',
    TUNERY_TRUSTED_PROXIES: '127.0.0.1',
    TUNERY_OIDC_ISSUER: provider.issuer,
    TUNERY_OIDC_CLIENT_ID: provider.client_id,
    TUNERY_OIDC_CLIENT_SECRET: provider.client_secret,
    TUNERY_OIDC_SIGN_UP: 'corp.example',
  })
  server = await folder.start()
  provider.register(`${server.url}/sign-in/oidc/callback`)
  owner_key = folder.key()
  owner = client(server.url, owner_key)
  owner_id = (await owner.api('GET', '/user/profile')).body.id
  other = client(server.url, newAccount(folder, 'other').key)
  model = await installColourModel({ dataDir: folder.dataDir })
})
after(async () => {
  folder.remove()
  await provider.stop()
})

let addresses = 0
/** Signs in at the provider; `accept`: the member whom they choose where they are asked. */
async function signIn(person: keyof typeof people, accept?: string | null) {
  provider.signInAs(person)
  const browser = createBrowser({ 'x-forwarded-for': `192.0.2.${++addresses}` })
  const { origin } = new URL(server.url)
  const isHere = (address: string) => address.startsWith(origin) && !address.includes('/v1/')
  const end = (await browser.follow(`${server.url}/sign-in/oidc`, isHere)).slice(origin.length)
  const choices = accountChoices(browser, server.url)
  const offered = end === '/choose-account' ? (await choices.list()).body.items : []
  if (accept !== undefined) assert.equal((await choices.choose(accept)).status, 200)
  const session = (await (await browser.open(`${server.url}/session`)).json()) as {
    profile?: { id: string; role: Role; account: { id: string } }
  }
  return { end, offered, profile: session.profile }
}

test('no way makes a member, or whoever has their key or address, more than they are', async () => {
  for (const role of ['admin', 'member', 'viewer'] as const) {
    const able = role === 'admin'
    const mallory = await addMember(owner, server.url, role)
    const self = `/members/${mallory.id}`
    const above = roles.slice(0, roles.indexOf(role))
    const { body: pawn } = await owner.api('POST', '/members', { name: 'Pawn', role: 'viewer' })
    const invited = await mallory.api('POST', '/invitations', { name: 'Pawn', role: 'viewer' })
    assert.equal(invited.status, able ? 201 : 403)
    const ways: [string, Promise<Answer>][] = above.flatMap((higher): [string, Promise<Answer>][] => [
      [`${higher} by PUT self`, mallory.api('PUT', self, { role: higher })],
      [
        `${higher} by PUT self with an address`,
        mallory.api('PUT', self, { role: higher, email: people.mallory.email }),
      ],
      [`${higher} by PUT pawn`, mallory.api('PUT', `/members/${pawn.id}`, { role: higher })],
      [`${higher} by POST`, mallory.api('POST', '/members', { name: 'M', role: higher, email: people.mallory.email })],
      [`${higher} by invitation`, mallory.api('POST', '/invitations', { name: 'M', role: higher })],
      ...(able
        ? [
            [
              `${higher} by PUT invited`,
              mallory.api('PUT', `/members/${invited.body.member.id}`, { role: higher }),
            ] as [string, Promise<Answer>],
          ]
        : []),
    ])
    ways.push(
      ['the address of an owner', mallory.api('PUT', `/members/${owner_id}`, { email: people.mallory.email })],
      ['a weaker owner', mallory.api('PUT', `/members/${owner_id}`, { role: 'viewer' })],
      ['no owner', mallory.api('DELETE', `/members/${owner_id}`)],
    )
    for (const [way, answer] of ways) assert.deepEqual(codeOf(await answer), refused, `${role}: ${way}`)
    const key = await mallory.api('POST', '/keys', { name: 'k', user_id: owner_id, scopes: 'full' })
    assert.deepEqual(codeOf(key), able ? refused : [404, 'member_not_found'], `${role}: a key of an owner`)
    assert.equal((await owner.api('GET', self)).body.role, role)
    if (!able) continue
    // The link says what it may; who accepts it is what it said.
    const page = browserAt(server)
    assert.equal((await page.send('POST', '/sign-in/invitation', { token: linkToken(invited.body.link) })).status, 200)
    assert.equal((await page.send('GET', '/session')).body.profile.role, 'viewer')
  }
  const audit = (await owner.api('GET', '/audit?limit=100')).body.items as { action: string; details: object }[]
  assert.ok(
    !audit.some(({ action, details }) => action === 'member.added' && /"role":"owner"/.test(JSON.stringify(details))),
  )
})

test('a key with the rights over members alone admits nobody: by no role, no address, no link, no key', async () => {
  const narrow = await owner.api('POST', '/keys', {
    name: 'n',
    scopes: ['members:write', 'members:read', 'keys:write'],
  })
  const mallory = client(server.url, narrow.body.key)
  for (const role of roles) {
    const body = { name: 'Mallory', role, email: people.mallory.email }
    assert.deepEqual(codeOf(await mallory.api('POST', '/members', body)), refused, role)
    assert.deepEqual(codeOf(await mallory.api('POST', '/invitations', body)), refused, role)
  }
  assert.equal((await signIn('mallory')).end, '/sign-in?error=oidc_no_account')
  // A key that has all of a viewer's rights may add one, and that is all that the provider lets in.
  const all = [...new Set<Scope>(['members:write', ...roleScopes.viewer])]
  const viewers = client(server.url, (await owner.api('POST', '/keys', { name: 'v', scopes: all })).body.key)
  const added = await viewers.api('POST', '/members', { name: 'M', role: 'viewer', email: people.mallory.email })
  assert.equal(added.status, 201)
  assert.equal((await signIn('mallory', added.body.id)).profile?.role, 'viewer')
  for (const role of ['member', 'admin', 'owner'])
    assert.deepEqual(codeOf(await viewers.api('PUT', `/members/${added.body.id}`, { role })), refused, role)
  // The connection is listed, and its removal ends the session.
  const connections = `/members/${added.body.id}/identities`
  const [identity] = (await owner.api('GET', connections)).body.items
  assert.equal(identity.email, people.mallory.email)
  assert.deepEqual(codeOf(await other.api('DELETE', `${connections}/${identity.id}`)), [404, 'member_not_found'])
  assert.equal((await owner.api('DELETE', `${connections}/${identity.id}`)).status, 200)
  assert.equal((await owner.api('DELETE', `/members/${added.body.id}`)).status, 200)
  assert.equal((await signIn('mallory')).end, '/sign-in?error=oidc_no_account')
})

test('whoever enters an address first captures nobody and keeps nobody out, however it is written', async () => {
  const { email } = people.victim
  const { body: trap } = await other.api('POST', '/members', { name: 'Trap', email: email.toUpperCase() })
  const { body: inside } = await owner.api('POST', '/members', { name: 'Inside', email: email.toLowerCase() })
  const arrived = await signIn('victim', null)
  const ids = arrived.offered.map(({ user_id }: { user_id: string | null }) => user_id)
  assert.deepEqual([arrived.end, new Set(ids)], ['/choose-account', new Set([trap.id, inside.id, null])])
  assert.equal(arrived.profile?.account.id, (await owner.api('GET', '/user/profile')).body.account.id)
  // The address has left the one who had only entered it; the other account has it for nothing.
  assert.equal((await owner.api('GET', `/members/${inside.id}`)).body.email, null)
  assert.equal((await signIn('victim')).profile?.id, arrived.profile?.id)
  // Addresses that look or end alike are others.
  const alike = [
    'victim@corp.example.',
    'victim@xn--crp-fna.example',
    'vıctim@corp.example',
    'victim@ｃorp.example',
    ' victim@corp.example',
  ]
  for (const written of alike) {
    const { status, body } = await other.api('POST', '/members', { name: 'Alike', email: written })
    if (status === 400) continue
    assert.notEqual(body.email, email.toLowerCase())
    assert.equal((await signIn('victim')).profile?.id, arrived.profile?.id, written)
  }
  // An invitation to the address of somebody who is removed again lets in nobody.
  const { body: gone } = await owner.api('POST', '/invitations', {
    name: 'Gone',
    email: people.newcomer.email,
    role: 'admin',
  })
  await owner.api('DELETE', `/members/${gone.member.id}`)
  assert.deepEqual(
    codeOf(await browserAt(server).send('POST', '/sign-in/invitation', { token: linkToken(gone.link) })),
    [400, 'link_invalid'],
  )
  assert.equal((await signIn('newcomer')).profile?.role, 'viewer', 'a new member, as the domain allows')
})

test('a key with one scope gets no row and no answer by any route of the contract', async () => {
  const canary = 'canary-4f1e'
  const row = JSON.stringify({
    messages: [
      { role: 'user', content: canary },
      { role: 'assistant', content: `${canary} yes` },
    ],
  })
  const ids: Record<string, string> = { model_id: model }
  ids.dataset_id = (await owner.upload(Array(16).fill(row).join('\n'))).body.id
  ids.file_id = ids.dataset_id!
  const of_job = {
    model_id: tiny,
    dataset_id: ids.dataset_id,
    config: {
      training_config: { epochs: 1 },
      evaluation_config: { validation_split: 0.25, sample_prompts: ['A prompt of the settings.'] },
    },
  }
  ids.job_id = (await owner.api('POST', '/fine-tuning/jobs', of_job)).body.id
  assert.equal((await owner.untilEnded(ids.job_id!)).status, 'completed')
  const chat = { model: tiny, messages: [{ role: 'user', content: canary }], max_tokens: 4, store: true }
  ids.completion_id = (await owner.api('POST', '/chat/completions', chat)).body.id
  ids.response_id = (
    await owner.api('POST', '/responses', { model: tiny, input: canary, max_output_tokens: 4 })
  ).body.id
  const graders = [
    {
      type: 'string_check',
      name: 'same',
      input: '{{sample.output_text}}',
      operation: 'eq',
      reference: '{{item.answer}}',
    },
  ]
  const evaluation = { model: tiny, dataset: ids.dataset_id, graders, rows: 1 }
  ids.evaluation_id = (await owner.api('POST', '/evaluations', evaluation)).body.id
  await until(
    'the evaluation to end',
    async () => (await owner.api('GET', `/evaluations/${ids.evaluation_id}`)).body.status === 'completed',
  )
  ids.name = (await owner.api('POST', '/deployments', { name: 'canaries', model: tiny })).body.name
  const seen = (text: string) => text.includes(canary)
  const { body: shown } = await owner.api('GET', `/datasets/${ids.dataset_id}/rows`)
  assert.ok(seen(JSON.stringify(shown)), 'who may read rows sees it')

  const job = { model_id: tiny, dataset_id: ids.dataset_id }
  const generating: Record<string, object> = {
    'POST /chat/completions': { model: tiny, messages, max_tokens: 1 },
    'POST /chat/completions/batch': { model: tiny, requests: [{ messages }], max_tokens: 1 },
    'POST /completions': { model: tiny, prompt: 'x', max_tokens: 1 },
    'POST /responses': { model: tiny, input: 'x', max_output_tokens: 1 },
    'POST /evaluations': evaluation,
    'POST /fine-tuning/models/{model_id}/shares': {},
    'POST /fine-tuning/jobs': { ...job, evaluation: ids.evaluation_id },
    'PUT /deployments/{name}': { model: tiny, gate: { evaluation: ids.evaluation_id, min_score: 0.1 } },
  }
  const routes = (await contractRoutes()).filter(({ scope }) => scope !== 'public' && scope !== 'session')
  const fill = (route: string) => route.replace(/\{(\w+)\*?\}/g, (_, name) => encodeURIComponent(ids[name] ?? 'none'))
  const rowsWith: string[] = []
  const answersWith: string[] = []
  for (const scope of scopes) {
    if (scope === 'operator') continue
    const { body } = await owner.api('POST', '/keys', { name: scope, scopes: [scope] })
    const narrow = client(server.url, body.key)
    for (const route of routes.filter(({ method }) => method === 'GET')) {
      const response = await fetch(server.url + fill(route.path), {
        headers: signed(body.key),
        signal: AbortSignal.timeout(20_000),
      })
      if (seen(await response.text())) rowsWith.push(`${scope}: GET ${route.path}`)
    }
    for (const [name, request] of Object.entries(generating)) {
      const [method = '', route = ''] = name.split(' ')
      const { status } = await narrow.api(method, fill(route), request)
      if (status < 300) answersWith.push(`${scope}: ${name}`)
    }
    await owner.api('DELETE', `/keys/${body.id}`)
  }
  // What a scope is for: rows for `datasets:read`, asking for `inference`, its own answers to continue.
  const unexpected = rowsWith.filter((line) => !/^(datasets:read|inference): /.test(line))
  assert.deepEqual(unexpected, [])
  assert.deepEqual(
    rowsWith.filter((line) => line.startsWith('inference')),
    ['inference: GET /responses/{response_id}/input_items'],
  )
  assert.deepEqual(new Set(answersWith.map((line) => line.split(':')[0])), new Set(['inference']))
})

test('a key that expires makes none that lasts, nor does an operator; an account has so many', async () => {
  const at = (minutes: number) => new Date(Date.now() + minutes * 60_000).toISOString()
  const expires_at = at(30)
  const { body } = await owner.api('POST', '/keys', { name: 'short', expires_at })
  const short = client(server.url, body.key)
  for (const later of [undefined, null, at(31), '9999-12-31T23:59:59Z'])
    assert.equal((await short.api('POST', '/keys', { name: 'k', expires_at: later })).status, 400, String(later))
  // Nor by somebody else's hands: a key for another member, an invitation that outlasts it.
  const { body: member } = await owner.api('POST', '/members', { name: 'M', role: 'member' })
  assert.equal((await short.api('POST', '/keys', { name: 'k', user_id: member.id })).status, 400)
  assert.equal((await short.api('POST', '/keys', { name: 'k', expires_at })).status, 201)

  const page = browserAt(server)
  await page.send('POST', '/sign-in/link', { token: linkToken(folder.tunery('sign-in-link').link!) })
  const { profile } = (await page.send('GET', '/session')).body
  const operators = { name: 'k', scopes: ['operator'] }
  for (const until of [undefined, null, at(60 * 24 * 40)])
    assert.equal((await page.send('POST', '/keys', { ...operators, expires_at: until })).status, 400, String(until))
  const address = `/operator/accounts/${profile.account.id}`
  assert.deepEqual(codeOf(await page.send('PUT', address, { status: 'suspended' })), [400, 'in_use'])
  const short_lived = await page.send('POST', '/keys', { ...operators, expires_at })
  assert.equal(short_lived.status, 201)
  const operator = client(server.url, short_lived.body.key)
  assert.deepEqual(codeOf(await operator.api('PUT', address, { status: 'suspended' })), [400, 'in_use'])

  const few = client(server.url, newAccount(folder, 'many keys').key)
  const answers = await Promise.all(Array.from({ length: 210 }, () => few.api('POST', '/keys', { name: 'k' })))
  assert.equal(
    answers.filter(({ status }) => status === 201).length,
    199,
    'with the first one 200, however many at once',
  )
  assert.equal((await owner.api('POST', '/keys', { name: 'k' })).status, 201, 'another account has its own')
})

test('a tensor named like a prototype is refused, and so is a name that shows nothing', async () => {
  const zips = mkdtempSync(path.join(os.tmpdir(), 'tunery-rights-'))
  try {
    const adapter = path.join(folder.dataDir, 'models', model, 'adapter')
    const python = path.join(root, '.local/python/bin/python')
    execFileSync(python, ['-m', 'tests.support.adapter_zips', adapter, zips], { cwd: root })
    const form = new FormData()
    form.set('name', 'proto')
    form.set('file', new Blob([new Uint8Array(readFileSync(path.join(zips, 'proto.zip')))]), 'proto.zip')
    const { status, body } = await owner.api('POST', '/fine-tuning/models', form)
    assert.deepEqual([status, body.error?.code], [400, 'adapter_invalid'])
    assert.match(body.error.message, /__proto__ is not one of a plain LoRA adapter/)
  } finally {
    rmSync(zips, { recursive: true, force: true })
  }
  const invisible = [
    '\u200b',
    '\u200b\u200d',
    '\u2060',
    '\ufeff',
    '\u00ad',
    '\u3164',
    '\u2800',
    '\u180e',
    '\u115f',
    ' \u200b ',
    '\u{e0020}',
  ]
  for (const name of invisible)
    for (const [route, body] of [
      ['/keys', { name }],
      ['/members', { name }],
      ['/invitations', { name }],
      ['/evals', { name, data_source_config: { type: 'custom', item_schema: {} }, testing_criteria: [] }],
    ] as const)
      assert.equal((await owner.api('POST', route, body)).status, 400, `${route} ${escape(name)}`)
  for (const name of invisible) {
    assert.equal((await owner.api('PATCH', `/fine-tuning/models/${model}`, { name })).status, 400, escape(name))
    assert.equal((await owner.upload(colourRows(8), { name })).status, 400, escape(name))
  }
})

test('a double click makes one thing of each kind', async () => {
  const dataset_id = (await owner.upload(colourRows(8))).body.id
  const clicked = withOneKey(fetch)
  let forms = 0
  const click = async (route: string, body: object) => {
    const headers = { ...signed(owner_key), 'content-type': 'application/json', 'idempotency-key': `form-${++forms}` }
    const response = await clicked(server.url + route, { method: 'POST', headers, body: JSON.stringify(body) })
    const answer = (await response.json()) as { id?: string; key?: string }
    assert.ok(response.ok, JSON.stringify(answer))
    return answer
  }
  const graders = [
    { type: 'string_check', name: 'same', input: '{{sample.output_text}}', operation: 'eq', reference: 'x' },
  ]
  const forms_of: [string, object][] = [
    ['/keys', { name: 'twice' }],
    ['/members', { name: 'twice' }],
    ['/invitations', { name: 'twice' }],
    ['/webhooks', { url: 'https://hooks.example.com/', events: ['training.failed'] }],
    ['/evaluations', { model: tiny, dataset: dataset_id, graders, rows: 1 }],
    ['/exports', { model, format: 'gguf' }],
    ['/fine-tuning/jobs', { model_id: tiny, dataset_id }],
    ['/deployments', { name: 'twice', model: tiny }],
    [`/fine-tuning/models/${model}/shares`, {}],
  ]
  for (const [route, body] of forms_of) {
    const together = await Promise.all([click(route, body), click(route, body)])
    const later = await click(route, body)
    const [first] = together
    for (const answer of [...together, later]) assert.deepEqual(answer, first, route)
  }
})
