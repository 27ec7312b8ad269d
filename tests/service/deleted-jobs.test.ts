// A job that is deleted: it is gone from every list, and its models still tell what they came from.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { colourRows } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()

test('a job that has ended is deleted with its events; its model stays, with its origin', async () => {
  const { api } = app
  const model_id = await app.colourModel()
  const before = (await api('GET', `/fine-tuning/models/${model_id}`)).body
  const job_id = before.job_id as string
  assert.equal((await app.other.api('DELETE', `/fine-tuning/jobs/${job_id}`)).body.error.code, 'job_not_found')
  assert.deepEqual((await api('DELETE', `/fine-tuning/jobs/${job_id}`)).body, { id: job_id, deleted: true })
  for (const path of ['', '/events', '/evaluations', '/checkpoints', '/rows', '/held-out'])
    assert.equal((await api('GET', `/fine-tuning/jobs/${job_id}${path}`)).body.error.code, 'job_not_found', path)
  for (const list of ['', '?name=rows', '?status=completed', '?sort=name'])
    assert.deepEqual((await api('GET', `/fine-tuning/jobs${list}`)).body.items, [], list)
  assert.deepEqual((await api('GET', '/fine_tuning/jobs')).body.data, [])
  const events = app.db.selectFrom('job_events').select('seq').where('job_id', '=', job_id)
  assert.deepEqual(await events.execute(), [])
  assert.equal((await api('DELETE', `/fine-tuning/jobs/${job_id}`)).status, 404, 'once')
  assert.deepEqual((await api('GET', `/fine-tuning/models/${model_id}`)).body, before)
  const actions = (await api('GET', '/audit')).body.items.map(({ action }: { action: string }) => action)
  assert.ok(actions.includes('job.deleted'))
})

test('the answers that a dataset taught go with it, although the job was deleted before', async () => {
  const { api, db } = app
  const model_id = await app.colourModel()
  const { job_id, lineage } = (await api('GET', `/fine-tuning/models/${model_id}`)).body
  await api('DELETE', `/fine-tuning/jobs/${job_id}`)
  const drafts = () => db.selectFrom('models').select('drafts_sha256').where('id', '=', model_id).executeTakeFirst()
  assert.notEqual((await drafts())!.drafts_sha256, null)
  assert.equal((await api('DELETE', `/datasets/${lineage.steps[0].dataset.id}`)).status, 200)
  assert.equal((await drafts())!.drafts_sha256, null)
})

test('a job that has not ended is refused, and says what to do', async () => {
  const { api } = app
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const { id } = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id })).body
  await api('POST', `/fine-tuning/jobs/${id}/pause`)
  const refused = await api('DELETE', `/fine-tuning/jobs/${id}`)
  assert.deepEqual([refused.status, refused.body.error.code], [400, 'in_use'])
  assert.match(refused.body.error.message, /Cancel it, then delete it\.$/)
  await api('POST', `/fine-tuning/jobs/${id}/cancel`)
  await app.untilEnded(id)
  assert.equal((await api('DELETE', `/fine-tuning/jobs/${id}`)).status, 200)
})

test('a list says how many rows of a dataset cannot be trained on', async () => {
  const { id } = (await app.upload(`${colourRows(3)}\n{"messages":1}\n{`)).body
  await app.api('POST', `/datasets/${id}/validate`)
  const { items } = (await app.api('GET', '/datasets/')).body
  assert.equal(items.find((item: { id: string }) => item.id === id).error_count, 2)
})
