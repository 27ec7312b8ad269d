// Links to a model for people without an account: what they show, their bounds, and when they end.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { before, test } from 'node:test'
import { backUp } from '../../server/maintenance/backup/backup.ts'
import { restore } from '../../server/maintenance/backup/restore.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { evaluationEnded, same } from '../support/evaluations.ts'
import { appOfTests, startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests({ TUNERY_SHARE_LINKS: 'on', TUNERY_TRUSTED_PROXIES: '127.0.0.1' })
let model: string
before(async () => {
  await app.started
  model = await app.colourModel()
  await app.api('PATCH', `/fine-tuning/models/${model}`, { name: 'Colours', description: 'Codes of colours.' })
})

const messages = [{ role: 'user', content: 'code of blue?' }]
let visitors = 0
/** A request of somebody without a key, from an address of their own. */
async function visit(route: string, body: object, address = `192.0.2.${++visitors}`) {
  const response = await fetch(app.url + route, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-forwarded-for': address },
    body: JSON.stringify(body),
  })
  const text = await response.text()
  return {
    status: response.status,
    headers: response.headers,
    text,
    body: text.startsWith('{') ? JSON.parse(text) : {},
  }
}
async function share(request: object = {}, of = model) {
  const { status, body } = await app.api('POST', `/fine-tuning/models/${of}/shares`, request)
  assert.equal(status, 201, JSON.stringify(body))
  const [page, token] = body.link.split('#')
  assert.equal(page, '/share')
  return { id: body.id as string, token: token as string, body }
}
const assertUnknown = async (token: string) => {
  const nobody = await visit('/share/look', { token: 'x'.repeat(43) })
  assert.deepEqual([nobody.status, nobody.body.error.code], [400, 'link_invalid'])
  for (const answer of [await visit('/share/look', { token }), await visit('/share/chat', { token, messages })])
    assert.deepEqual([answer.status, answer.body.error.message], [nobody.status, nobody.body.error.message])
}

test(
  'a link shows the model and its evaluation, and its answers are those of the model, without a word of the ' +
    'account',
  async () => {
    const rows = {
      dataset: (await app.upload('{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}'))
        .body.id,
    }
    const evaluate = async (of: string) => {
      const { body } = await app.api('POST', '/evaluations', {
        ...rows,
        model: of,
        name: 'of colours',
        graders: [same],
      })
      return evaluationEnded(app, body.id)
    }
    const evaluation = await evaluate(model)
    const { token, id } = await share({ evaluation: evaluation.id, max_tokens: 8 })
    const looked = await visit('/share/look', { token })
    assert.equal(looked.status, 200, looked.text)
    const { name, description, base_model_id, requests_left } = looked.body
    assert.deepEqual([name, description, base_model_id, requests_left], ['Colours', 'Codes of colours.', tiny, 50])
    assert.deepEqual([looked.body.evaluation.name, looked.body.evaluation.rows], ['of colours', 1])
    assert.equal(looked.body.evaluation.score, evaluation.result!.model.score!.mean)

    const whole = await visit('/share/chat', { token, messages })
    assert.equal(whole.status, 200, whole.text)
    const streamed = await visit('/share/chat', { token, messages, stream: true })
    assert.equal(streamed.status, 200)
    assert.match(streamed.headers.get('content-type')!, /event-stream/)
    assert.match(streamed.text, /data: \[DONE\]\n\n$/)
    for (const answer of [looked, whole, streamed])
      for (const secret of [model, id, app.owner.account_id, evaluation.id, rows.dataset])
        assert.ok(
          !`${answer.text} ${JSON.stringify([...answer.headers])}`.includes(secret),
          `${secret} in ${answer.text}`,
        )
    assert.equal((await visit('/share/look', { token })).body.requests_left, 48)

    const { body: usage } = await app.api('GET', '/usage?group_by=key')
    const used = usage.items.find(({ key_id }: { key_id: string }) => key_id === id)
    assert.equal(used.requests, 2)
    assert.equal(used.completion_tokens > 0, true)

    const other = await evaluate(tiny)
    const refused = await app.api('POST', `/fine-tuning/models/${model}/shares`, { evaluation: other.id })
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request'])
  },
)

