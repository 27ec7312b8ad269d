// The catalogue over HTTP and at the command line: searched, filtered, sorted, and what this machine has room for.
import assert from 'node:assert/strict'
import os from 'node:os'
import { after, before, test } from 'node:test'
import type { Model } from '../../contract/hub.ts'
import { cliEnv, startCli } from '../support/cli.ts'
import { startApp, type TestApp } from '../support/service.ts'

let app: TestApp
before(async () => {
  app = await startApp()
})
after(() => app.stop())

const list = async (query: string): Promise<Model[]> => (await app.api('GET', `/hub/?${query}`)).body.models

test('the list is filtered and sorted by the query, and says which value is wrong', async () => {
  const coders = await list('task=code&fits=lora&sort=memory')
  assert.ok(coders.length > 1)
  const memory = coders.map(({ needs }) => needs.lora!.mb)
  assert.deepEqual(
    memory,
    memory.toSorted((a, b) => a - b),
  )
  assert.ok(coders.every(({ tasks, needs }) => tasks.includes('code') && needs.lora!.fits))
  assert.ok((await list('size=30b')).every(({ params_billions }) => params_billions > 10))
  assert.deepEqual(await list('q=no%20such%20base'), [])
  const { status, body } = await app.api('GET', '/hub/?fits=gpu')
  assert.deepEqual([status, body.error.code], [400, 'invalid_request'])
  assert.match(body.error.message, /fits/)
  assert.equal((await app.api('GET', '/hub/?unknown=1')).status, 400)
})

test('a base that is not here needs disk, and one whose family was not tried has no results', async () => {
  const { needs, tested, license_url } = (await app.api('GET', '/hub/models/meta-llama/Llama-3.2-1B-Instruct')).body
  assert.equal(needs.disk.mb, 2 * 2472)
  assert.ok(needs.full.mb > needs.lora.mb && needs.lora.mb > needs.serve.mb)
  assert.ok(tested === null || typeof tested === 'object')
  assert.match(license_url, /^https:\/\/www\.llama\.com/)
})

test('a job gets the sentence of the table at once for what failed with the family of its base', async () => {
  const models = (await list('')).filter(({ tested }) => tested?.qlora)
  const failed = ({ tested }: Model) => !/^(yes|merged only|in part)/.test(tested!.qlora!)
  for (const model of [models.find(failed), models.find((model) => !failed(model))!]) {
    if (!model) continue
    const job = { model_id: model.id, dataset_id: 'ds_none', config: { method: 'qlora' } }
    const { message } = (await app.api('POST', '/fine-tuning/jobs', job)).body.error
    assert.equal(message.startsWith("'config.method': qlora") && message.endsWith(model.tested!.qlora!), failed(model))
  }
})

test('the machine has a recommended base, which it can train', async () => {
  const { device, memory_mb, free_disk_mb, recommended, classes } = (await app.api('GET', '/hub/machine')).body
  assert.ok(['cpu', 'gpu'].includes(device) && memory_mb > 0 && free_disk_mb > 0)
  const { needs } = (await app.api('GET', `/hub/models/${recommended.model_id}`)).body
  assert.deepEqual(needs.lora, { mb: recommended.memory_mb, fits: true })
  assert.match(recommended.why, /to train by lora/)
  assert.ok(classes.length > 3)
})

test('the command line shows the catalogue and the recommended base', async () => {
  const env = { ...cliEnv(os.tmpdir()), TUNERY_URL: app.url, TUNERY_KEY: app.key }
  const run = (...words: string[]) => startCli(env, ['models', 'catalogue', ...words]).ended
  const text = (await run('--task', 'embeddings')).stdout
  assert.match(text, /^This machine: .* of free disk/)
  assert.match(text, /Recommended: \S+\. It takes \d+\.\d GB of/)
  assert.match(text, /all-MiniLM-L6-v2 +embeddings +0\.0227B +- +- +-/)
  assert.match((await run('--search', 'nothing such')).stdout, /No base model matches/)
  const { models, machine } = JSON.parse((await run('--fits', 'serve', '--sort', 'size', '--json')).stdout)
  assert.ok(models.length > 5 && machine.recommended)
  assert.match((await run('--size', '2b')).stderr, /1b, 4b, 9b, 30b, larger/)
})
