// What is taken away ends what runs by it, on one server and on two: a key, a session, a role, a link, an account.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import type http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { Client as McpClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import type { Role } from '../../contract/scopes.ts'
import { serveHttp } from '../../mcp/index.ts'
import { allowed } from '../support/allowed-time.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { children, type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'
import { installColourModel } from '../support/trained.ts'
import { type FakeUpstream, startFakeUpstream } from '../support/upstream.ts'
import { addMember, browserAt, linkToken, newAccount, signed } from './members.ts'

const slow = 'far/slow'
const messages = [{ role: 'user', content: 'x' }]

let upstream: FakeUpstream
/** Answers that the upstream has begun and will not end by itself. */
const open = new Set<http.ServerResponse>()
let upstreams: string
before(async () => {
  upstream = await startFakeUpstream((_path, body, response) => {
    open.add(response)
    response.once('close', () => open.delete(response))
    if (!body.stream) return
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const event = { id: 'x', object: 'chat.completion.chunk', created: 1, model: slow }
    const delta = { ...event, choices: [{ index: 0, delta: { content: 'a' }, finish_reason: null }] }
    response.write(`data: ${JSON.stringify(delta)}\n\n`)
  })
  upstreams = JSON.stringify([{ model: slow, url: upstream.url, kind: 'openai' }])
})
after(() => upstream.stop())

