// A bundle without the rest of Tunery: its folder, the paths that its Dockerfile copies, and its server. `npm run
// test:deploy` also builds and runs the image where docker or podman can.
import assert from 'node:assert/strict'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import {
  buildAndRun,
  containerTool,
  copyStage,
  environmentOf,
  jsonOf,
  type Stage,
  stagesOf,
} from '../support/dockerfile-copies.ts'
import { type Standalone, standalone } from '../support/standalone.ts'

// Set by scripts/test.ts for trainers; a bundle refuses settings that it does not have.
delete process.env.TUNERY_TRAINING_PRIORITY

const gguf = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/model.gguf')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bundle-'))
const bundle = path.join(folder, 'tickets-bundle')
/** What the image has in `/app`. */
const app = path.join(folder, 'app')
const adapter = path.join(folder, 'adapter.gguf')
const key = 'a-key-of-this-test-only'
const guide = readFileSync(path.join(root, 'docs/guides/self-host.md'), 'utf8')
/** The only line in the guide's code that begins with this text, split into words. */
function fromGuide(beginning: string): string[] {
  const lines = [...guide.matchAll(/^```sh\n(.*?)^```/gms)]
    .flatMap(([, block]) => block!.split('\n'))
    .filter((line) => line.startsWith(beginning))
  assert.equal(lines.length, 1, beginning)
  return lines[0]!.split(' ')
}
const tunery = (...args: string[]) =>
  spawnSync(path.join(root, 'tunery'), ['bundle', ...args], { cwd: folder, encoding: 'utf8' })
let image: Stage
let server: Standalone

/** Starts the image's command with its environment. */
function start(env: NodeJS.ProcessEnv = {}): Promise<Standalone> {
  const [command, ...args] = jsonOf(image, 'CMD')
  assert.equal(command, 'node')
  return standalone(process.execPath, args, {
    cwd: app,
    env: { ...environmentOf(image, [], ''), TUNERY_THREADS: '1', ...env },
  })
}

before(async () => {
  const maker = path.join(root, 'tests/process/engine/make-adapter.py')
  execFileSync(path.join(root, '.local/python/bin/python'), [
    maker,
    path.join(root, '.local/llama/source/gguf-py'),
    adapter,
    '1',
  ])
  symlinkSync(gguf, path.join(folder, 'tickets.gguf'))
  const { status, stdout, stderr } = tunery(
    ...fromGuide('./tunery bundle tickets --gguf').slice(2),
    '--adapter',
    `tuned=${adapter}`,
  )
  assert.equal(status, 0, stderr)
  assert.match(stdout, /docker build/)
  const stages = stagesOf(path.join(bundle, 'Dockerfile'))
  image = stages.last!
  const packages = path.join(folder, 'packages')
  copyStage(stages.packages!, packages, bundle)
  const [npm, ...args] = fromGuide('npm ci')
  assert.ok(stages.packages!.text.includes(`\nRUN ${[npm, ...args].join(' ')}\n`))
  execFileSync(npm!, args, { cwd: packages })
  copyStage(image, app, bundle, { packages })
  writeFileSync(path.join(folder, 'keys'), `${key}\n`)
  server = await start({ TUNERY_PORT: '0', TUNERY_ENGINE_KEY_FILE: path.join(folder, 'keys') })
})
after(async () => {
  server?.kill('SIGKILL')
  await server?.exited
  rmSync(folder, { recursive: true })
})

const client = (prefix: string, apiKey = key) =>
  new OpenAI({ baseURL: `${server.url}${prefix}`, apiKey, maxRetries: 0 })
const story = {
  model: 'tickets',
  messages: [{ role: 'user' as const, content: 'Tell me a story about a fox.' }],
  temperature: 0,
  max_tokens: 16,
  seed: 1,
}

test('the image contains only what serves the model: no key, no settings, no other package', () => {
  assert.deepEqual(readdirSync(app).sort(), [
    'LICENSE',
    'bundle.json',
    'contract',
    'engine',
    'lib',
    'model',
    'node_modules',
    'package.json',
    'pictures',
    'start.mjs',
    'telemetry',
  ])
  // Our kernels come from the machine that writes the bundle.
  for (const file of ['avx512', 'avx2'].map((set) => `libtunery-kernels-${set}.so`))
    assert.equal(
      existsSync(path.join(app, 'engine/kernels', file)),
      existsSync(path.join(root, '.local/llama/lib', file)),
    )
  assert.match(image.text, /^USER 10001:10001$/m)
  assert.ok(!existsSync(path.join(app, 'node_modules/fastify')))
  const described = JSON.parse(readFileSync(path.join(app, 'bundle.json'), 'utf8'))
  assert.deepEqual(
    [described.model.name, described.adapters[0].name, described.model.size_bytes],
    ['tickets', 'tuned', statSync(gguf).size],
  )
  // Its lockfile has the versions and hashes of this checkout.
  const lock = (file: string) =>
    JSON.parse(readFileSync(file, 'utf8')).packages as Record<
      string,
      { version: string; integrity?: string; resolved?: string }
    >
  const ours = lock(path.join(root, 'package-lock.json'))
  for (const [name, entry] of Object.entries(lock(path.join(bundle, 'package-lock.json')))) {
    if (name === '') continue
    assert.ok(entry.integrity && !entry.resolved, name)
    if (!name.includes('@node-llama-cpp'))
      assert.deepEqual([entry.version, entry.integrity], [ours[name]!.version, ours[name]!.integrity])
  }
})

