// Memory that the operator leaves to trainings of a device: the estimate of a job says what its creation does.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { colourRows } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

let app: TestApp
before(async () => {
  app = await startApp({ TUNERY_TRAINING_DEVICES: 'cpu0=300' })
})
after(() => app.stop())

test('a job that is refused for want of memory does not fit, the first time and again', async () => {
  const dataset_id = (await app.upload(colourRows(8))).body.id
  const body = { model_id: tiny, dataset_id, config: { method: 'lora' } }
  assert.equal((await app.api('POST', '/fine-tuning/jobs', body)).status, 400)
  for (let time = 0; time < 2; time++) {
    const estimate = await app.api('POST', '/fine-tuning/jobs/estimate', body)
    assert.deepEqual([estimate.status, estimate.body.fits], [200, false], JSON.stringify(estimate.body))
  }
})
