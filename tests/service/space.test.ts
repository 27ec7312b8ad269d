// Space on the disk: uploads together never take more than is free, and nothing of those that are refused is left.
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { appendFile, statfs } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { ApiError } from '../../contract/errors.ts'
import { clientTimeouts } from '../../lib/http/client-timeouts.ts'
import { freeToClaim, writeWhileFree } from '../../server/platform/storage/free-disk.ts'
import { claimDisk } from '../../server/platform/storage/incoming-files.ts'
import { colourRows, until } from '../support/client.ts'
import { connect } from '../support/connection.ts'
import { claimAll } from '../support/disk.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'
import { startFakeUpstream } from '../support/upstream.ts'

const free_mb = async () => {
  const { bavail, bsize } = await statfs(os.tmpdir())
  return Math.floor((Number(bavail) * Number(bsize)) / 1e6)
}

const partsOf = ({ dataDir }: TestApp) => {
  const folder = path.join(dataDir, 'datasets')
  return existsSync(folder) ? readdirSync(folder).length : 0
}

/** An upload that announces so much and withholds its end. */
function beginUpload(app: TestApp, megabytes: number, key = app.key) {
  const connection = connect(app.address)
  connection.socket.write(
    `POST /v1/datasets/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n` +
      `Content-Type: multipart/form-data; boundary=b\r\nContent-Length: ${megabytes * 1e6}\r\n\r\n` +
      `--b\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n${colourRows(16)}\n`,
  )
  return connection
}

test(
  'uploads that withhold their end never claim more than is free, of an account half; what they kept is free ' +
    'again',
  async () => {
    const app = await startApp({ TUNERY_MIN_FREE_DISK_MB: String((await free_mb()) - 3000) })
    const opened: ReturnType<typeof connect>[] = []
    const parts = () => partsOf(app)
    try {
      for (let n = 0; n < 6; n++) opened.push(beginUpload(app, 1000, n < 4 ? app.key : app.otherKey))
      await until('each to be stored or refused', () => parts() + opened.filter(({ text }) => text).length === 6)
      const refused = opened.filter(({ text }) => text)
      assert.equal(refused.length, 4, 'an account takes half at most, so that the other finds room')
      for (const { text } of refused) assert.match(text, /^HTTP\/1\.1 503 .*"code":"storage_full"/s)
      await until('nothing of them to be left', () => parts() === 6 - refused.length)
      const announced = (bytes: number) =>
        app.api('POST', '/uploads', { filename: 'f.jsonl', purpose: 'batch', bytes, mime_type: 'application/jsonl' })
      assert.equal((await announced(1.9e9)).body.error.code, 'storage_full')
      for (const { socket } of opened) socket.destroy()
      await until('their parts to be removed', () => parts() === 0)
      // Who only announces keeps at most half of what is free, so that others find some.
      const uploads = [await announced(1.9e9), await announced(0.5e9)]
      assert.deepEqual(
        uploads.map(({ status }) => status),
        [200, 200],
      )
      const left = await freeToClaim(app.dataDir, app.services.min_free_mb)
      assert.ok(left > 0.9e9 && left < 2.1e9, String(left))
      for (const { body } of uploads) await app.api('POST', `/uploads/${body.id}/cancel`)
      await until(
        'the space to be free',
        async () => (await freeToClaim(app.dataDir, app.services.min_free_mb)) > left + 0.5e9,
      )
    } finally {
      for (const { socket } of opened) socket.destroy()
      await app.stop()
    }
  },
)

test('what came is no longer claimed, more is claimed as it comes, too much is refused at once', async () => {
  const min = (await free_mb()) - 2000
  const claim = await claimDisk(os.tmpdir(), min, 1e6)
  assert.equal(claim.left(), 1e6)
  await claim.count(6e5)
  assert.equal(claim.left(), 4e5)
  await claim.count(1e6)
  assert.ok(claim.left() > 4e6, 'a step ahead')
  await assert.rejects(claimDisk(os.tmpdir(), min, 3e9), /besides what running uploads take/)
  claim.release()
  assert.equal(claim.left(), 0)
  const app = await startApp({ TUNERY_MAX_DATASET_MB: '1' })
  try {
    const connection = beginUpload(app, 5)
    await until('an answer', () => connection.text)
    assert.match(connection.text, /^HTTP\/1\.1 413 .*"code":"file_too_large"/s)
    connection.socket.destroy()
  } finally {
    await app.stop()
  }
})

