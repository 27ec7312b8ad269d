// A page that shows a running job continues through a lost connection and through a kill of the service.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { colourRows } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'
import { browserService, browserTest, settled } from './support.ts'

const { service, tunery } = browserService('live')

test('a running job is live, says when it is not, and continues by itself', browserTest, async () => {
  const dataset = await tunery.datasets.upload(colourRows(200), { name: 'colours' })
  const job = await tunery.jobs.create({
    model_id: tiny,
    dataset_id: dataset.id,
    name: 'colours, long',
    config: { training_config: { epochs: 50, batch_size: 1 } },
  })
  const { page } = await service.visit()
  await page.goto('/')
  await settled(page)
  const entry = page.getByRole('listitem').filter({ hasText: 'colours, long' })
  const live = entry.getByText('live', { exact: true })
  await live.waitFor()
  const step = async () => Number(/step (\d+)/.exec(await entry.innerText())?.[1] ?? 0)
  const moves = async (from: number) => {
    while ((await step()) <= from) await page.waitForTimeout(200)
  }
  await moves(0)

  await page.context().setOffline(true)
  // What flows already keeps flowing offline in Chromium: a new look is what fails.
  await page.getByText('The service does not answer').waitFor()
  await page.context().setOffline(false)
  await page.getByText('The service does not answer').waitFor({ state: 'detached' })
  await live.waitFor()
  await moves(await step())

  const reached = await step()
  await Promise.all([entry.getByText('reconnecting…').waitFor(), service.restart()])
  await live.waitFor()
  await moves(reached)
  assert.ok((await entry.getByRole('img', { name: 'Loss of colours, long' }).count()) === 1)
  await tunery.jobs.cancel(job.id)
  await entry.waitFor({ state: 'detached' })
  await page.getByRole('table', { name: 'Recent jobs' }).getByText('cancelled').waitFor()
})
