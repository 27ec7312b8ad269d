// The first minute: the service answers before what only training needs is installed. What needs that waits for it,
// says so, and continues by itself. Set-up is the real one, in a copy of this checkout.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import type { TrainingSetup } from '../../contract/hub.ts'
import { root } from '../../lib/root.ts'
import { client, colourRows, until } from '../support/client.ts'
import { alive, children, type DataFolder, dataFolder } from '../support/server.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-first-minute-'))
const folders: DataFolder[] = []
after(() => {
  for (const data of folders) data.remove()
  rmSync(folder, { recursive: true, force: true })
})

/** A copy of this checkout with these parts of what it has installed in `.local`, and these stamps. */
function copyCheckout(name: string, installed: string[], stamps: string[]): string {
  const checkout = path.join(folder, name)
  const installs = ['.git', '.local', 'node_modules']
  for (const name of readdirSync(root).filter((name) => !installs.includes(name)))
    cpSync(path.join(root, name), path.join(checkout, name), { recursive: true })
  symlinkSync(path.join(root, 'node_modules'), path.join(checkout, 'node_modules'))
  for (const name of [...installed, ...stamps.map((stamp) => `stamps/${stamp}`)]) {
    const from = path.join(root, '.local', name)
    const to = path.join(checkout, '.local', name)
    mkdirSync(path.dirname(to), { recursive: true })
    // A machine whose own Node is new enough has no other.
    if (existsSync(from)) (name.startsWith('stamps/') ? cpSync : symlinkSync)(from, to)
  }
  return checkout
}

/** What `npm start` does before it starts the server; returns its output. */
const setUpServing = (checkout: string) =>
  execFileSync('node', ['scripts/setup.mjs', '--serving'], { cwd: checkout, encoding: 'utf8' })

const forServing = { installed: ['node', 'web'], stamps: ['npm', 'node', 'engine', 'web', 'served-model'] }
const messages = [{ role: 'user', content: 'red' }]

test('before training is set up chat answers, a job waits and says so, the rest says when to come back', async () => {
  const checkout = copyCheckout(
    'checkout',
    [...forServing.installed, 'llama', 'python', 'kernels', 'models'],
    [...forServing.stamps, 'converters', 'python', 'trainer-kernels', 'default-model', 'embedding-model'],
  )
  // The missing step cannot succeed at first: pip does not understand this line.
  const requirements = path.join(checkout, 'trainer/requirements-onnx.txt')
  appendFileSync(requirements, '\n@@@ no requirement\n')
  // A base that can be served, and whose checkpoint is not here yet.
  const models = path.join(folder, 'models')
  const base = path.join(models, tiny)
  cpSync(tinyModelsDir(), models, { recursive: true })
  const facts = JSON.parse(readFileSync(path.join(base, 'model.json'), 'utf8'))
  const whole = 'test/whole'
  cpSync(base, path.join(models, whole), { recursive: true })
  renameSync(path.join(base, 'hf'), path.join(folder, 'hf'))
  writeFileSync(path.join(base, 'model.json'), JSON.stringify({ ...facts, hf: null }))
  const data = dataFolder('first-minute', { TUNERY_MODELS_DIR: models }, { checkout })
  folders.push(data)

  // The checkout itself may have changed since its set-up.
  setUpServing(checkout)
  const server = await data.start()
  const key = data.key()
  const { api, upload, job } = client(server.url, key)
  const setup = async (): Promise<TrainingSetup> => (await api('GET', '/hub/setup')).body
  const chat = async () => (await api('POST', '/chat/completions', { model: tiny, messages, max_tokens: 2 })).status

  await until('the step to fail', async () => (await setup()).steps[0]?.status === 'failed')
  assert.equal(await chat(), 200)
  const dataset_id = (await upload(colourRows(16))).body.id
  const request = { model_id: tiny, dataset_id, config: { training_config: { epochs: 1 } } }
  const created = await api('POST', '/fine-tuning/jobs', request)
  assert.equal(created.status, 201)
  assert.match(created.body.waits_for, /failed at step 1 of 1, ONNX Runtime.*GET \/v1\/hub\/setup/)
  const onWhole = (await api('POST', '/fine-tuning/jobs', { ...request, model_id: whole })).body
  assert.deepEqual([onWhole.queue_position, onWhole.waits_for], [1, created.body.waits_for])
  const refused = [
    await api('GET', `/datasets/${dataset_id}/preview?row=1&model_id=${tiny}`),
    await api('POST', '/fine-tuning/jobs/estimate', request),
    await api('POST', '/embeddings', { model: 'sentence-transformers/all-MiniLM-L6-v2', input: 'red' }),
  ]
  for (const { status, body, headers } of refused) {
    assert.deepEqual([status, body.error.code], [503, 'training_not_ready'], JSON.stringify(body))
    assert.ok(Number(headers.get('retry-after')) > 0)
  }

  // Only an operator sees the output of the failed command and may try again.
  const operator = client(server.url, data.tunery('keys', 'create', '--name', 'ops', '--scopes', 'operator').key!)
  assert.match((await operator.api('GET', '/hub/setup')).body.steps[0].message, /@@@ no requirement/)
  assert.doesNotMatch((await setup()).steps[0]!.message!, /@@@/)
  assert.equal((await api('POST', '/hub/setup/retry')).status, 403)

  // Another set-up holds the lock: this one waits for it, and ends with a server that is killed.
  const lock = path.join(checkout, '.local/setup.lock')
  writeFileSync(lock, String(process.pid))
  assert.equal((await operator.api('POST', '/hub/setup/retry')).body.steps[0].status, 'waiting')
  await until('set-up to wait', async () => /Another set-up/.test((await setup()).steps[0]!.message ?? ''))
  assert.match((await job(created.body.id)).waits_for!, /being installed: step 1 of 1, ONNX Runtime/)
  assert.equal(setUpServing(checkout), '', 'a start does not wait for a set-up that brings only what training needs')
  const [child] = children(server.pid, 'setup.mjs')
  await server.end('SIGKILL')
  await until('set-up to end with its server', () => !alive(child!))

  const next = await data.start()
  const again = client(next.url, key)
  for (const { id } of [created.body, onWhole]) assert.equal((await again.job(id)).status, 'queued')
  await again.api('POST', `/fine-tuning/jobs/${onWhole.id}/cancel`)
  // What the missing steps bring: the checkpoint, as `prepare_base restore` leaves it, and requirements that pip reads.
  renameSync(path.join(folder, 'hf'), path.join(base, 'hf'))
  writeFileSync(path.join(base, 'model.json'), JSON.stringify(facts))
  cpSync(path.join(root, 'trainer/requirements-onnx.txt'), requirements)
  rmSync(lock)
  const done = await again.untilEnded(created.body.id)
  assert.deepEqual([done.status, done.waits_for, done.error], ['completed', null, null])
  assert.deepEqual(
    (await again.api('GET', '/hub/setup')).body.steps.map(({ status }: { status: string }) => status),
    ['done'],
  )
  await next.end('SIGTERM')

  const installed = await data.start()
  assert.deepEqual((await client(installed.url, key).api('GET', '/hub/setup')).body, { ready: true, steps: [] })
  assert.deepEqual(children(installed.pid, 'setup.mjs'), [])
  await installed.end('SIGTERM')
})

