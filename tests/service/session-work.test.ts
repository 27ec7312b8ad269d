// What a session does counts, and is found again, as what a key does: usage, uploads, jobs, batches, retries.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { newBrowser } from '../support/browser.ts'
import { colourRows, until } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

/** A form, which the browser sends with its cookie and token. */
async function sendForm(
  page: ReturnType<typeof newBrowser>,
  route: string,
  fields: Record<string, string>,
  text: string,
) {
  const form = new FormData()
  for (const [name, value] of Object.entries(fields)) form.set(name, value)
  form.set('file', new Blob([text]), 'rows.jsonl')
  const send = (csrf: string) =>
    fetch(app.url + route, { method: 'POST', body: form, headers: { cookie: page.cookie(), 'x-csrf-token': csrf } })
  const forged = await send('')
  assert.equal(forged.status, 403)
  const answer = await send(page.csrf())
  assert.ok(answer.ok, await answer.clone().text())
  return (await answer.json()) as { id: string }
}

test('requests, uploads, jobs and batches of a session are the session’s', async () => {
  const page = newBrowser(app)
  const { session, profile } = await page.enter()
  const chat = { model: tiny, max_tokens: 3, messages: [{ role: 'user', content: 'red' }] }
  assert.equal((await page.send('POST', '/chat/completions', chat)).status, 200)

  const dataset = await sendForm(page, '/datasets/', { name: 'colours' }, colourRows(16))
  const job = await page.send('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.id })
  assert.equal(job.status, 201, JSON.stringify(job.body))
  assert.equal((await page.send('POST', `/fine-tuning/jobs/${job.body.id}/cancel`)).status, 200)

  const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: chat }
  const file = await sendForm(page, '/files', { purpose: 'batch' }, JSON.stringify(line))
  const batch = await page.send('POST', '/batches', {
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  assert.equal(batch.status, 200, JSON.stringify(batch.body))
  await until('the batch', async () => (await app.api('GET', `/batches/${batch.body.id}`)).body.status === 'completed')

  const day = new Date().toISOString().slice(0, 10)
  // By kind: the job may have begun before it was cancelled, and counts too then.
  const items = await until('the usage', async () => {
    const { body } = await app.api('GET', `/usage?from=${day}&to=${day}&group_by=key,kind`)
    const chats = body.items.find(({ kind }: { kind: string }) => kind === 'chat')
    return chats?.requests === 2 && body.items
  })
  assert.deepEqual([...new Set(items.map(({ key_id }: { key_id: string }) => key_id))], [session.id])
  const { items: entries } = (await page.send('GET', '/audit?limit=20')).body
  for (const target of [dataset.id, job.body.id, batch.body.id]) {
    const entry = entries.find((entry: { target: string }) => entry.target === target)
    assert.deepEqual(entry?.by, { kind: 'session', user_id: profile.id, key_id: session.id }, target)
  }
})

test('a retry with an Idempotency-Key is answered to the session that created, and to no other', async () => {
  const [one, two] = [newBrowser(app), newBrowser(app)]
  await one.enter()
  await two.enter()
  const retry = { 'idempotency-key': randomUUID() }
  const create = (page: typeof one) => page.send('POST', '/keys', { name: 'mine' }, retry)
  const first = await create(one)
  assert.equal(first.status, 201)
  assert.equal((await create(one)).body.key, first.body.key)
  const other = await create(two)
  assert.deepEqual([other.status, other.body.error.code], [400, 'idempotency_key_reused'])
  assert.ok(!JSON.stringify(other.body).includes(first.body.key))
})
