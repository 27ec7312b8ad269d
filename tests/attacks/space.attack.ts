// One account reaches for the disk of all: uploads that withhold their end, announce too much or nothing, drip or stand
// still, parts beyond what was announced, many at once beside a quota, rows that no file has. The disk keeps what it
// must, others find room, and nothing of what was refused is left.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, afterEach, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { smallDiskTest, startOnSmallDisk } from '../support/small-disk.ts'
import { tiny } from '../support/tiny.ts'

const disk_mb = 600
const kept_mb = 100
const quota_mb = 300
const narrow_mb = 20

let server: Awaited<ReturnType<typeof startOnSmallDisk>>
let hostileKey: string
let honest: Client
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-space-'))
before(async () => {
  if (smallDiskTest.skip) return
  const tier = { requests_per_minute: null, requests_per_day: null, max_concurrent: null }
  const plans = path.join(folder, 'plans.json')
  const tiers = [
    { ...tier, id: 'free', name: 'Free', max_storage_mb: 100_000 },
    { ...tier, id: 'small', name: 'Small', max_storage_mb: quota_mb },
    { ...tier, id: 'narrow', name: 'Narrow', max_storage_mb: narrow_mb },
  ]
  writeFileSync(plans, JSON.stringify({ tiers }))
  server = await startOnSmallDisk(disk_mb, {
    TUNERY_MIN_FREE_DISK_MB: String(kept_mb),
    TUNERY_MAX_DATASET_MB: '150',
    TUNERY_PLANS_FILE: plans,
    TUNERY_STORE_COMPLETIONS: '30',
    TUNERY_DEFAULT_TIER: 'free',
  })
  hostileKey = server.key
  honest = client(server.url, server.tunery('accounts', 'create', '--name', 'honest').key)
})
after(async () => {
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

type Connection = ReturnType<typeof connect>
const opened: Connection[] = []
afterEach(async () => {
  if (!server) return
  for (const { socket } of opened.splice(0)) socket.destroy()
  await until('nothing of them to be left', () => partsLeft().length === 0)
})

const partsLeft = () =>
  ['datasets', 'files', 'runs', 'uploads'].flatMap((name) => {
    const under = path.join(server.data, name)
    try {
      const names = readdirSync(under, { recursive: true, encoding: 'utf8' }).map((file) => path.join(under, file))
      return names.filter((file) => file.endsWith('.part') && statSync(file, { throwIfNoEntry: false })?.isFile())
    } catch {
      return []
    }
  })

const row = `${colourRows(16)}\n`
/** Begins an upload: `announced` bytes, or null for a body in chunks of unknown length. */
function begin(route: string, announced: number | null, key = hostileKey): Connection {
  const connection = connect(new URL(server.url).origin)
  opened.push(connection)
  const length = announced === null ? 'Transfer-Encoding: chunked' : `Content-Length: ${announced}`
  const part = route.includes('/parts') ? 'data' : 'file'
  connection.socket.write(
    `POST /v1${route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n` +
      `Content-Type: multipart/form-data; boundary=b\r\n${length}\r\n\r\n`,
  )
  const field = route === '/files' ? `--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n` : ''
  const head = `${field}--b\r\nContent-Disposition: form-data; name="${part}"; filename="f.jsonl"\r\n\r\n${row}`
  connection.socket.write(announced === null ? chunk(head) : head)
  return connection
}
const chunk = (text: string) => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`

/** Sends this much of a body as fast as the service takes it, or until it refuses. */
async function send(connection: Connection, megabytes: number, chunked: boolean): Promise<void> {
  const piece = row.repeat(Math.floor(1e6 / row.length))
  const text = chunked ? chunk(piece) : piece
  for (let sent = 0; sent < megabytes && !connection.text && !connection.closed; sent++)
    if (!connection.socket.write(text))
      await Promise.race([
        new Promise((resolve) => connection.socket.once('drain', resolve)),
        until('an answer', () => connection.text || connection.closed || connection.socket.writableLength === 0),
      ])
}

const refusedWith = (connection: Connection) => /"code":"(\w+)"/.exec(connection.text)?.[1]
const settled = () => opened.filter(({ text, closed }) => text || closed).length + partsLeft().length >= opened.length

for (const route of ['/datasets/', '/files', '/fine-tuning/models'])
  test(`six uploads to ${route} that announce all space leave room for another account`, smallDiskTest, async () => {
    for (let each = 0; each < 6; each++) begin(route, 140e6)
    // What is left between them too.
    for (let bytes = 100e6; bytes > 1e6; bytes /= 2) begin(route, Math.floor(bytes))
    await until('each to be stored or refused', settled)
    const codes = opened.map(refusedWith).filter((code) => code !== undefined)
    assert.ok(codes.length >= 3 && codes.every((code) => code === 'storage_full'), codes.join())
    const { status, body } = await honest.upload(row.repeat(Math.floor(4e7 / row.length)))
    assert.equal(status, 201, JSON.stringify(body))
  })

test('six bodies of unknown length stop before the disk has less than it keeps', smallDiskTest, async () => {
  let least = Number.POSITIVE_INFINITY
  const watch = setInterval(() => {
    least = Math.min(least, server.mbFree())
  }, 20)
  try {
    await Promise.all(Array.from({ length: 6 }, () => send(begin('/datasets/', null), 145, true)))
    await until('at least one to be refused', () => opened.some((each) => refusedWith(each) === 'storage_full'))
    const { status, body } = await honest.upload(row.repeat(Math.floor(4e7 / row.length)))
    assert.equal(status, 201, JSON.stringify(body))
    assert.ok(least > kept_mb, `${least} MB were left`)
  } finally {
    clearInterval(watch)
  }
})

test('uploads in parts are counted with all that they have, however little they announced', smallDiskTest, async () => {
  const key = server.tunery('accounts', 'create', '--name', 'parts', '--tier', 'small').key as string
  const small = client(server.url, key)
  const announce = (bytes: number) =>
    small.api('POST', '/uploads', { filename: 'f.jsonl', purpose: 'batch', bytes, mime_type: 'application/jsonl' })
  const ids: string[] = []
  try {
    for (let each = 0; each < 6; each++) {
      const { body } = await announce(1)
      ids.push(body.id)
      const form = new FormData()
      form.set('data', new Blob([row.repeat(Math.floor(6e7 / row.length))]), 'part')
      await small.api('POST', `/uploads/${body.id}/parts`, form)
    }
    const { used_bytes, max_bytes } = (await small.api('GET', '/usage/storage')).body
    assert.ok(used_bytes > 1e8, `${used_bytes} bytes are counted, more are stored`)
    assert.ok(used_bytes <= max_bytes, `${used_bytes} bytes are stored`)
    const onDisk = readdirSync(path.join(server.data, 'uploads'), { recursive: true, encoding: 'utf8' })
      .map((name) => statSync(path.join(server.data, 'uploads', name)))
      .reduce((sum, file) => sum + (file.isFile() ? file.size : 0), 0)
    assert.ok(onDisk <= max_bytes, `${onDisk} bytes are on the disk`)
  } finally {
    for (const id of ids) await small.api('POST', `/uploads/${id}/cancel`)
  }
})

test('what comes counts towards the quota while it comes, over all keys of an account', smallDiskTest, async () => {
  const key = server.tunery('accounts', 'create', '--name', 'quota', '--tier', 'small').key as string
  const small = client(server.url, key)
  const keys = [key]
  for (let each = 0; each < 4; each++) keys.push((await small.api('POST', '/keys', { name: 'k' })).body.key)
  for (let each = 0; each < 10; each++) begin('/files', 50e6, keys[each % 5])
  await until('each to be stored or refused', settled)
  const codes = opened.map(refusedWith).filter((code) => code !== undefined)
  assert.ok(codes.length >= 4, `${10 - codes.length} of 50 MB were let in beside a quota of ${quota_mb} MB`)
  assert.ok(codes.every((code) => code === 'storage_quota_exceeded' || code === 'storage_full'))
})

test('an upload that stands still ends, and what it kept is free again', smallDiskTest, async () => {
  const silent = begin('/datasets/', 140e6)
  await until('it to be stored', () => partsLeft().length === 1)
  // Twenty bytes a second are no progress.
  const drip = setInterval(() => silent.socket.write('x'.repeat(20)), 1000)
  try {
    await until('it to be ended', () => silent.closed)
    assert.match(silent.text, /^HTTP\/1\.1 408 /)
    assert.equal(partsLeft().length, 0)
  } finally {
    clearInterval(drip)
  }
})

const megabyte = 'x'.repeat(1e6)
const grader = { type: 'string_check', name: 's', input: '{{item.a}}', reference: 'a', operation: 'eq' }
const evalOf = (more: object = {}) => ({
  data_source_config: { type: 'custom', item_schema: { type: 'object' }, ...more },
  testing_criteria: [grader],
})
async function uploadRows(by: Client, count: number, characters: number): Promise<string> {
  const line = JSON.stringify({ item: { a: 'a', pad: 'y'.repeat(characters) }, sample: { output_text: 'x' } })
  const form = new FormData()
  form.set('purpose', 'evals')
  form.set('file', new Blob([Array.from({ length: count }, () => line).join('\n')]), 'rows.jsonl')
  return (await by.api('POST', '/files', form)).body.id
}
async function runEnded(by: Client, eval_id: string, source: object) {
  const { status, body } = await by.api('POST', `/evals/${eval_id}/runs`, { data_source: { type: 'jsonl', source } })
  if (status !== 201) return { status, body }
  await until('the run to end', async () => {
    const run = (await by.api('GET', `/evals/${eval_id}/runs/${body.id}`)).body
    return ['completed', 'failed'].includes(run.status)
  })
  return { status, body }
}

test(
  'rows that are stored count towards the quota: of datasets, answers, evals and evaluations',
  smallDiskTest,
  async () => {
    const ways: [string, (by: Client, round: number) => Promise<{ status: number }>][] = [
      [
        'rows that are a dozen times as long as their file',
        (by) => {
          const cell = '\x01'.repeat(2000)
          return by.upload(`prompt,completion\n${`"q ${cell}","a ${cell}"\n`.repeat(250)}`, { format: 'csv' }, 'f.csv')
        },
      ],
      [
        'stored completions',
        (by) => {
          const messages = [{ role: 'user', content: 'x', more: megabyte.slice(0, 9e5) }]
          return by.api('POST', '/chat/completions', { model: tiny, max_tokens: 1, store: true, messages })
        },
      ],
      [
        'responses',
        (by) =>
          by.api('POST', '/responses', { model: tiny, max_output_tokens: 16, input: 'x', user: megabyte.repeat(3) }),
      ],
      [
        'evals, each with an Idempotency-Key',
        (by, round) =>
          by.api('POST', '/evals', evalOf({ more: megabyte.repeat(5) }), { 'idempotency-key': `eval-${round}` }),
      ],
      [
        'rows of runs in their requests',
        async (by) => {
          const { id } = (await by.api('POST', '/evals', evalOf())).body
          const item = { a: 'a', pad: megabyte.slice(0, 9e5) }
          const content = Array.from({ length: 5 }, () => ({ item, sample: { output_text: 'x' } }))
          return runEnded(by, id, { type: 'file_content', content })
        },
      ],
      [
        'answers of runs of the same rows',
        async (by, round) => {
          if (round === 0)
            rows = { eval: (await by.api('POST', '/evals', evalOf())).body.id, file: await uploadRows(by, 200, 25_000) }
          return runEnded(by, rows!.eval, { type: 'file_id', id: rows!.file })
        },
      ],
    ]
    let rows: { eval: string; file: string } | undefined
    for (const [name, store] of ways) {
      const narrow = client(server.url, server.tunery('accounts', 'create', '--name', name, '--tier', 'narrow').key)
      const before = server.mbFree()
      for (let round = 0; round < 40; round++) if ((await store(narrow, round)).status >= 400) break
      const { used_bytes, max_bytes } = (await narrow.api('GET', '/usage/storage')).body
      assert.ok(used_bytes > 5e6 && used_bytes <= 1.3 * max_bytes, `${name}: ${used_bytes} bytes are counted`)
      const taken_mb = before - server.mbFree()
      assert.ok(taken_mb < 2 * narrow_mb, `${name}: ${taken_mb} MB of the disk are gone`)
    }
  },
)

// Last: the database keeps what it has grown to.
test('evaluations stop before the disk has less than it keeps, and go on when it has more', smallDiskTest, async () => {
  const hostile = client(server.url, hostileKey)
  const { id } = (await hostile.api('POST', '/evals', evalOf())).body
  const file = await uploadRows(hostile, 2000, 50_000)
  const source = { type: 'jsonl', source: { type: 'file_id', id: file } }
  const runs: string[] = []
  let least = Number.POSITIVE_INFINITY
  for (let refused = 0; refused < 3; ) {
    const { status, body } = await hostile.api('POST', `/evals/${id}/runs`, { data_source: source })
    if (status === 201) runs.push(body.id)
    else refused++
    for (let look = 0; look < 20; look++) {
      least = Math.min(least, server.mbFree())
      await sleep(100)
    }
  }
  assert.ok(least > kept_mb - 20, `${least} MB were left`)
  const states = await Promise.all(runs.map(async (run) => (await hostile.api('GET', `/evals/${id}/runs/${run}`)).body))
  assert.ok(
    states.every(({ status }) => status !== 'failed'),
    states.map(({ status }) => status).join(),
  )
  assert.equal((await honest.api('POST', '/keys', { name: 'k' })).status, 201)
})