test('a link has its bounds: requests of a day, one at a time, size of a conversation, no other fields', async () => {
  const { token } = await share({ requests_per_day: 3, max_tokens: 4 })
  const first = await visit('/share/chat', { token, messages })
  assert.ok(first.body.usage.completion_tokens <= 4, first.text)
  for (const bad of [
    { messages: [{ role: 'system', content: 'x' }] },
    { messages, max_tokens: 4000 },
    { messages, model: tiny },
    { messages: [] },
    { messages: [{ role: 'user', content: 'x'.repeat(8001) }] },
    { messages: Array(3).fill({ role: 'user', content: 'x'.repeat(3000) }) },
  ]) {
    const { status, text } = await visit('/share/chat', { token, ...bad })
    assert.equal(status, 400, text)
  }
  const long = await visit('/share/chat', { token, messages: [{ role: 'user', content: 'ab '.repeat(2600) }] })
  assert.deepEqual([long.status, long.body.error.code], [400, 'context_length_exceeded'], long.text)
  assert.equal((await visit('/share/look', { token })).body.requests_left, 1)
  assert.equal((await visit('/share/chat', { token, messages })).status, 200)
  const over = await visit('/share/chat', { token, messages })
  assert.deepEqual([over.status, over.body.error.details.limit], [429, 'share_requests_per_day'])
  assert.ok(Number(over.headers.get('retry-after')) > 0)

  const busy = (await share()).token
  const at_once = await Promise.all(Array.from({ length: 6 }, () => visit('/share/chat', { token: busy, messages })))
  const limits = at_once.map(({ status, body }) => (status === 200 ? 'answered' : body.error.details.limit))
  assert.ok(limits.includes('answered') && limits.includes('share_concurrent'), limits.join())
  assert.equal((await visit('/share/chat', { token: busy, messages })).status, 200, 'it is free again')
})

test('an address can ask only so often, whatever the link', async () => {
  const answers = []
  for (let index = 0; index < 31; index++) answers.push(await visit('/share/look', { token: 'guess' }, '198.51.100.7'))
  assert.equal(answers.at(0)!.status, 400)
  const { status, body } = answers.at(-1)!
  assert.deepEqual([status, body.error.details.limit], [429, 'requests_of_address'])
})

test('a link that is withdrawn, has expired, or leads to what is gone answers as one that never was', async () => {
  const withdrawn = await share()
  assert.equal((await visit('/share/look', withdrawn)).status, 400, 'only the fields that exist')
  const path = `/fine-tuning/models/${model}/shares`
  assert.ok((await app.api('GET', path)).body.items.some(({ id }: { id: string }) => id === withdrawn.id))
  assert.ok(!JSON.stringify((await app.api('GET', path)).body).includes(withdrawn.token))
  assert.equal((await app.api('DELETE', `${path}/${withdrawn.id}`)).status, 200)
  await assertUnknown(withdrawn.token)
  assert.equal((await app.api('DELETE', `${path}/${withdrawn.id}`)).status, 404)
  const { items } = (await app.api('GET', '/audit')).body
  const actions = items.filter(({ target }: { target: string }) => target === withdrawn.id)
  assert.deepEqual(actions.map(({ action }: { action: string }) => action).sort(), ['share.created', 'share.withdrawn'])

  const past = await app.api('POST', path, { expires_at: new Date(Date.now() - 1).toISOString() })
  assert.equal(past.status, 400)
  const expiring = await share({ expires_at: new Date(Date.now() + 3_600_000).toISOString() })
  await app.db
    .transaction()
    .execute((trx) => trx.updateTable('shares').set({ expires_at: 1 }).where('id', '=', expiring.id).execute())
  await assertUnknown(expiring.token)

  const doomed = await app.colourModel()
  const ofDoomed = await share({}, doomed)
  assert.equal((await visit('/share/look', { token: ofDoomed.token })).status, 200)
  assert.equal((await app.api('DELETE', `/fine-tuning/models/${doomed}`)).status, 200)
  await assertUnknown(ofDoomed.token)

  const { token } = await share()
  const suspend = (suspended_at: number | null) =>
    app.db
      .transaction()
      .execute((trx) =>
        trx.updateTable('accounts').set({ suspended_at }).where('id', '=', app.owner.account_id).execute(),
      )
  await suspend(1)
  await assertUnknown(token)
  await suspend(null)
  assert.equal((await visit('/share/look', { token })).status, 200)
})

test('a backup has no token, and a restore ends all links: one may have been withdrawn since', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-share-'))
  const [backup, restored] = [path.join(folder, 'backup'), path.join(folder, 'restored')]
  try {
    const { id, token } = await share()
    await backUp(app.dataDir, backup, 'test')
    assert.ok(!readFileSync(path.join(backup, 'tunery.db'), 'latin1').includes(token))
    await restore(backup, restored)
    const db = await openDatabase(restored)
    try {
      const kept = await db.selectFrom('shares').selectAll().execute()
      assert.ok(kept.some((row) => row.id === id))
      assert.ok(kept.every(({ revoked_at }) => revoked_at !== null))
    } finally {
      await db.destroy()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

test('links are the account’s own, and without the setting there are none', async () => {
  const { id } = await share()
  const path = `/fine-tuning/models/${model}/shares`
  assert.equal((await app.other.api('POST', path, {})).body.error.code, 'model_not_found')
  assert.equal((await app.other.api('DELETE', `${path}/${id}`)).status, 404)
  const off = await startApp()
  try {
    const refused = await off.api('POST', '/fine-tuning/models/mdl_x/shares', {})
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'insufficient_permissions'])
    assert.match(refused.body.error.message, /TUNERY_SHARE_LINKS=on/)
    const response = await fetch(`${off.url}/share/look`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ token: 'x' }),
    })
    assert.equal(response.status, 400)
  } finally {
    await off.stop()
  }
})
