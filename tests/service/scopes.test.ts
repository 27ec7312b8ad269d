// What each route lets out and sets going, and the scopes that it needs: by whatever way rows are read or models asked.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { type Scope, scopes } from '../../contract/scopes.ts'
import { codeOf } from '../support/browser.ts'
import { client, colourRows } from '../support/client.ts'
import { contractRoutes } from '../support/routes.ts'
import { appOfTests } from '../support/service.ts'

/** Routes whose answer holds rows of datasets or files, or texts that accounts keep. */
const readsRows = [
  'GET /datasets/{dataset_id}/rows',
  'GET /datasets/{dataset_id}/preview',
  'POST /datasets/{dataset_id}/validate',
  'GET /datasets/{dataset_id}',
  'GET /datasets/',
  'GET /files/{file_id}/content',
  'GET /files/{file_id}',
  'GET /files',
  'GET /chat/completions',
  'GET /chat/completions/{completion_id}',
  'GET /chat/completions/{completion_id}/messages',
  'GET /evaluations/{evaluation_id}/rows',
  'GET /evals/{eval_id}/runs/{run_id}/output_items',
  'GET /evals/{eval_id}/runs/{run_id}/output_items/{output_item_id}',
  'GET /fine-tuning/jobs/{job_id}/held-out',
  'GET /fine-tuning/jobs/{job_id}/rows',
  'GET /fine-tuning/jobs/{job_id}/rollouts/{step}',
]
/** Routes that let a model answer, or open a way to ask one. */
const generates = [
  'POST /chat/completions',
  'POST /chat/completions/batch',
  'POST /completions',
  'POST /embeddings',
  'POST /responses',
  'POST /batches',
  'POST /fine_tuning/alpha/graders/run',
  'POST /fine-tuning/models/{model_id}/shares',
]
/** Both: rows are shown to a model, and kept with its answers. */
const evaluates = ['POST /evaluations', 'POST /evals/{eval_id}/runs']
/** The same for bodies with a field. */
const withField: Record<string, Record<string, Scope[]>> = {
  'POST /fine-tuning/jobs': {
    evaluation: ['datasets:read', 'inference'],
    'config.evaluation_config.sample_prompts': ['inference'],
  },
  'PUT /deployments/{name}': { gate: ['datasets:read', 'inference'] },
  'POST /fine-tuning/models/{model_id}/shares': { evaluation: ['tuning:read'] },
}
/**
 * All others, which were looked at: they answer with what objects are called, their settings, states and figures, with
 * what the caller has sent itself, or with the weights that their scope is for. Of those, whose scope is not that of
 * what they are about, and why:
 */
const others = new Set([
  // An answer that the account keeps; whoever may ask a model may continue it.
  'GET /responses/{response_id}',
  'GET /responses/{response_id}/input_items',
])

const app = appOfTests()
let dataset: string
before(async () => {
  await app.started
  dataset = (await app.upload(colourRows(8))).body.id
})

const nameOf = ({ method, path }: { method: string; path: string }) => `${method} ${path}`
async function keyWith(carried: readonly Scope[]) {
  const { status, body } = await app.api('POST', '/keys', { name: 'narrow', scopes: carried })
  assert.equal(status, 201)
  return client(app.url, body.key)
}

test('a route needs `datasets:read` to show rows, `inference` to ask models, besides its own scope', async () => {
  const routes = new Map((await contractRoutes()).map((route) => [nameOf(route), route]))
  for (const [names, needed] of [
    [readsRows, ['datasets:read']],
    [generates, ['inference']],
    [evaluates, ['datasets:read', 'inference']],
  ] as const)
    for (const name of names) {
      const route = routes.get(name) ?? assert.fail(`there is no ${name}`)
      for (const scope of needed) assert.ok([route.scope, ...(route.also ?? [])].includes(scope), `${name}: ${scope}`)
    }
  for (const [name, fields] of Object.entries(withField)) assert.deepEqual(routes.get(name)?.also_with, fields, name)
  const listed = new Set([...readsRows, ...generates, ...evaluates, ...Object.keys(withField), ...others])
  // A route that reads rows or asks models by its scope is named above: so is each new one.
  for (const [name, { scope, also, also_with }] of routes)
    if (also || also_with || (scope === 'datasets:read' && name.startsWith('GET')) || name === 'POST /responses')
      assert.ok(listed.has(name), `${name} is not in the lists of this test: what does it let out?`)
})

test('every scope that a route of the contract names is checked when it is called', async () => {
  const id = 'some-id'
  let checked = 0
  for (const route of await contractRoutes()) {
    if (route.scope === 'public' || route.scope === 'session' || !route.also) continue
    for (const missing of [route.scope as Scope, ...route.also]) {
      const carried = [route.scope as Scope, ...route.also].filter((scope) => scope !== missing)
      const narrow = await keyWith(carried)
      const answer = await narrow.api(
        route.method,
        route.path.replace(/\{\w+\*?\}/g, id),
        route.method === 'GET' ? undefined : {},
      )
      assert.deepEqual(
        [...codeOf(answer), answer.body.error.details.scope],
        [403, 'insufficient_permissions', missing],
        `${nameOf(route)} without ${missing}`,
      )
      checked++
    }
  }
  assert.ok(checked >= 16)
})

test('a key that may only tune reads no row and asks no model, by evaluation, job, gate or share', async () => {
  const tuner = await keyWith(['tuning:read', 'tuning:write', 'deployments:write'])
  const refused = [403, 'insufficient_permissions']
  const graders = [
    { type: 'string_check', name: 'same', input: '{{sample.output_text}}', operation: 'eq', reference: 'x' },
  ]
  const evaluation = { model: 'test/tiny', dataset, graders }
  assert.deepEqual(codeOf(await tuner.api('POST', '/evaluations', evaluation)), refused)
  const job = { model_id: 'test/tiny', dataset_id: dataset }
  assert.deepEqual(codeOf(await tuner.api('POST', '/fine-tuning/jobs', { ...job, evaluation: 'eval_x' })), refused)
  const config = { evaluation_config: { sample_prompts: ['Say what you have learned.'] } }
  assert.deepEqual(codeOf(await tuner.api('POST', '/fine-tuning/jobs', { ...job, config })), refused)
  const gate = { evaluation: 'eval_x', min_score: 0.5 }
  assert.deepEqual(codeOf(await tuner.api('PUT', '/deployments/mine', { model: 'test/tiny', gate })), refused)
  assert.deepEqual(codeOf(await tuner.api('POST', '/fine-tuning/models/mdl_x/shares', {})), refused)
  for (const path of ['rows', 'held-out', 'rollouts/1'])
    assert.deepEqual(codeOf(await tuner.api('GET', `/fine-tuning/jobs/job_x/${path}`)), refused)
  // What needs neither works with the scope that it always needed.
  const plain = await tuner.api('POST', '/fine-tuning/jobs', {
    ...job,
    config: { evaluation_config: { sample_prompts: [] } },
  })
  assert.equal(plain.status, 201)
  assert.equal((await tuner.api('POST', `/fine-tuning/jobs/${plain.body.id}/cancel`)).status, 200)
  const both = await keyWith(['tuning:write', 'datasets:read', 'inference'])
  assert.equal((await both.api('POST', '/evaluations', evaluation)).status, 201)
  assert.ok(scopes.includes('inference'))
})
