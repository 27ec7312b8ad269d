// `./tunery` against the real service, as processes: what users see, what programs read, exit statuses, keys.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { type CliOptions, cliEnv, startCli } from '../support/cli.ts'
import { colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { startReceiver } from '../support/receiver.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-cli-'))
const inFolder = (name: string, content: string) => {
  const file = path.join(folder, name)
  writeFileSync(file, content)
  return file
}
let app: TestApp
let model: string
let keyed: Record<string, string>
before(async () => {
  app = await startApp({ TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8' })
  model = await app.colourModel()
  keyed = { TUNERY_URL: app.url, TUNERY_KEY: app.key }
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

const noData = path.join(folder, 'no-data')
/** As a user without profiles, and without a service on the data folder. */
const run = (words: string[], { env = keyed, ...options }: CliOptions = {}) =>
  startCli({ ...cliEnv(folder), TUNERY_DATA_DIR: noData, ...env }, words, options).ended
const json = async (...words: string[]) => {
  const { status, stdout, stderr, json } = await run([...words, '--json'])
  assert.equal(status, 0, `${words.join(' ')}: ${stderr}`)
  assert.equal(stdout.trim().split('\n').length, 1, 'one JSON value and nothing else')
  return json()
}

test('a deployment is scaled, shown and given back; what is not given stays as it was', async () => {
  await json('deploy', tiny, 'scaled')
  const missing = await run(['deployments', 'scale', 'scaled', '--min', '0'])
  assert.equal(missing.status, 2)
  assert.match(missing.stderr, /--max is missing/)
  const set = await json('deployments', 'scale', 'scaled', '--min', '0', '--max', '3', '--requests', '4', '--on', 'cpu')
  assert.deepEqual([set.scaling.min_replicas, set.scaling.max_replicas, set.scaling.scale_up_cooldown], [0, 3, '30s'])
  const changed = await json('deployments', 'scale', 'scaled', '--max', '2', '--down-cooldown', '10m')
  assert.deepEqual(
    [changed.scaling.min_replicas, changed.scaling.target_requests_per_replica, changed.scaling.scale_down_cooldown],
    [0, 4, '10m'],
  )
  const { stdout } = await run(['deployments', 'scaling', 'scaled'])
  assert.match(stdout, /replicas +0 ready of 0, 0 to 2 on cpu/)
  assert.match(stdout, /places +.*cpu: \d+ of \d+ free/)
  const refused = await run(['deployments', 'scale', 'scaled', '--max', '2', '--off'])
  assert.match(refused.stderr, /--off stands alone/)
  await json('deployments', 'scale', 'scaled', '--off')
  assert.match((await run(['deployments', 'scaling', 'scaled'])).stdout, /runs on the shared engine/)
  await json('deployments', 'delete', 'scaled', '--yes')
})

test('each kind of failure has its exit status and a sentence on what to do, without a stack trace', async () => {
  const other = { TUNERY_URL: app.url, TUNERY_KEY: 'tny_wrong' }
  const failures: [words: string[], status: number, says: RegExp, env?: Record<string, string>][] = [
    [['frobnicate'], 2, /^'frobnicate' is not a command\. '\.\/tunery --help'/],
    [['job', 'list'], 2, /Did you mean 'jobs'\?/],
    [['jobs', 'shwo', 'x'], 2, /'jobs shwo' is not a command\. Did you mean 'show'\?/],
    [['jobs', 'list', '--limt', '3'], 2, /'--limt' is not an option.*'--limit'/],
    [['jobs', 'list', '--limit', 'many'], 2, /--limit is a whole number from 1 on, not 'many'/],
    [['jobs', 'show'], 2, /its job is missing/],
    [['train', 'none.jsonl', '--model', tiny], 2, /There is no file none\.jsonl/],
    [['train', 'package.json', '--model', 'none/none'], 4, /no model 'none\/none'/],
    [['jobs', 'show', 'job_none'], 4, /job_none/],
    [['jobs', 'list'], 3, /key is not valid/, other],
    [['jobs', 'list'], 5, /cannot be reached/, { TUNERY_URL: 'http://127.0.0.1:1/v1', TUNERY_KEY: 'x' }],
    [['jobs', 'list'], 2, /no key.*login/, {}],
    [['jobs', 'list'], 2, /No service runs on/, { TUNERY_KEY: 'x' }],
    [['jobs', 'list'], 2, /is not the address of a service/, { TUNERY_URL: 'nonsense', TUNERY_KEY: 'x' }],
    [['jobs', 'list'], 2, /characters that no key has/, { TUNERY_URL: app.url, TUNERY_KEY: 'a\nb' }],
    [['jobs', 'list', '--profile', 'none'], 2, /no profile 'none'/],
  ]
  for (const [words, status, says, env] of failures) {
    const result = await run(words, env && { env })
    assert.equal(result.status, status, `${words.join(' ')}: ${result.stderr}`)
    assert.match(result.stderr, says)
    assert.doesNotMatch(result.stderr, /\n {4}at |Error:/, words.join(' '))
    assert.equal(result.stdout, '')
  }
})

test('help names every command, and a reader that has enough ends a command quietly', async () => {
  const { status, stdout } = await run(['--help'], { env: {} })
  assert.equal(status, 0)
  const names = 'login models datasets train jobs eval deploy rollback chat export keys webhooks usage config doctor'
  for (const name of names.split(' ')) assert.match(stdout, new RegExp(`^ {2}${name}\\b`, 'm'), name)
  const piped = spawnSync('sh', ['-c', `'${path.join(root, 'tunery')}' config | true`], { encoding: 'utf8' })
  assert.deepEqual([piped.status, piped.stderr], [0, ''])
})

test('login stores a profile for its owner alone, and a key is sent to the service of its profile alone', async () => {
  const env = { XDG_CONFIG_HOME: path.join(folder, 'profiles') }
  const file = path.join(env.XDG_CONFIG_HOME, 'tunery/profiles.json')
  const refused = await run(['login', app.url, '--key-stdin'], { env, input: 'tny_wrong\n' })
  assert.equal(refused.status, 3)
  assert.ok(!existsSync(file), 'a key that is refused is not stored')
  const result = await run(['login', app.address, '--key-stdin', '--profile', 'test'], { env, input: `${app.key}\n` })
  assert.equal(result.status, 0, result.stderr)
  assert.match(result.stdout, /You are .* \(owner\) of test at .*\/v1\./)
  assert.ok(!`${result.stdout}${result.stderr}`.includes(app.key), 'a key is never shown')
  assert.equal(statSync(file).mode & 0o777, 0o600)
  assert.equal((await run(['jobs'], { env })).status, 0, 'further commands use it')
  assert.match((await run(['profiles'], { env })).stdout, /\* +test +http/)

  let keysSeen = 0
  const stranger = http.createServer((request, response) => {
    if (request.headers.authorization) keysSeen++
    response.end('{}')
  })
  await new Promise<void>((resolve) => stranger.listen(0, '127.0.0.1', resolve))
  const strange = `http://127.0.0.1:${(stranger.address() as AddressInfo).port}/v1`
  const elsewhere = await run(['jobs', '--url', strange], { env })
  stranger.close()
  assert.equal(elsewhere.status, 2)
  assert.match(elsewhere.stderr, /no key for http/)
  assert.equal(keysSeen, 0)
  // The environment is used before the current profile, and an option before both.
  const set = { ...env, TUNERY_URL: app.url, TUNERY_KEY: 'tny_wrong' }
  assert.equal((await run(['jobs'], { env: set })).status, 3)
  assert.equal((await run(['jobs', '--profile', 'test'], { env: set })).status, 0)
  assert.equal((await run(['logout'], { env })).status, 0)
  assert.equal((await run(['jobs'], { env })).status, 2)
})

test('a file is uploaded, checked by line, shown as tokens, and deleted', full, async () => {
  const bad = inFolder('bad.jsonl', `${colourRows(2)}\n{"messages":[]}\n`)
  const { id } = await json('datasets', 'upload', bad, '--name', 'bad')
  const checked = await run(['datasets', 'validate', id, '--model', tiny])
  assert.equal(checked.status, 1)
  assert.match(checked.stdout, /1 problems in 3 rows:\n {2}line 3/i)
  const refused = await run(['train', bad, '--model', tiny])
  assert.equal(refused.status, 1)
  assert.match(refused.stderr, /line 3[\s\S]*No job was started/i)
  const named = inFolder('named.csv', 'Frage,Antwort\nWann?,Um neun.\n')
  const options = ['--column', 'prompt=Frage', '--column', 'completion=Antwort']
  const mapped = await json('datasets', 'upload', named, ...options)
  assert.deepEqual([mapped.rows, mapped.columns], [1, { prompt: 'Frage', completion: 'Antwort' }])
  assert.equal((await run(['datasets', 'upload', named, '--column', 'Frage'])).status, 2)
  const { id: good } = await json('datasets', 'upload', inFolder('good.jsonl', colourRows(2)))
  assert.match(
    (await run(['datasets', 'preview', good, '--model', tiny])).stdout,
    /\[red-0/,
    'learned tokens are marked',
  )
  assert.equal((await run(['datasets', 'delete', id])).status, 2, 'nobody is there to ask')
  assert.deepEqual(await json('datasets', 'delete', id, '--yes'), { id, deleted: true })
  assert.equal((await run(['datasets', 'validate', id])).status, 4)
})

test('train goes from a file to a model, tells each event, and compare shows what differs', full, async () => {
  const file = inFolder('rows.jsonl', colourRows(16))
  const words = ['train', file, '--model', tiny, '--epochs', '1', '--no-estimate', '--learning-rate', '0.001']
  const plain = await run([...words, '--name', 'first'])
  assert.equal(plain.status, 0, plain.stderr)
  assert.match(plain.stdout, /metrics .*step=1 /)
  const modelId = /model (mdl_\w+)/.exec(plain.stdout)?.[1]
  assert.ok(modelId && plain.stdout.includes(`./tunery deploy ${modelId} NAME`))
  assert.ok(!plain.stdout.includes('\x1b'), 'no terminal, no colours')
  const [first] = await json('jobs', 'list', '--limit', '1')
  assert.equal(first.name, 'first')
  const lines = (await run(['jobs', 'follow', first.id, '--json'])).stdout.trim().split('\n')
  const [job, ...events] = lines.map((line) => JSON.parse(line)).reverse()
  assert.deepEqual([job.id, job.status, job.model], [first.id, 'completed', modelId])
  assert.deepEqual(
    events.reverse().map(({ seq }) => seq),
    events.map((_, index) => index + 1),
  )

  const config = inFolder('config.json', JSON.stringify({ lora_config: { r: 8 }, training_config: { batch_size: 2 } }))
  const detached = await json(...words, '--config', config, '--epochs', '50', '--detach')
  assert.equal((await json('jobs', 'cancel', detached.id)).status, 'cancelled')
  const { stdout } = await run(['jobs', 'compare', first.id, detached.id])
  assert.match(stdout, /^r +\d+ +8$/m)
  assert.match(stdout, /^epochs +1 +50$/m)
  assert.doesNotMatch(stdout, /learning_rate/, 'what is the same is left out')
  const followed = await run(['jobs', 'follow', detached.id])
  assert.equal(followed.status, 1)
  assert.match(followed.stderr, /was cancelled/)
})

test('a model is deployed, asked, evaluated beside its base, and paid for', async () => {
  assert.match((await run(['deploy', model, 'colours'])).stdout, /colours serves mdl_/)
  assert.equal((await json('deploy', tiny, 'colours')).model, tiny)
  assert.equal((await json('rollback', 'colours')).model, model)
  const asked = { input: 'code of red?', env: keyed }
  const options = ['-t', '0', '--max-tokens', '8']
  const one = (await run(['chat', 'colours', ...options, '--json'], asked)).json()
  assert.equal(one.completion_tokens, 8)
  const both = await run(['chat', 'colours', tiny, ...options], asked)
  assert.ok(both.stdout.startsWith(`colours:\n${one.content}\n`) && both.stdout.includes(`\n${tiny}:\n`), both.stdout)

  const { id: dataset } = await json('datasets', 'upload', inFolder('few.jsonl', colourRows(3)))
  const graders = inFolder('graders.json', JSON.stringify([{ type: 'regex', name: 'any', pattern: '.' }]))
  const evaluate = ['eval', 'colours', '--dataset', dataset, '--graders', graders, '--baseline', tiny, '--wait']
  const evaluated = await json(...evaluate)
  assert.deepEqual([evaluated.status, evaluated.result.model.rows], ['completed', 3])
  assert.match((await run(['eval', 'show', evaluated.id])).stdout, /Difference: [\s\S]*Row 1[\s\S]*asked +code of/)
  await until('usage of the answers', async () => (await json('usage')).total.completion_tokens >= 8)
  assert.match((await run(['usage', '--by', 'model'])).stdout, /colours/)
})

test('webhooks listen receives a verified event, forwards it with its headers, and leaves no webhook', async () => {
  const receiver = await startReceiver()
  const env = { ...cliEnv(folder), ...keyed }
  const listening = startCli(env, [
    'webhooks',
    'listen',
    '--events',
    'model.deployed',
    '--forward',
    receiver.url,
    '--json',
  ])
  try {
    await until('the webhook', () => /Ctrl-C ends it/.test(listening.stderr()))
    const url = /to (http\S+?),/.exec(listening.stderr())![1]!
    const forged = await fetch(url, { method: 'POST', body: '{}' })
    assert.equal(forged.status, 401)
    await json('deploy', model, 'announced')
    await until('the event', () => listening.stdout().includes('\n'))
    assert.equal(JSON.parse(listening.stdout()).data.name, 'announced')
    assert.equal(receiver.received.length, 1)
    assert.ok(receiver.received[0]!.headers['webhook-signature'])
  } finally {
    listening.child.kill('SIGINT')
    await listening.ended
    receiver.stop()
  }
  assert.deepEqual(await json('webhooks', 'list'), [])
})

test('a shell completes commands, options and ids', async () => {
  const complete = async (...words: string[]) => (await run(['complete', '--', ...words])).stdout.split('\n')
  assert.ok((await complete('datasets', 'va')).some((line) => line.startsWith('validate\t')))
  assert.ok((await complete('jobs', 'list', '--sta')).some((line) => line.startsWith('--status\t')))
  assert.ok((await complete('models', 'show', 'mdl_')).some((line) => line.startsWith(`${model}\t`)))
  assert.deepEqual(await complete('train', 'rows'), [':0', ''], 'the shell completes names of files')
  for (const shell of ['bash', 'zsh', 'fish']) {
    const { status, stdout } = await run(['completion', shell], { env: {} })
    assert.equal(status, 0)
    assert.match(stdout, /tunery complete -- /)
  }
})

test('doctor tells what is wrong and what to do', async () => {
  const { status, json } = await run(['doctor', '--json'], { env: { TUNERY_URL: app.url, TUNERY_KEY: 'tny_wrong' } })
  assert.equal(status, 1)
  const { ok, checks } = json()
  const find = (name: string) => checks.find((check: { name: string }) => check.name === name)
  assert.deepEqual([ok, find('torch').status, find('key').status], [false, 'ok', 'problem'])
  assert.match(find('key').todo, /login/)
})

test(
  'the package works on its own: installed offline from its tarball, it runs a command on a service',
  full,
  async () => {
    const target = path.join(folder, 'package')
    mkdirSync(target)
    writeFileSync(path.join(target, 'package.json'), '{"private":true}')
    const packed = execFileSync(process.execPath, [path.join(root, 'scripts/pack-cli.ts'), target], {
      encoding: 'utf8',
    })
    execFileSync('npm', ['install', '--offline', '--no-audit', '--no-fund', packed.trim()], {
      cwd: target,
      stdio: 'pipe',
    })
    const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'))
    const asked = execFileSync('npx', ['--offline', 'tunery', '--version'], { cwd: target, encoding: 'utf8' })
    assert.equal(asked.trim(), version)
    const command = path.join(target, 'node_modules/.bin/tunery')
    const listed = await run(['models', 'list', '--json'], { command })
    assert.equal(
      listed.json().models.some(({ id }: { id: string }) => id === model),
      true,
      listed.stderr,
    )
    const local = await run(['backup', 'x'], { command })
    assert.equal(local.status, 2)
    assert.match(local.stderr, /needs a checkout of Tunery/)
  },
)

test('a name is enough where an id is asked for; of several with one name the ids are listed', async () => {
  const named = (id: string, name: string) => app.api('PATCH', `/fine-tuning/models/${id}`, { name })
  const [first, second] = [await app.colourModel(), await app.colourModel()]
  await named(first, 'parts')
  assert.equal((await json('models', 'show', 'parts')).id, first)
  assert.equal((await json('deploy', 'parts', 'parts-live')).model, first)
  await named(second, 'parts')
  const refused = await run(['models', 'show', 'parts'])
  assert.equal(refused.status, 2)
  for (const id of [first, second]) assert.ok(refused.stderr.includes(id), refused.stderr)
  // A deployment goes before a model of its name, and what nothing is called is the service's to refuse.
  await named(first, 'parts-live')
  assert.match((await run(['chat', 'parts-live', '--json'], { input: 'code of red?' })).stdout, /"model":"parts-live"/)
  assert.match((await run(['jobs', 'show', 'nothing'])).stderr, /There is no job 'nothing'/)
})

test('train without a model begins with the recommended base, and holds a tenth of the rows out', async () => {
  const file = inFolder('twenty.jsonl', colourRows(20))
  const started = (...words: string[]) => json('train', file, '--no-estimate', '--epochs', '50', '--detach', ...words)
  const splitOf = ({ config }: { config: { evaluation_config?: { validation_split?: number } } }) =>
    config.evaluation_config?.validation_split
  const job = await started()
  assert.equal(job.model_id, tiny)
  assert.equal(splitOf(job), 0.1)
  const all = await started('--no-hold-out')
  assert.equal(splitOf(all), undefined)
  const few = await json('train', inFolder('nine.jsonl', colourRows(9)), '--no-estimate', '--epochs', '50', '--detach')
  assert.equal(splitOf(few), undefined, 'a tenth of nine rows is none')
  for (const { id } of [job, all, few]) await json('jobs', 'cancel', id)
  await app.untilEnded(job.id)
  assert.deepEqual(await json('jobs', 'delete', job.id, '--yes'), { id: job.id, deleted: true })
})