test('who writes is ended when the disk falls below what is kept free, and does not begin on a full one', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-space-'))
  const file = path.join(folder, 'growing')
  const writing = { folder, min_free_mb: (await free_mb()) - 300, signal: new AbortController().signal }
  const isFull = (error: unknown) => error instanceof ApiError && error.code === 'storage_full'
  const piece = Buffer.alloc(8e6)
  try {
    const ended = writeWhileFree(writing, async (signal) => {
      for (let pieces = 0; !signal.aborted && pieces < 500; pieces++) await appendFile(file, piece)
      signal.throwIfAborted()
    })
    await assert.rejects(ended, isFull)
    const beginning = writeWhileFree(writing, () => assert.fail('it must not begin'))
    await assert.rejects(beginning, isFull)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('a table in conversion and a batch in work wait for space as soon as there is too little', async () => {
  let asked = 0
  const upstream = await startFakeUpstream((_path, _body, response) => {
    asked++
    response.once('close', () => asked--)
  })
  const app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([{ kind: 'openai', model: 'far/slow', url: upstream.url }]),
  })
  const full = () => claimAll(app.dataDir)
  try {
    const row = `"${'question '.repeat(20)}","answer"\n`
    const table = app.upload(`prompt,completion\n${row.repeat(100_000)}`, { format: 'csv' }, 'rows.csv')
    const folder = path.join(app.dataDir, 'datasets')
    const part = () => existsSync(folder) && readdirSync(folder).some((name) => name.endsWith('.part'))
    const isRead = () => app.db.selectFrom('datasets').select('status').executeTakeFirst()
    await until('its rows to be written', async () => (await isRead())?.status === 'preparing' && part())
    let claim = await full()
    const entries = (kind: string) => app.db.selectFrom('queue_entries').selectAll().where('kind', '=', kind).execute()
    await until('it to wait', async () => !part() && (await isRead())?.status === 'preparing')
    claim.release()
    const { body } = await table
    const dataset = await until('its rows', async () => {
      const { body: dataset } = await app.api('GET', `/datasets/${body.id}`)
      return dataset.status === 'ready' && dataset
    })
    assert.equal(dataset.rows, 100_000)

    const form = new FormData()
    form.set('purpose', 'batch')
    const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions' }
    const request = { model: 'far/slow', messages: [{ role: 'user', content: 'hi' }] }
    form.set('file', new Blob([JSON.stringify({ ...line, body: request })]), 'requests.jsonl')
    const file = (await app.api('POST', '/files', form)).body.id
    const created = { input_file_id: file, endpoint: '/v1/chat/completions', completion_window: '24h' }
    assert.equal((await app.api('POST', '/batches', created)).status, 200)
    await until('it to be asked', () => asked === 1)
    claim = await full()
    await until('it to be left', () => asked === 0)
    await until('the batch to wait', async () => (await entries('batch')).every((entry) => entry.run_at > Date.now()))
    claim.release()
  } finally {
    await app.stop()
    upstream.stop()
  }
})

test('a body that drips faster than a stall but never ends has its time; nothing of it is left', async () => {
  const app = await startApp({}, { times: { ...clientTimeouts, body_ms: 4000, body_total_ms: 300 } })
  try {
    const connection = beginUpload(app, 1000)
    const drip = setInterval(() => connection.socket.write('x'.repeat(2000)), 50)
    connection.socket.once('close', () => clearInterval(drip))
    await until('it to be ended', () => connection.closed)
    assert.match(connection.text, /^HTTP\/1\.1 408 .*took longer than \d+ s/s)
    await until('its part to be removed', () => partsOf(app) === 0)
  } finally {
    await app.stop()
  }
})

test(
  'several uploads of an account together take half of what is free, one may take all, and all count as they ' + 'come',
  async () => {
    const min = (await free_mb()) - 3000
    const admitted: number[] = []
    const uploader = { id: 'acc_x', admit: async (bytes: number) => void admitted.push(bytes) }
    const claim = (bytes: number) => claimDisk(os.tmpdir(), min, bytes, uploader)
    const first = await claim(2e9)
    await assert.rejects(claim(1e6), /uploads of this account/)
    const other = await claimDisk(os.tmpdir(), min, 4e8, { ...uploader, id: 'acc_y' })
    first.release()
    const one = await claim(1e6)
    await one.count(9e5)
    const two = await claim(1e6)
    assert.deepEqual(admitted.slice(-2), [1e6, 2e6], 'what has come counts too')
    for (const claim of [other, one, two]) claim.release()
    const refusing = { id: 'acc_x', admit: () => Promise.reject(new Error('too much')) }
    const free = await freeToClaim(os.tmpdir(), min)
    await assert.rejects(claimDisk(os.tmpdir(), min, 1e9, refusing), /too much/)
    assert.ok(Math.abs((await freeToClaim(os.tmpdir(), min)) - free) < 5e8, 'it keeps nothing')
    await (await claim(1e6)).release()
  },
)

