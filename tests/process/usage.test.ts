// Metered usage equals the usage reported to clients, to the token, despite crashes and full disks.
import assert from 'node:assert/strict'
import { appendFileSync, copyFileSync, mkdtempSync, readdirSync, rmSync, symlinkSync, unlinkSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import pino from 'pino'
import type { UsageRecord } from '../../server/features/usage/journal.ts'
import { createUsage, type Usage } from '../../server/features/usage/service.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { type DataFolder, dataFolder } from '../support/server.ts'
import { startApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'

const log = pino({ level: 'silent' })
const folders: string[] = []
const servers: DataFolder[] = []
after(() => {
  for (const each of servers) each.remove()
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
})
function newFolder(): string {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-usage-'))
  folders.push(folder)
  return folder
}

const messages = [{ role: 'user', content: 'Say something.' }]
const body = (fields: object = {}) => ({ model: tiny, messages, temperature: 0, max_tokens: 5, ...fields })

test('complete, streamed and batched responses are metered as reported; aborted ones until the abort', async () => {
  const app = await startApp()
  try {
    const { usage } = app.services
    await app.api('POST', '/deployments', { model: tiny, name: 'mine' })
    const whole = await app.api('POST', '/chat/completions', body({ model: 'mine' }))
    const reported = [whole.body.usage]
    const withUsage = await stream(
      `${app.url}/chat/completions`,
      app.key,
      body({ stream: true, stream_options: { include_usage: true } }),
    ).result
    reported.push(withUsage.events.at(-1).usage)
    const without = await stream(`${app.url}/chat/completions`, app.key, body({ stream: true, max_tokens: 3 })).result
    assert.ok(without.events.length > 0)
    assert.ok(without.events.every(({ choices, usage }) => choices.length === 1 && usage === undefined))
    reported.push({ prompt_tokens: whole.body.usage.prompt_tokens, completion_tokens: 3 })
    const text = await app.api('POST', '/completions', { model: tiny, prompt: 'Once', max_tokens: 4, temperature: 0 })
    assert.equal(text.status, 200, JSON.stringify(text.body))
    reported.push(text.body.usage)
    const batch = await app.api('POST', '/chat/completions/batch', {
      ...body(),
      messages: undefined,
      requests: [{ messages }, { messages: [] }, { messages }],
    })
    reported.push(batch.body.usage)
    await app.api('POST', '/chat/completions', body({ temperature: 9 }))
    await usage.fold()
    const totals = (await app.api('GET', '/usage')).body.total
    const sum = (field: string) => reported.reduce((total, each) => total + each[field], 0)
    assert.deepEqual(
      [totals.requests, totals.prompt_tokens, totals.completion_tokens],
      [6, sum('prompt_tokens'), sum('completion_tokens')],
    )
    const row = await usage.find(app.owner.account_id, whole.headers.get('x-request-id')!)
    assert.deepEqual([row!.model, row!.model_id, row!.kind, row!.finish], ['mine', tiny, 'chat', 'complete'])
    assert.equal((await app.other.api('GET', '/usage')).body.total.requests, 0)
    assert.equal(await usage.find('acc_other', row!.request_id), undefined)

    const left = stream(`${app.url}/chat/completions`, app.key, body({ stream: true, max_tokens: 1900 }))
    await left.untilBytes(5000)
    left.hangUp()
    const came = await left.result
    const frames = came.events.filter(({ choices }) => choices[0].delta.content).length
    const id = String(came.headers['x-request-id'])
    const leftRow = await until('it to be metered', async () => {
      await usage.fold()
      return usage.find(app.owner.account_id, id)
    })
    assert.equal(leftRow.finish, 'client_left')
    assert.ok(leftRow.completion_tokens >= frames, `${leftRow.completion_tokens} were metered, ${frames} came`)
    assert.ok(leftRow.completion_tokens < 1900)
  } finally {
    await app.stop()
  }
})

test('a server killed under load loses no usage of a completed response and counts none twice', async () => {
  const folder = dataFolder('usage')
  servers.push(folder)
  const { dataDir } = folder
  const { url, end } = await folder.start()
  const key = folder.key()
  const db = await openDatabase(dataDir)
  const seen = new Map<string, number>()
  let sent = 0
  async function ask(streams: boolean) {
    for (;;) {
      sent++
      const max_tokens = 1 + (sent % 7)
      try {
        const answer = await stream(`${url}/chat/completions`, key, body({ stream: streams, max_tokens })).result
        if (streams ? !answer.done : !answer.text.endsWith('}')) return
        seen.set(String(answer.headers['x-request-id']), max_tokens)
      } catch {
        return
      }
    }
  }
  const clients = [true, true, false, false].map(ask)
  // Some records are folded, some are not.
  await until(
    'answers on both sides of a fold',
    async () => (await db.selectFrom('usage').select('request_id').execute()).length > 0 && seen.size > 40,
  )
  await end('SIGKILL')
  await Promise.all(clients)
  const again = await folder.start()
  const rows = await until('the rest to be folded', async () => {
    const found = await db.selectFrom('usage').select(['request_id', 'completion_tokens']).execute()
    return found.length >= seen.size && readdirSync(path.join(dataDir, 'usage')).length === 0 ? found : undefined
  })
  const metered = new Map(rows.map((row) => [row.request_id, row.completion_tokens]))
  assert.equal(metered.size, rows.length)
  for (const [id, tokens] of seen) assert.equal(metered.get(id), tokens, `${id} was seen with ${tokens} tokens`)
  assert.ok(rows.length <= sent, 'no row without a request')
  await db.destroy()
  await again.end('SIGKILL')
})

const newUsage = (db: Db, dataDir: string) => createUsage({ db, dataDir, currency: 'USD', log })
/** The day of the records below. */
const totals = async (usage: Usage) =>
  (await usage.report('acc_1', { from: '1970-01-01', to: '1970-01-01', group_by: ['day'] })).total

function record(number: number, fields: Partial<UsageRecord> = {}): UsageRecord {
  const counts = { prompt_tokens: 10, completion_tokens: 1, cached_tokens: 0, duration_ms: 5, cost: 0.25 }
  const names = {
    account_id: 'acc_1',
    key_id: 'key_1',
    model: 'm',
    model_id: 'm',
    kind: 'chat' as const,
    finish: 'complete' as const,
  }
  return { request_id: `req_${number}`, created_at: 1000 + number, ...names, ...counts, ...fields }
}

test('a file that was folded but not removed, and a torn last line, change nothing', async () => {
  const dataDir = newFolder()
  const folder = path.join(dataDir, 'usage')
  const db = await openDatabase(dataDir)
  const first = newUsage(db, dataDir)
  for (let number = 0; number < 450; number++) first.record(record(number))
  const [name] = readdirSync(folder)
  copyFileSync(path.join(folder, name!), path.join(dataDir, 'copy'))
  await first.fold()
  const expected = {
    requests: 450,
    prompt_tokens: 4500,
    completion_tokens: 450,
    cached_tokens: 0,
    trained_tokens: 0,
    seconds: 2.25,
    cost: 112.5,
  }
  assert.deepEqual(await totals(first), expected)
  assert.deepEqual(readdirSync(folder), [])
  await first.close()
  copyFileSync(path.join(dataDir, 'copy'), path.join(folder, name!))
  appendFileSync(path.join(folder, name!), '{"request_id":"req_torn","cre')
  const second = newUsage(db, dataDir)
  await second.start()
  assert.deepEqual(await totals(second), expected)
  second.record(record(1000))
  await second.close()
  assert.equal((await totals(second)).requests, 451)
  await db.destroy()
})

test('folding a large journal does not block the main thread or its database access', full, async () => {
  const dataDir = newFolder()
  const db = await openDatabase(dataDir)
  const usage = newUsage(db, dataDir)
  for (let number = 0; number < 20_000; number++) usage.record(record(number))
  let folded = false
  const folding = usage.fold().then(() => {
    folded = true
  })
  const seen = new Set<number>()
  while (!folded) {
    const { count } = await db
      .selectFrom('usage')
      .select(db.fn.countAll<number>().as('count'))
      .executeTakeFirstOrThrow()
    seen.add(count)
    await setImmediate()
  }
  await folding
  assert.ok(seen.size > 5, `${seen.size} states of the database were seen on the way`)
  assert.equal((await totals(usage)).requests, 20_000)
  await usage.close()
  await db.destroy()
})

test('on a full disk requests continue, and their usage is written once there is space', async () => {
  const dataDir = newFolder()
  const folder = path.join(dataDir, 'usage')
  const db = await openDatabase(dataDir)
  const usage = newUsage(db, dataDir)
  symlinkSync('/dev/full', path.join(folder, '0000000001.jsonl'))
  for (let number = 0; number < 3; number++) usage.record(record(number))
  unlinkSync(path.join(folder, '0000000001.jsonl'))
  await usage.fold()
  assert.equal((await totals(usage)).requests, 3)
  await usage.close()
  await db.destroy()
})