test('model and adapter answer an OpenAI client, whole and streamed; a wrong key is refused', async () => {
  const whole = await client('/v1').chat.completions.create(story)
  let streamed = ''
  for await (const chunk of await client('/api/v1').chat.completions.create({ ...story, stream: true }))
    streamed += chunk.choices[0]?.delta.content ?? ''
  assert.equal(streamed, whole.choices[0]!.message.content)
  const tuned = await client('/v1').chat.completions.create({ ...story, model: 'tuned' })
  assert.notEqual(tuned.choices[0]!.message.content, streamed)
  await assert.rejects(
    client('/v1', 'a-key-of-another-test').chat.completions.create(story),
    OpenAI.AuthenticationError,
  )
})

test('structured output works: the bundle has its packages', async () => {
  const schema = {
    type: 'object',
    properties: { urgent: { type: 'boolean' } },
    required: ['urgent'],
    additionalProperties: false,
  }
  const answer = await client('/v1').chat.completions.create({
    ...story,
    max_tokens: 40,
    response_format: { type: 'json_schema', json_schema: { name: 'ticket', strict: true, schema } },
  })
  assert.equal(typeof JSON.parse(answer.choices[0]!.message.content!).urgent, 'boolean')
})

test('the guide’s commands without Docker start the same model, on localhost only', async () => {
  assert.deepEqual(fromGuide('node start.mjs'), jsonOf(image, 'CMD'))
  const [node, ...args] = fromGuide('node engine/main.ts')
  assert.equal(node, 'node')
  const started = await standalone(
    process.execPath,
    args.map((word) => word.replace(':8000', ':0')),
    { cwd: app },
  )
  const openai = new OpenAI({ baseURL: `${started.url}/v1`, apiKey: 'none', maxRetries: 0 })
  assert.ok((await openai.chat.completions.create(story)).choices[0]!.message.content)
  assert.match(started.stderr(), /No API key is set/)
  assert.match(started.url, /127\.0\.0\.1/)
  started.kill('SIGKILL')
  await started.exited
})

test('the image’s health check tells whether the server answers', () => {
  const [, ...args] = jsonOf(image, 'HEALTHCHECK')
  const check = (port: string) =>
    spawnSync(process.execPath, args, { env: { ...process.env, TUNERY_PORT: port } }).status
  assert.equal(check(new URL(server.url).port), 0)
  assert.equal(check('1'), 1)
})

test('SIGTERM lets a stream end and ends the server with 0', async () => {
  const stopping = await start({ TUNERY_PORT: '0', TUNERY_HOST: '127.0.0.1' })
  const openai = new OpenAI({ baseURL: `${stopping.url}/v1`, apiKey: 'none', maxRetries: 0 })
  let last: string | null = null
  for await (const chunk of await openai.chat.completions.create({ ...story, stream: true, max_tokens: 60 })) {
    if (last === null) stopping.kill('SIGTERM')
    last = chunk.choices[0]?.finish_reason ?? ''
  }
  assert.ok(last === 'stop' || last === 'length')
  assert.equal(await stopping.exited, 0)
})