test('what an account stores is bounded by its tier, counted over all kinds, and shown', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-plans-'))
  const tier = { name: 'Small', requests_per_minute: null, requests_per_day: null, max_concurrent: null }
  const plans = path.join(folder, 'plans.json')
  writeFileSync(plans, JSON.stringify({ tiers: [{ ...tier, id: 'small', max_storage_mb: 1 }] }))
  const app = await startApp({ TUNERY_PLANS_FILE: plans, TUNERY_DEFAULT_TIER: 'small' })
  const row = `${colourRows(1)}\n`
  const rows = (bytes: number) => row.repeat(Math.floor(bytes / row.length))
  const refused = ({ status, body }: { status: number; body: { error?: { code: string } } }) =>
    assert.deepEqual([status, body.error?.code], [403, 'storage_quota_exceeded'])
  const announce = (bytes: number) =>
    app.api('POST', '/uploads', { filename: 'f.jsonl', purpose: 'batch', bytes, mime_type: 'application/jsonl' })
  try {
    const first = await app.upload(rows(4e5))
    assert.equal(first.status, 201)
    // At once, on this server or several: the transaction that stores a file counts those before it.
    const both = await Promise.all([app.upload(rows(4e5)), app.upload(rows(4e5))])
    assert.deepEqual(both.map(({ status }) => status).sort(), [201, 403])
    refused(both.find(({ status }) => status === 403)!)
    refused(await announce(3e5))
    const pending = await announce(1e5)
    assert.equal(pending.status, 200)
    refused(await announce(1.5e5))
    refused(await app.upload(rows(3e5)))
    assert.equal((await app.other.upload(rows(4e5))).status, 201, 'another account has its own')
    const { body } = await app.api('GET', '/usage/storage')
    const of = (kind: string) => body.items.find((item: { kind: string }) => item.kind === kind)
    assert.deepEqual(
      [body.max_bytes, of('datasets').count, of('uploads'), of('models').bytes, of('exports').count],
      [1e6, 2, { kind: 'uploads', count: 1, bytes: 1e5 }, 0, 0],
    )
    assert.equal(body.used_bytes, of('datasets').bytes + 1e5)
    const uploaded = readdirSync(path.join(app.dataDir, 'datasets')).filter((name) => !name.includes('.rows.'))
    assert.equal(uploaded.length, 3, 'nothing of what was refused is left')
    await app.api('POST', `/uploads/${pending.body.id}/cancel`)
    await app.api('DELETE', `/datasets/${first.body.id}`)
    assert.equal((await app.upload(rows(4e5))).status, 201)
    // An account that stores too much, as after a change of its tier, begins nothing that makes more.
    await app.db.updateTable('datasets').set({ size_bytes: 2e6 }).execute()
    const dataset_id = (await app.api('GET', '/datasets/')).body.items[0].id
    refused(await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id }))
  } finally {
    await app.stop()
    rmSync(folder, { recursive: true })
  }
})

describe('trainings', () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-plans-'))
  let app: TestApp
  let dataset_id: string
  before(async () => {
    const plans = path.join(folder, 'plans.json')
    const tier = { name: 'Small', requests_per_minute: null, requests_per_day: null, max_concurrent: null }
    writeFileSync(plans, JSON.stringify({ tiers: [{ ...tier, id: 'small', max_storage_mb: 100 }] }))
    const settings = { TUNERY_PLANS_FILE: plans, TUNERY_DEFAULT_TIER: 'small', TUNERY_CHECKPOINT_SECONDS: '1' }
    app = await startApp(settings)
    dataset_id = (await app.upload(colourRows(200))).body.id
  })
  after(async () => {
    await app.stop()
    rmSync(folder, { recursive: true })
  })
  const train = async () => {
    const config = { training_config: { epochs: 50, batch_size: 1 } }
    const { body } = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
    return body.id as string
  }
  const statusOf = async (id: string) => (await app.job(id)).status
  const codesOf = async (id: string) => {
    const rows = await app.db.selectFrom('job_events').select('data_json').where('job_id', '=', id).execute()
    return rows.map(({ data_json }) => JSON.parse(data_json ?? '{}').code)
  }

  test('checkpoints count towards what the account stores; beyond it jobs pause, and resume with room', async () => {
    const [running, waiting] = [await train(), await train()]
    await app.untilEvent(running, ({ type }) => type === 'checkpoint')
    const { items } = (await app.api('GET', '/usage/storage')).body
    const { count, bytes } = items.find(({ kind }: { kind: string }) => kind === 'checkpoints')
    assert.ok(count === 1 && bytes > 0)
    const store = (size_bytes: number) => app.db.updateTable('datasets').set({ size_bytes }).execute()
    // Room for the dataset, and not for the checkpoints beside it.
    await store(100e6 - 1)
    for (const id of [running, waiting]) {
      await until('it to pause', async () => (await statusOf(id)) === 'paused')
      assert.ok((await codesOf(id)).includes('storage_quota_exceeded'))
    }
    await until('its trainer to stop', async () => (await app.services.queue.pending('tuning')).entries.length === 0)
    await store(1000)
    for (const id of [waiting, running]) await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
    const { items: after } = (await app.api('GET', '/usage/storage')).body
    assert.deepEqual(
      after.find(({ kind }: { kind: string }) => kind === 'checkpoints'),
      { kind: 'checkpoints', count: 0, bytes: 0 },
    )
  })

  test('a training stops at a checkpoint when the disk falls below what is kept free, and waits', async () => {
    const id = await train()
    await app.untilEvent(id, ({ type }) => type === 'checkpoint')
    const claim = await claimAll(app.dataDir)
    await until('it to wait', async () => (await codesOf(id)).includes('storage_full'))
    assert.equal(await statusOf(id), 'queued')
    claim.release()
    await app.db.updateTable('queue_entries').set({ run_at: 0 }).where('ref', '=', id).execute()
    await app.untilEvent(id, ({ data }) => typeof data?.resumed_from_step === 'number')
    await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  })
})