test('a job on the default base waits for the real installation of Python, and completes after it', async () => {
  const checkout = copyCheckout('fresh', forServing.installed, forServing.stamps)
  const engine = path.join(checkout, '.local/llama/lib')
  mkdirSync(path.dirname(engine))
  symlinkSync(path.join(root, '.local/llama/lib'), engine)
  assert.match(setUpServing(checkout), /SmolLM2.*served-model done/s)
  const models = path.join(checkout, '.local/models')
  const data = dataFolder('first-minute-full', { TUNERY_MODELS_DIR: models }, { checkout })
  folders.push(data)
  const server = await data.start()
  const { api, upload, job, untilEnded } = client(server.url, data.key())
  const model = 'HuggingFaceTB/SmolLM2-135M-Instruct'
  const chat = () => api('POST', '/chat/completions', { model, messages, max_tokens: 4, temperature: 0 })
  const early = await chat()
  assert.equal(early.status, 200)
  const dataset_id = (await upload(colourRows(8))).body.id
  const request = { model_id: model, dataset_id, config: { training_config: { epochs: 1 } } }
  const { id } = (await api('POST', '/fine-tuning/jobs', request)).body
  assert.match((await job(id)).waits_for!, /training environment is being installed: step \d of \d/)
  const words = ['cli/main.ts', 'train', dataset_id, '--model', model, '--epochs', '1', '--detach', '--url', server.url]
  const train = await promisify(execFile)(process.execPath, words, {
    cwd: checkout,
    env: { ...process.env, TUNERY_KEY: data.key() },
  })
  assert.match(train.stderr, /Waiting for the training environment: .*is (queued|running)/s)
  assert.equal((await untilEnded(id)).status, 'completed')
  const setup = (await api('GET', '/hub/setup')).body as TrainingSetup
  assert.ok(setup.ready && setup.steps.every(({ status }) => status === 'done'))
  assert.deepEqual((await chat()).body.choices, early.body.choices, 'the served weights are the same')
  // Facts that set-up knows without reading the weights.
  const described = (folder: string) => readFileSync(path.join(folder, model, 'model.json'), 'utf8')
  assert.equal(described(models), described(path.join(root, '.local/models')))
  const pin = JSON.parse(readFileSync(path.join(root, 'scripts/setup/pins.json'), 'utf8')).default_model
  const { parameters, context_length } = JSON.parse(described(models))
  assert.deepEqual({ parameters, context_length }, { parameters: pin.parameters, context_length: pin.context_length })
  await server.end('SIGTERM')
})