test('startup explains an old Node, missing packages and an unknown setting', () => {
  const run = (cwd: string, node: string, env: NodeJS.ProcessEnv = {}) => {
    const { status, stderr } = spawnSync(node, ['start.mjs'], {
      cwd,
      encoding: 'utf8',
      env: { ...process.env, ...env },
    })
    assert.equal(status, 1)
    return stderr
  }
  assert.match(run(bundle, process.execPath), /The packages are missing\. Run 'npm ci/)
  assert.match(run(app, process.execPath, { TUNERY_PROT: '1' }), /no setting TUNERY_PROT/)
  assert.match(run(app, process.execPath, { TUNERY_ENGINE_KEY: '' }), /TUNERY_ENGINE_KEY holds no key/)
  // Simulates an older Node.
  const older = path.join(folder, 'older.mjs')
  writeFileSync(older, "Object.defineProperty(process.versions, 'node', { value: '20.1.0' })\n")
  const { status, stderr } = spawnSync(process.execPath, ['--import', older, 'start.mjs'], {
    cwd: bundle,
    encoding: 'utf8',
  })
  assert.equal(status, 1)
  assert.match(stderr, /needs Node 24 or newer, and .* is 20\.1\.0/)
})

test('bundle files are readable by the image’s user under any umask, also when -o is a link', () => {
  const [small, empty, link] = ['small.gguf', 'empty', 'link'].map((name) => path.join(folder, name)) as [
    string,
    string,
    string,
  ]
  writeFileSync(small, 'GGUF')
  mkdirSync(empty)
  symlinkSync(empty, link)
  const before = process.umask(0o077)
  const { status, stderr } = tunery('small', '--gguf', small, '-o', link)
  process.umask(before)
  assert.equal(status, 0, stderr)
  const files = readdirSync(empty, { recursive: true, withFileTypes: true })
  assert.ok(files.length > 50)
  for (const entry of files) {
    const file = path.join(entry.parentPath, entry.name)
    assert.equal(statSync(file).mode & 0o777, entry.isDirectory() ? 0o755 : 0o644, file)
  }
})

test('a command stopped by a signal leaves nothing behind', async () => {
  const large = path.join(folder, 'large.gguf')
  writeFileSync(large, 'GGUF')
  truncateSync(large, 4e9)
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    const running = spawn(path.join(root, 'tunery'), ['bundle', large, '-o', path.join(folder, 'stopped')], {
      stdio: 'ignore',
    })
    const exited = once(running, 'exit')
    await until('it to write', () => existsSync(path.join(folder, `stopped.${running.pid}.part`, 'model')))
    running.kill(signal)
    await exited
    assert.deepEqual(
      readdirSync(folder).filter((name) => name.startsWith('stopped')),
      [],
    )
  }
  rmSync(large)
})

test('invalid arguments are refused and leave nothing behind', () => {
  const text = path.join(folder, 'text.gguf')
  writeFileSync(text, 'no weights')
  const full = path.join(folder, 'full')
  mkdirSync(full)
  writeFileSync(path.join(full, 'mine'), '')
  const locked = path.join(folder, 'file')
  writeFileSync(locked, '')
  chmodSync(locked, 0o644)
  const pipe = path.join(folder, 'pipe')
  execFileSync('mkfifo', [pipe])
  const out = path.join(folder, 'never')
  for (const [args, says] of [
    [['tickets', '--gguf', gguf, '--quantization', 'Q4_0', '-o', out], /a file has its own/],
    [['a\nb', '-o', out], /cannot be a model's name/],
    [['tickets', '--gguf', gguf], /-o FOLDER/],
    [['tickets', '--gguf', path.join(folder, 'none.gguf'), '-o', out], /does not exist/],
    [['tickets', '--gguf', text, '-o', out], /is not a GGUF file/],
    [['tickets', '--gguf', folder, '-o', out], /GGUF|directory/],
    [['tickets', '--gguf', pipe, '-o', out], /is not a GGUF file/],
    [['tickets', '--gguf', gguf, '-o', full], /is not empty/],
    [['tickets', '--gguf', gguf, '-o', path.join(locked, 'x')], /cannot be written/],
    [['a\nb', '--gguf', gguf, '-o', out], /cannot be a model's name/],
    [['tickets', '--gguf', gguf, '--adapter', `tickets=${adapter}`, '-o', out], /names of their own/],
    [['tickets', '--gguf', gguf, '--adapter', adapter, '-o', out], /NAME=FILE/],
    [['tickets', '--gguf', gguf, '--gpu', 'rocm', '-o', out], /none or cuda/],
  ] as const) {
    const { status, stderr } = tunery(...args)
    assert.equal(status, 2, `${args.join(' ')}: ${stderr}`)
    assert.match(stderr, says)
  }
  assert.deepEqual(
    readdirSync(folder).filter((name) => name.startsWith('never')),
    [],
  )
  assert.deepEqual(readdirSync(full), ['mine'])
})

const fetchAll = process.env.FETCH_ALL === '1'
const tool = fetchAll ? containerTool() : undefined
const why = fetchAll ? 'neither docker nor podman runs here' : 'npm run test:deploy'
test('docker or podman builds the bundle’s image, and its server becomes ready', { skip: !tool && why }, async () => {
  await buildAndRun(tool!, path.join(bundle, 'Dockerfile'), bundle, '/health')
})