/** Begins an answer that does not end, and resolves once the upstream has the request. */
async function begin(url: string, headers: Record<string, string>, body: object, route = '/chat/completions') {
  const count = open.size
  const ended = fetch(url + route, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  }).then(async (response) => ({ text: await response.text(), at: Date.now() }))
  const early = ended.then(({ text }) => assert.fail(text))
  early.catch(() => {})
  await Promise.race([until('the upstream to have the request', () => open.size > count), early])
  return { ended }
}
/** Files of uploads under way. */
const partsIn = (dataDir: string) =>
  readdirSync(dataDir, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.part'))

interface Running {
  ended: Promise<{ text: string; at: number }>
}
async function assertEnds(running: Running[], code: string, end: () => unknown): Promise<void> {
  await end()
  const from = Date.now()
  for (const { text, at } of await Promise.all(running.map(({ ended }) => ended))) {
    assert.match(text, new RegExp(`"code":"${code}"`))
    assert.ok(at - from < 1000, `it took ${at - from} ms`)
  }
  await until('the upstream to be free', () => open.size === 0)
}

describe('one server', () => {
  let folder: DataFolder
  let server: RunningServer
  let owner: Client
  let model: string
  before(async () => {
    folder = dataFolder('attack-withdrawn', {
      TUNERY_UPSTREAMS: upstreams,
      TUNERY_SHARE_LINKS: 'on',
      TUNERY_DEFAULT_TIER: 'enterprise',
      TUNERY_CHECKPOINT_SECONDS: '1',
      TUNERY_TRUSTED_PROXIES: '127.0.0.1',
    })
    server = await folder.start()
    owner = client(server.url, folder.key())
    model = await installColourModel({ dataDir: folder.dataDir })
  })
  after(() => folder.remove())

  test('a running answer ends within a second of its key, account, session, role and shared link', async () => {
    const stream = { model: slow, messages, stream: true }
    const { url } = server
    const newKey = async (body: object = {}) => (await owner.api('POST', '/keys', { name: 'k', ...body })).body
    const revoked = await newKey()
    const answers = [
      await begin(url, signed(revoked.key), stream),
      await begin(url, signed(revoked.key), { model: slow, messages }),
      await begin(url, signed(revoked.key), { model: slow, input: 'x', stream: true }, '/responses'),
    ]
    await assertEnds(answers, 'invalid_api_key', () => owner.api('DELETE', `/keys/${revoked.id}`))

    const lowered = await addMember(owner, url, 'member')
    await assertEnds([await begin(url, signed(lowered.key), stream)], 'insufficient_permissions', () =>
      owner.api('PUT', `/members/${lowered.id}`, { role: 'viewer' }),
    )

    const page = browserAt(server)
    await page.send('POST', '/sign-in/link', { token: linkToken(folder.tunery('sign-in-link').link!) })
    const { session } = (await page.send('GET', '/session')).body
    const headers = { cookie: page.cookie(), 'x-csrf-token': page.csrf() }
    const elsewhere = browserAt(server)
    await elsewhere.send('POST', '/sign-in/link', { token: linkToken(folder.tunery('sign-in-link').link!) })
    await elsewhere.send('GET', '/session')
    await assertEnds([await begin(url, headers, stream)], 'session_ended', () =>
      elsewhere.send('DELETE', `/sessions/${session.id}`),
    )

    // The command line is another process, which tells the server nothing.
    const account = newAccount(folder, 'soon suspended')
    await assertEnds([await begin(url, signed(account.key), stream)], 'account_suspended', () =>
      folder.tunery('accounts', 'suspend', account.id),
    )
  })

  test('an upload ends within a second of its key, and gives back the space that it announced', async () => {
    for (const route of ['/datasets/', '/files', '/fine-tuning/models']) {
      const used = (await owner.api('POST', '/keys', { name: route })).body
      const upload = connect(new URL(server.url).origin)
      upload.socket.write(
        `POST /v1${route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${used.key}\r\n` +
          'Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n' +
          `--b\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n`,
      )
      const drip = setInterval(() => upload.socket.write(`${'x'.repeat(1000)}\n`), 50)
      try {
        await until('it to be stored', () => partsIn(folder.dataDir).length > 0)
        await owner.api('DELETE', `/keys/${used.id}`)
        const from = Date.now()
        await until('nothing of it to be left', () => partsIn(folder.dataDir).length === 0)
        assert.ok(Date.now() - from < allowed(1000), `${route}: ${Date.now() - from} ms`)
        // Later, as it comes once a part of what still arrives has been read: else many clients would never see it.
        await until('an answer', () => upload.text)
        assert.match(upload.text, /^HTTP\/1\.1 401 /)
      } finally {
        clearInterval(drip)
        upload.socket.destroy()
      }
    }
  })

  test('answers of an evaluation and of a batch end within seconds of the suspension of their account', async () => {
    const account = newAccount(folder, 'evaluates')
    const by = client(server.url, account.key)
    const dataset = (await by.upload(colourRows(16))).body.id
    const graders = [
      { type: 'string_check', name: 's', input: '{{sample.output_text}}', reference: 'a', operation: 'eq' },
    ]
    assert.equal((await by.api('POST', '/evaluations', { model: slow, dataset, graders })).status, 201)
    const line = (custom_id: string) =>
      JSON.stringify({ custom_id, method: 'POST', url: '/v1/chat/completions', body: { model: slow, messages } })
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([['a', 'b', 'c'].map(line).join('\n')]), 'requests.jsonl')
    const input_file_id = (await by.api('POST', '/files', form)).body.id
    const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    assert.equal((await by.api('POST', '/batches', batch)).status, 200)
    await until('eight answers and three', () => open.size === 11)
    folder.tunery('accounts', 'suspend', account.id)
    const from = Date.now()
    await until('the upstream to be free', () => open.size === 0)
    assert.ok(Date.now() - from < 5000, `it took ${Date.now() - from} ms`)
  })

  test('an answer by a shared link ends with the link, and with the model that it leads to', async () => {
    const shares = `/fine-tuning/models/${model}/shares`
    let addresses = 0
    const { body: share } = await owner.api('POST', shares, {})
    const ask = (token: string, stream: boolean) => {
      const body = JSON.stringify({ token, messages, stream })
      const headers = { 'content-type': 'application/json', 'x-forwarded-for': `192.0.2.${++addresses}` }
      return fetch(`${server.url}/share/chat`, { method: 'POST', headers, body })
    }
    const first = await ask(linkToken(`http://x${share.link}`), false)
    assert.equal(first.status, 200, await first.text())
    const [engine] = children(server.pid, 'engine/main.ts')
    for (const stream of [true, false]) {
      const { body } = await owner.api('POST', shares, {})
      // An engine that stands still: the answer has begun and does not end by itself.
      process.kill(engine!, 'SIGSTOP')
      try {
        let at = 0
        const ended = ask(linkToken(`http://x${body.link}`), stream).then(async (response) => {
          const text = await response.text()
          at = Date.now()
          return text
        })
        await until('the question to be counted', async () => {
          const { items } = (await owner.api('GET', shares)).body
          return items.find(({ id }: { id: string }) => id === body.id).requests_today === 1
        })
        await owner.api('DELETE', `${shares}/${body.id}`)
        const from = Date.now()
        assert.match(await ended, /"code":"link_invalid"/)
        assert.ok(at - from < 1000, `it took ${at - from} ms`)
      } finally {
        process.kill(engine!, 'SIGCONT')
      }
    }
  })

  test('a session of `mcp --http` whose key was revoked reads and does nothing more', async () => {
    const mcp = await serveHttp({ url: server.url, version: '1', port: 0, log: () => {} })
    try {
      const { body } = await owner.api('POST', '/keys', { name: 'assistant' })
      const headers = signed(body.key)
      const assistant = new McpClient({ name: 'attack', version: '1' })
      await assistant.connect(
        new StreamableHTTPClientTransport(new URL(mcp.url), { requestInit: { headers } }) as never,
      )
      const { tools } = await assistant.listTools()
      const { resources } = await assistant.listResources()
      const reading = tools.filter(
        ({ annotations, inputSchema }) => annotations?.readOnlyHint && !inputSchema.required?.length,
      )
      assert.ok(reading.length > 3)
      const call = async (name: string) =>
        (await assistant.callTool({ name, arguments: {} }).catch(() => ({ isError: true }))).isError === true
      assert.equal(await call(reading[0]!.name), false)
      await owner.api('DELETE', `/keys/${body.id}`)
      for (const { name } of reading) assert.equal(await call(name), true, name)
      for (const { uri } of resources) {
        const { contents } = await assistant.readResource({ uri }).catch(() => ({ contents: [] }))
        assert.ok(!/(ds|job|mdl|acc|usr)_[0-9A-Za-z]{20}/.test(JSON.stringify(contents)), uri)
      }
      await assistant.close()
    } finally {
      await mcp.close()
    }
  })

  test('a training of a suspended account stops at a checkpoint, and resumes once the account is back', async () => {
    const account = newAccount(folder, 'trains')
    const trains = client(server.url, account.key)
    const dataset_id = (await trains.upload(colourRows(800))).body.id
    const training_config = { epochs: 50, batch_size: 1 }
    const { body: job } = await trains.api('POST', '/fine-tuning/jobs', {
      model_id: tiny,
      dataset_id,
      config: { training_config },
    })
    await trains.untilEvent(job.id, ({ type }) => type === 'checkpoint')
    assert.equal(children(server.pid, 'trainer.cli.train').length, 1)
    folder.tunery('accounts', 'suspend', account.id)
    await until('its trainer to end', () => children(server.pid, 'trainer.cli.train').length === 0)
    folder.tunery('accounts', 'reinstate', account.id)
    const stopped = await trains.untilEvent(job.id, ({ data }) => data?.code === 'account_suspended')
    assert.match(stopped.message, /^The account is suspended, so the job waits; it resumes after step \d+\.$/)
    await trains.untilEvent(job.id, ({ data }) => data?.resumed_from_step === stopped.data!.step)
    await trains.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
  })
})

