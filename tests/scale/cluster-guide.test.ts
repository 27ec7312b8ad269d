// The guide 'From one machine to a cluster': each of its blocks in order, on real servers, Postgres, S3, Redis and
// nginx where they are installed. Step 7 is shown by ray.test.ts, step 8 by tests/process/helm.test.ts.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { chmodSync, existsSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import { freePort } from '../../bench/support/free-port.ts'
import { root } from '../../lib/root.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { codeBlocks } from '../support/guide-blocks.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { noNginx, startProxy } from '../support/proxy.ts'
import { redisTest, startRedis } from '../support/redis.ts'
import { s3Credentials, s3Test, startS3 } from '../support/s3.ts'
import { type DataFolder, dataFolder, type RunningServer } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const needs = { skip: postgresTest.skip || redisTest.skip }
const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-cluster-'))
const blocks = codeBlocks('docs/guides/from-one-machine-to-a-cluster.md')
const question = 'code of red?'

/** A machine of the guide, with what its shell has exported. */
interface Machine {
  port: number
  env: NodeJS.ProcessEnv
  folder?: DataFolder
  server?: RunningServer
}
const machines: Machine[] = []
const folders: DataFolder[] = []
let postgres: Awaited<ReturnType<typeof startPostgres>>
let redis: Awaited<ReturnType<typeof startRedis>>
let s3: Awaited<ReturnType<typeof startS3>> | undefined
let stopProxy: (() => Promise<void>) | undefined
let proxyPort: number
let key: string
/** The account's own key, as a client of one machine. */
const at = (index: number): Client => client(machines[index]!.server!.url, key)

before(async () => {
  if (needs.skip) return
  ;[postgres, redis] = await Promise.all([startPostgres({ durable: false }), startRedis()])
  if (!s3Test.skip) s3 = await startS3()
  for (const name of ['etc', 'backups', 'storage', 'bin']) mkdirSync(path.join(scratch, name))
  writeFileSync(path.join(scratch, 'tunery'), `#!/bin/sh\nexec '${path.join(root, 'tunery')}' "$@"\n`)
  chmodSync(path.join(scratch, 'tunery'), 0o755)
  proxyPort = await freePort()
  for (let index = 0; index < 3; index++) {
    const port = await freePort()
    machines.push({
      port,
      env: { ...process.env, ...s3Credentials, TUNERY_PORT: String(port), TUNERY_CHECKPOINT_SECONDS: '1' },
    })
  }
})
after(async () => {
  for (const folder of folders) folder.kill()
  await stopProxy?.()
  await s3?.stop()
  await redis?.stop()
  await postgres?.stop()
  rmSync(scratch, { recursive: true, force: true })
})

