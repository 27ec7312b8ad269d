// Jobs that find no device on this machine: they wait and say why, or are refused as they are created. No trainer runs.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { client, colourRows, until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

async function appWith(t: { after(end: () => Promise<void>): void }, devices: string) {
  const app = await startApp({ TUNERY_TRAINING_DEVICES: devices })
  t.after(() => app.stop())
  const dataset_id = (await app.upload(colourRows(16))).body.id
  const operator = client(app.url, (await app.services.accounts.createKey('op', 'operator', app.owner.user_id)).key)
  const devicesOf = async () => (await operator.api('GET', '/operator/machine')).body.training_devices
  const create = (config: object = {}) =>
    app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config: { ...config } })
  return { app, create, devicesOf }
}

test('a job whose device is not there waits, says so once, keeps its attempts, and can be cancelled', async (t) => {
  const { app, create, devicesOf } = await appWith(t, '701')
  const { id } = (await create()).body
  const why = 'The job waits: this machine has no GPU 701.'
  await until('the job to say why it waits', async () => (await app.job(id)).waits_for === why)
  const entry = () =>
    app.db
      .selectFrom('queue_entries')
      .select(['attempt', 'run_at', 'status'])
      .where('ref', '=', id)
      .executeTakeFirstOrThrow()
  const { run_at } = await until('it to be put off', async () => {
    const found = await entry()
    return found.status === 'waiting' && found.run_at > Date.now() ? found : undefined
  })
  await until('another look', async () => (await entry()).run_at > run_at)
  assert.equal((await app.job(id)).status, 'queued')
  assert.ok((await entry()).attempt <= 1, 'a look is no attempt')
  assert.deepEqual(await devicesOf(), [])
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)).body.status, 'cancelled')
  const events: JobEvent[] = []
  for await (const event of app.events(id)) events.push(event)
  assert.equal(events.filter(({ message }) => message === why).length, 1)
  assert.equal((await app.job(id)).waits_for, null)
})

test('a job that fits on no device is refused as it is created, with what it takes and what there is', async (t) => {
  const { create, devicesOf } = await appWith(t, 'cpu0=500,cpu1=400')
  const { status, body } = await create({ method: 'qlora' })
  assert.deepEqual([status, body.error.code], [400, 'invalid_request'])
  assert.match(body.error.message, /would take at least \d\.\d GB of memory, and the largest of 2 devices has 0\.5 GB/)
  assert.deepEqual(await devicesOf(), [
    { name: 'cpu0', memory_bytes: 500e6, free_bytes: 500e6, job_id: null },
    { name: 'cpu1', memory_bytes: 400e6, free_bytes: 400e6, job_id: null },
  ])
})