describe('two servers on Postgres', postgresTest, () => {
  const shared = mkdtempSync(path.join(os.tmpdir(), 'tunery-rights-shared-'))
  let postgres: Awaited<ReturnType<typeof startPostgres>>
  let folders: DataFolder[] = []
  let urls: [string, string]
  let key: string
  let owners: [Client, Client]
  before(async () => {
    if (postgresTest.skip) return
    postgres = await startPostgres()
    const settings = {
      TUNERY_DATABASE_URL: postgres.url,
      TUNERY_STORAGE_URL: `file://${shared}`,
      TUNERY_SECRET_KEY_FILE: path.join(shared, 'secret.key'),
      TUNERY_UPSTREAMS: upstreams,
      TUNERY_DEFAULT_TIER: 'enterprise',
      TUNERY_MAX_KEYS: '40',
    }
    folders = ['one', 'two'].map((name) => dataFolder(`rights-${name}`, settings))
    const servers: RunningServer[] = []
    for (const folder of folders) servers.push(await folder.start())
    urls = servers.map(({ url }) => url) as [string, string]
    key = folders[0]!.key()
    owners = urls.map((url) => client(url, key)) as [Client, Client]
  })
  after(async () => {
    for (const folder of folders) folder.remove()
    await postgres?.stop()
    rmSync(shared, { recursive: true, force: true })
  })

  test('what one server takes away ends the answers of the other within a second', async () => {
    const [one, two] = urls
    const [owner] = owners
    const stream = { model: slow, messages, stream: true }
    const { body: revoked } = await owner.api('POST', '/keys', { name: 'k' })
    const running = [
      await begin(two, signed(revoked.key), stream),
      await begin(two, signed(revoked.key), { model: slow, messages }),
      await begin(one, signed(revoked.key), stream),
    ]
    await assertEnds(running, 'invalid_api_key', () => owner.api('DELETE', `/keys/${revoked.id}`))
    const member = await addMember(owner, two, 'member')
    await assertEnds([await begin(two, signed(member.key), stream)], 'insufficient_permissions', () =>
      owner.api('PUT', `/members/${member.id}`, { role: 'viewer' }),
    )
    const gone = await addMember(owner, two, 'member')
    await assertEnds([await begin(two, signed(gone.key), stream)], 'invalid_api_key', () =>
      owner.api('DELETE', `/members/${gone.id}`),
    )
    const account = newAccount(folders[0]!, 'soon suspended')
    await assertEnds([await begin(two, signed(account.key), stream)], 'account_suspended', () =>
      folders[0]!.tunery('accounts', 'suspend', account.id),
    )
  })

  test(
    'two servers at once leave an owner, keep the bound of keys, use a link once, and never grant after a ' +
      'demotion',
    async () => {
      const [one, two] = urls
      const account = newAccount(folders[0]!, 'raced')
      const first = client(one, account.key)
      const { body: me } = await first.api('GET', '/user/profile')
      for (let round = 0; round < 5; round++) {
        const second = await addMember(first, two, 'owner')
        // Each demotes the other.
        const answers = await Promise.all([
          first.api('PUT', `/members/${second.id}`, { role: 'admin' }),
          second.api('PUT', `/members/${me.id}`, { role: 'admin' }),
        ])
        assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 403])
        const { items } = (await first.api('GET', '/members?limit=100')).body
        const left = items.filter(({ role }: { role: Role }) => role === 'owner')
        assert.equal(left.length, 1)
        if (left[0].id !== me.id)
          assert.equal((await second.api('PUT', `/members/${me.id}`, { role: 'owner' })).status, 200)
        assert.equal((await first.api('DELETE', `/members/${second.id}`)).status, 200)
      }
      // An admin who grants as fast as they can, and is an admin no more.
      const admin = await addMember(first, two, 'admin')
      let demoted = false
      const granted: { begun: boolean; status: number }[] = []
      const granting = (async () => {
        for (let count = 0; count < 400 && granted.filter(({ begun }) => begun).length < 10; count++) {
          const begun = demoted
          const { status } = await admin.api('POST', '/members', { name: 'M', role: 'admin' })
          granted.push({ begun, status })
        }
      })()
      await until('some grants', () => granted.length > 5)
      await first.api('PUT', `/members/${admin.id}`, { role: 'viewer' })
      demoted = true
      await granting
      assert.ok(granted.some(({ status }) => status === 201))
      assert.ok(
        granted.filter(({ begun }) => begun).every(({ status }) => status === 403),
        'none after the demotion was answered',
      )

      const many = await Promise.all(
        Array.from({ length: 60 }, (_, index) =>
          client(urls[index % 2]!, account.key).api('POST', '/keys', { name: 'k' }),
        ),
      )
      const active = (await first.api('GET', '/keys?limit=100')).body.items.length
      assert.equal(active, 40, many.map(({ status }) => status).join())

      const { body: invited } = await owners[0].api('POST', '/invitations', { name: 'Once', role: 'viewer' })
      const token = linkToken(invited.link)
      const used = await Promise.all(
        Array.from({ length: 8 }, (_, index) =>
          browserAt({ url: urls[index % 2]! }).send('POST', '/sign-in/invitation', { token }),
        ),
      )
      assert.equal(used.filter(({ status }) => status === 200).length, 1)
    },
  )
})