/** A block as its reader has it, with the addresses and folders of this test. */
function filledIn(code: string): string {
  let text = code
    .replaceAll('postgres://tunery:…@pg.internal/tunery', postgres.url)
    .replaceAll('redis://redis.internal:6379/0', redis.url)
    .replaceAll(
      's3://models/tunery?endpoint=https://s3.internal:9000',
      s3?.url('cluster') ?? `file://${scratch}/storage`,
    )
    .replaceAll('10.0.0.5:8080', `127.0.0.1:${proxyPort}`)
    .replaceAll(/\/(srv|etc|backups)\//g, `${scratch}/$1/`)
    .replaceAll('I forgot my password.', question)
  for (const [index, { port }] of machines.entries())
    text = text.replaceAll(`10.0.0.1${index + 1}:8000`, `127.0.0.1:${port}`)
  return text.replaceAll(/10\.0\.0\.\d+/g, '127.0.0.1')
}

let position = 0
function next(expected: RegExp): string {
  const block = blocks[position++] ?? assert.fail(`the guide has no more blocks, but for ${expected}`)
  assert.match(block.code, expected, `line ${block.line} of the guide`)
  return filledIn(block.code)
}
const shell = (code: string, env: NodeJS.ProcessEnv) =>
  promisify(execFile)('bash', ['-euo', 'pipefail', '-c', code], { cwd: scratch, env, maxBuffer: 1 << 26 })

/** Runs the guide's next block, which has this, in the shell of a machine. Resolves with what it printed. */
async function run(expected: RegExp, machine = machines[0]!): Promise<string> {
  const code = next(expected)
  const programs = globSync('/usr/lib/postgresql/*/bin').sort().at(-1)
  const { server, env } = machine
  const PATH = `${programs}:${process.env.PATH}`
  const { stdout } = await shell(code, { ...env, PATH, TUNERY_URL: server?.url, TUNERY_KEY: key })
  return stdout
}

/** The same for a block that ends with `npm start`: its settings are the machine's from then on. */
async function start(expected: RegExp, machine: Machine): Promise<void> {
  const code = next(expected)
  assert.match(code, /^npm start$/m)
  await startWith(code, machine)
}
async function startWith(code: string, machine: Machine): Promise<void> {
  const before = { ...machine.env, PATH: process.env.PATH }
  const { stdout } = await shell(`${code.replace(/^npm start$/m, '')}\nenv -0`, before)
  const lines = stdout.split('\0').filter((line) => line.includes('='))
  machine.env = Object.fromEntries(
    lines.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  )
  const variables = Object.entries(machine.env).filter(([name]) => /^(TUNERY|AWS)_/.test(name)) as [string, string][]
  machine.folder = dataFolder('cluster', Object.fromEntries(variables), { dataDir: machine.env.TUNERY_DATA_DIR! })
  mkdirSync(machine.env.TUNERY_DATA_DIR!, { recursive: true })
  folders.push(machine.folder)
  machine.server = await machine.folder.start()
}
async function stop(machine: Machine): Promise<void> {
  assert.equal(await machine.server!.end('SIGTERM'), 0)
}

/** What the model from before says, through the name that it has. */
async function answer({ api }: Client): Promise<string> {
  const messages = [{ role: 'user', content: question }]
  const { status, body } = await api('POST', '/chat/completions', {
    model: 'tickets',
    messages,
    max_tokens: 8,
    temperature: 0,
  })
  assert.equal(status, 200, JSON.stringify(body))
  return body.choices[0].message.content
}
const requestsOf = async ({ api }: Client): Promise<number> => (await api('GET', '/usage')).body.total.requests

let saidBefore: string
let dataset: string
const acknowledged: string[] = []

test('steps 2 and 3: a separate key file, Postgres and S3; the model answers as before', needs, async (t) => {
  if (s3Test.skip) t.diagnostic(`${s3Test.skip}; a folder stands for it`)
  const [first] = machines as [Machine]
  await startWith(filledIn('export TUNERY_DATA_DIR=/srv/tunery'), first)
  key = first.folder!.key()
  const model = await at(0).trainColourModel()
  assert.equal((await at(0).api('POST', '/deployments', { name: 'tickets', model })).status, 201)
  saidBefore = await until('the deployment', () => answer(at(0)))
  await stop(first)
  await start(/install .*secret\.key/, first)
  assert.deepEqual(JSON.parse(await run(/health\/ready/)), JSON.parse(next(/"ok"/)))
  assert.equal(await answer(at(0)), saidBefore)

  await run(/tunery backup/)
  const requests = await requestsOf(at(0))
  await stop(first)
  assert.match(await run(/migrate-data --to-database/), /Moved and verified/)
  await start(/TUNERY_DATABASE_URL/, first)
  const shown = await run(/deployments list/)
  assert.match(shown, /tickets/)
  assert.equal(await answer(at(0)), saidBefore)
  assert.ok((await requestsOf(at(0))) >= requests, 'usage is kept')
  assert.match(await run(/pg_dump/), /TABLE DATA public models/)
})

test(
  'step 4: three servers behind a proxy; a job of one trains elsewhere while that one restarts',
  needs,
  async (t) => {
    if (noNginx) t.diagnostic(noNginx)
    const [first, second, third] = machines as [Machine, Machine, Machine]
    await start(/TUNERY_HOST=10\.0\.0\.12/, second)
    third.env = { ...second.env, TUNERY_PORT: String(third.port) }
    await start(/TUNERY_HOST=10\.0\.0\.13/, third)
    const servers = machines.map(({ port }) => `127.0.0.1:${port}`)
    stopProxy = await startProxy(next(/proxy_buffering off/), proxyPort, servers, path.join(scratch, 'nginx'))
    await until('three servers', async () =>
      (await shell(filledIn(blocks[position]!.code), second.env)).stdout.includes('3'),
    )
    assert.equal(await run(/tunery_servers/, second), next(/tunery_servers 3/))
    for (const index of [0, 1, 2]) assert.equal(await answer(at(index)), saidBefore)
    const closed = await fetch(`http://127.0.0.1:${proxyPort}/metrics`)
    if (!noNginx) assert.equal(closed.status, 404)

    dataset = (await at(0).upload(colourRows(16))).body.id
    await stop(first)
    const training_config = { epochs: 2, batch_size: 4 }
    const request = { model_id: tiny, dataset_id: dataset, config: { training_config } }
    const { id } = (await at(1).api('POST', '/fine-tuning/jobs', request)).body
    const job = await at(1).untilEnded(id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    await startWith('', first)
    assert.match(await run(/until curl/), /ok/)
    const messages = [{ role: 'user', content: question }]
    assert.equal(
      (await at(0).api('POST', '/chat/completions', { model: job.model, messages, max_tokens: 2 })).status,
      200,
    )
  },
)

test('step 4: a server killed under load loses nothing acknowledged, and its job ends elsewhere', needs, async () => {
  const proxy = client(`http://127.0.0.1:${proxyPort}/v1`, key)
  const training_config = { epochs: 10, batch_size: 1, learning_rate: 0.001 }
  const request = { model_id: tiny, dataset_id: dataset, config: { training_config } }
  const { id } = (await proxy.api('POST', '/fine-tuning/jobs', request)).body
  const runs = (machine: Machine) => existsSync(path.join(machine.env.TUNERY_DATA_DIR!, 'runs', id))
  const killed = await until('a server to train', () => machines.find(runs))
  const requests = await requestsOf(proxy)
  let answered = 0
  let over = false
  /** As clients with retries: only a success counts. */
  const load = async (worker: number) => {
    for (let n = 0; !over; n++) {
      const name = `${worker}-${n}`
      const key = await proxy.api('POST', '/keys', { name }).catch(() => undefined)
      if (key?.status === 201) acknowledged.push(name)
      const said = await answer(proxy).catch(() => undefined)
      if (said !== undefined) answered++
    }
  }
  const workers = [1, 2].map(load)
  await until('some load', () => acknowledged.length > 10)
  await killed.server!.end('SIGKILL')
  const then = acknowledged.length
  await until('the load to continue', () => acknowledged.length > then + 10)
  over = true
  await Promise.all(workers)
  const left = machines.findIndex((machine) => machine !== killed)
  const job = await at(left).untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  await startWith('', killed)
  for (const index of [0, 1, 2]) {
    const names = await keysOf(at(index))
    assert.deepEqual(
      acknowledged.filter((name) => !names.has(name)),
      [],
    )
  }
  await until('the usage of all answers', async () => (await requestsOf(at(left))) >= requests + answered)
})

/** The names of all keys, of every page. */
async function keysOf({ api }: Client): Promise<Set<string>> {
  const names = new Set<string>()
  for (let after = ''; ; ) {
    const { items } = (await api('GET', `/keys?limit=100${after}`)).body as { items: { id: string; name: string }[] }
    for (const { name } of items) names.add(name)
    if (items.length < 100) return names
    after = `&after=${items.at(-1)!.id}`
  }
}

test(
  'steps 5, 6 and 9: a revoked key is refused everywhere at once; replicas answer; metrics tell',
  needs,
  async () => {
    const redisBlock = next(/TUNERY_REDIS_URL/)
    for (const machine of machines) {
      await stop(machine)
      await startWith(redisBlock, machine)
    }
    const seen = await run(/tunery_redis_away/)
    assert.equal(seen, next(/^tunery_redis_away 0/))
    const key = (await at(0).api('POST', '/keys', { name: 'revoked' })).body
    const other = (index: number) => client(machines[index]!.server!.url, key.key).api('GET', '/models')
    for (const index of [0, 1, 2]) assert.equal((await other(index)).status, 200)
    assert.ok((await at(1).api('DELETE', `/keys/${key.id}`)).status < 300)
    for (const index of [0, 1, 2]) assert.equal((await other(index)).status, 401)

    await run(/deployments scale tickets --min 1/)
    for (const index of [0, 1, 2])
      await until('a replica', async () => {
        const { body } = await at(index).api('GET', '/deployments/tickets/scaling')
        return JSON.stringify(body.replicas).includes('"ready"')
      })
    for (const index of [0, 1, 2]) assert.equal(await answer(at(index)), saidBefore)
    await run(/--off/)
    assert.match(await run(/queue_oldest_seconds/), /^tunery_servers 3$/m)
  },
)

test('step 10: back to one machine, with all of it', needs, async () => {
  const [first] = machines as [Machine]
  const names = await keysOf(at(0))
  const requests = await requestsOf(at(0))
  for (const machine of machines) await stop(machine)
  assert.match(await run(/--to-data-dir/), /Moved and verified/)
  await start(/^unset/, first)
  assert.equal(first.env.TUNERY_DATABASE_URL, undefined)
  assert.equal(await until('the deployment', () => answer(at(0)).catch(() => '')), saidBefore)
  assert.deepEqual(await keysOf(at(0)), names)
  assert.ok((await requestsOf(at(0))) >= requests)
  assert.ok(readFileSync(first.env.TUNERY_SECRET_KEY_FILE!).length >= 32)
  const checked = await run(/tunery check/)
  assert.match(checked, /is whole/)
  assert.equal(position, blocks.length, 'every block was run')
})
