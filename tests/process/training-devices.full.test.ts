// Several trainings at once, each on a device of its own: who waits, and that devices come back whatever ends a run.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { packaged } from '../support/bases.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('devices', { TUNERY_TRAINING_DEVICES: 'cpu0=4000,cpu1=4000', TUNERY_CHECKPOINT_SECONDS: '1' })
after(() => folder.remove())

test('two jobs train at once on two devices, given back by killed trainers and servers', async () => {
  const first = await folder.start()
  const key = folder.key()
  const operator = folder.tunery('keys', 'create', '--name', 'op', '--scopes', 'operator').key!
  let { url } = first
  let api: Client = client(url, key)
  const dataset_id = (await api.upload(colourRows(200))).body.id
  const create = async (epochs: number): Promise<string> => {
    const config = { training_config: { epochs, batch_size: 1, learning_rate: 0.001 } }
    const { status, body } = await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
    assert.equal(status, 201, JSON.stringify(body))
    return body.id
  }
  const holders = async (): Promise<(string | null)[]> =>
    (await client(url, operator).api('GET', '/operator/machine')).body.training_devices.map(
      ({ job_id }: { job_id: string | null }) => job_id,
    )
  const held = (...ids: string[]) =>
    until(`${ids} to have devices`, async () => {
      const found = await holders()
      return ids.every((id) => found.includes(id))
    })
  const steps = (id: string, count: number) =>
    api.untilEvent(id, ({ type, data }) => type === 'metrics' && Number(data!.step) >= count)

  const [one, two] = [await create(50), await create(50)]
  await held(one, two)
  const three = await create(50)
  await Promise.all([steps(one, 1), steps(two, 1)])
  const waiting = await api.job(three)
  assert.deepEqual([waiting.status, waiting.waits_for], ['queued', 'The job waits: other jobs train on all 2 devices.'])
  assert.equal(children(first.pid, 'trainer.cli.train').length, 2)

  // All workers have a job, so the third was not looked at: it is next.
  await api.api('POST', `/fine-tuning/jobs/${one}/cancel`)
  await held(two, three)
  await steps(three, 1)

  // A trainer that is killed gives its device back, and its job gets one again.
  const [trainer] = children(first.pid, `runs/${three}/`)
  process.kill(trainer!, 'SIGKILL')
  await api.untilEvent(three, ({ type, data }) => type === 'status' && data?.attempt === 2)
  await held(two, three)

  await Promise.all([two, three].map((id) => api.untilEvent(id, ({ type }) => type === 'checkpoint')))
  const trainers = children(first.pid, 'trainer.cli.train')
  await first.end('SIGKILL')
  await until('the trainers to end', () => !trainers.some(alive))
  const second = await folder.start()
  url = second.url
  api = client(url, key)
  await held(two, three)
  await Promise.all([two, three].map((id) => api.untilEvent(id, ({ data }) => data?.resumed_from_step !== undefined)))
  const four = await create(1)
  for (const id of [two, three]) await api.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  const { status, waits_for } = await api.untilEnded(four)
  assert.deepEqual([status, waits_for], ['completed', null])
  await until('all devices to be free', async () => (await holders()).every((id) => id === null))
  assert.equal(await second.end('SIGTERM'), 0)
})

test('a base that fits no device is shared by two, as its estimate says, and its result is served', async (t) => {
  const app = await startApp({ TUNERY_TRAINING_DEVICES: 'cpu0=3500,cpu1=3500', TUNERY_MODELS_DIR: packaged.models })
  t.after(() => app.stop())
  const body = {
    model_id: packaged.id,
    dataset_id: (await app.upload(colourRows(16))).body.id,
    config: { training_config: { epochs: 2, batch_size: 8 } },
  }
  const estimate = (await app.api('POST', '/fine-tuning/jobs/estimate', body)).body
  assert.deepEqual([estimate.devices, estimate.fits, estimate.seconds], [2, true, null])
  const { id } = (await app.api('POST', '/fine-tuning/jobs', body)).body
  const job = await app.untilEnded(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const events: JobEvent[] = []
  for await (const event of app.events(id)) events.push(event)
  assert.ok(events.some(({ message }) => message === 'The job is running on cpu0, cpu1.'))
  const prepared = events.find(({ data }) => data?.processes !== undefined)
  assert.deepEqual([prepared?.data?.processes, prepared?.data?.sharded], [2, true])
  const messages = [{ role: 'user', content: 'code of blue?' }]
  const answer = await app.api('POST', '/chat/completions', { model: job.model, messages, max_tokens: 4 })
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
})
