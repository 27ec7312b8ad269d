// The service's image, tested without a container: runs the steps of deploy/Dockerfile in folders, then its command.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { parse } from 'yaml'
import { root } from '../../lib/root.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { buildOutside, linkTree, type Stage, stageEnv } from '../support/dockerfile.ts'
import { ended } from '../support/server.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

// `npm run test:deploy` downloads everything, as `docker build` does. Otherwise the stages reuse what set-up has
// installed in this checkout; their own set-up still reads every file that its steps depend on.
const fetchAll = process.env.FETCH_ALL === '1'
const file = path.join(root, 'deploy/Dockerfile')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-deploy-'))
const local = realpathSync(path.join(root, '.local'))
const setupParts: Record<string, string[]> = { packages: ['llama'], python: ['python', 'models'] }
let image: Stage
let skipped: string[]
let server: ChildProcess
let log = ''
let port: string
let api: Client
/** The image's user, if this process can switch to it and it can run this machine's programs. */
const asUser = mayBecome(10001) ? { uid: 10001, gid: 10001 } : { uid: undefined, gid: undefined }

function mayBecome(uid: number): boolean {
  const runs = (program: string) => spawnSync(program, ['--version'], { uid, gid: uid }).status === 0
  return process.getuid?.() === 0 && runs(process.execPath) && runs(path.join(local, 'python/bin/python'))
}

function reuseSetup(stage: Stage): void {
  const parts = setupParts[stage.name]
  if (!parts || fetchAll) return
  const to = path.join(stage.folder, 'app/.local')
  mkdirSync(to, { recursive: true })
  cpSync(path.join(local, 'stamps'), path.join(to, 'stamps'), { recursive: true })
  // npm runs again, as the image must not have the tests' packages.
  rmSync(path.join(to, 'stamps/npm'))
  // Copy models instead of linking, as the stage changes their modes.
  for (const part of parts)
    if (part === 'models') cpSync(path.join(local, part), path.join(to, part), { recursive: true })
    else linkTree(path.join(local, part), path.join(to, part))
}

before(async () => {
  // A checkout that only its owner may read, as under umask 077.
  const context = path.join(folder, 'context')
  const excluded = ['.git', '.local', 'node_modules', 'data'].map((name) => path.join(root, name))
  cpSync(root, context, { recursive: true, filter: (name) => !excluded.includes(name) })
  execFileSync('chmod', ['--recursive', 'go-rwx', context])
  const built = buildOutside({ file, context, folder, prepare: reuseSetup })
  image = built.stage
  skipped = built.skipped
  chmodSync(folder, 0o755)
  const data = path.join(image.folder, 'data')
  // A tiny base model, installed as by `./tunery models add`.
  cpSync(path.join(tinyModelsDir(), tiny), path.join(data, 'base-models', tiny), { recursive: true })
  if (asUser.uid) execFileSync('chown', ['--recursive', `${asUser.uid}:${asUser.gid}`, data])
  server = spawn(process.execPath, image.command.slice(1), {
    cwd: path.join(image.folder, image.workdir),
    env: {
      PATH: process.env.PATH,
      ...stageEnv(image),
      TUNERY_PORT: '0',
      TUNERY_HOST: '127.0.0.1',
      TUNERY_THREADS: '1',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    ...asUser,
  })
  for (const stream of [server.stdout, server.stderr])
    stream!.on('data', (text) => {
      log += text
    })
  const address = path.join(data, 'tunery/server.json')
  await until('the server to listen', () => {
    if (server.exitCode !== null) throw new Error(`the server ended with status ${server.exitCode}:\n${log}`)
    return existsSync(address)
  })
  const { url } = JSON.parse(readFileSync(address, 'utf8'))
  api = client(url, readFileSync(path.join(data, 'tunery/first-key.txt'), 'utf8').trim())
  port = new URL(url).port
})
after(async () => {
  server?.kill('SIGKILL')
  if (server) await ended(server)
  rmSync(folder, { recursive: true, force: true })
})

test('only steps that need root or a registry image are skipped', () => {
  assert.deepEqual(skipped.map((step) => step.split(' ').slice(0, 2).join(' ')).sort(), [
    'ENTRYPOINT ["tini",',
    'RUN apt-get',
    'RUN apt-get',
    'RUN install',
  ])
})

test('the image has no data, no tests and no test packages', () => {
  const app = path.join(image.folder, 'app')
  const expected = [
    '.local',
    '.npmrc',
    'LICENSE',
    'cli',
    'contract',
    'deploy',
    'engine',
    'lib',
    'node_modules',
    'package-lock.json',
    'package.json',
    'scripts',
    'server',
    'trainer',
    'tunery',
  ]
  assert.deepEqual(readdirSync(app).sort(), expected)
  assert.deepEqual(readdirSync(path.join(app, '.local')).sort(), ['llama', 'models', 'python'])
  for (const file of ['trainer/tests', 'node_modules/typescript', 'node_modules/openai', 'scripts/setup.mjs'])
    assert.ok(!existsSync(path.join(app, file)), file)
})

test('the image’s user can read all its files', () => {
  const app = path.join(image.folder, 'app')
  assert.equal(
    execFileSync(
      'find',
      [app, '(', '-not', '-perm', '-o=r', '-o', '-type', 'd', '-not', '-perm', '-o=rx', ')', '-print'],
      { encoding: 'utf8' },
    ),
    '',
  )
})

test('the health check passes when the service is ready, and fails without a service', () => {
  const check = (at: string) =>
    spawnSync(process.execPath, image.healthcheck.slice(1), { env: { ...process.env, TUNERY_PORT: at } }).status
  assert.deepEqual([check(port), check('1')], [0, 1])
})

test('the image’s service answers with its default model, and trains and serves a tuned one', async () => {
  const ask = (model: string) =>
    api.api('POST', '/chat/completions', {
      model,
      temperature: 0,
      max_tokens: 4,
      messages: [{ role: 'user', content: 'Say hello.' }],
    })
  const answer = await ask('HuggingFaceTB/SmolLM2-135M-Instruct')
  assert.equal(answer.status, 200, JSON.stringify(answer.body))
  const dataset = (await api.upload(colourRows(8))).body.id
  const { body: job } = await api.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset,
    config: { training_config: { epochs: 1 } },
  })
  const done = await api.untilEnded(job.id)
  assert.equal(done.status, 'completed', JSON.stringify(done.error) + log)
  assert.equal((await ask(done.model!)).status, 200)
})

test('the command line works in the image: keys, backup and restore while the service runs, bundle', () => {
  const env = { PATH: `${path.dirname(process.execPath)}:${process.env.PATH}`, ...stageEnv(image) }
  const tunery = (args: string[], more: Record<string, string> = {}) => {
    const { status, stdout, stderr } = spawnSync('./tunery', args, {
      cwd: path.join(image.folder, 'app'),
      env: { ...env, ...more },
      encoding: 'utf8',
      ...asUser,
    })
    assert.equal(status, 0, stderr)
    return stdout
  }
  assert.match(JSON.parse(tunery(['keys', 'create', '--name', 'x', '--json'])).key, /^tny_/)
  const data = path.join(image.folder, 'data')
  tunery(['backup', path.join(data, 'backups/monday')])
  tunery(['restore', path.join(data, 'backups/monday')], { TUNERY_DATA_DIR: path.join(data, 'restored') })
  assert.ok(existsSync(path.join(data, 'restored/tunery.db')))
  const gguf = path.join(data, 'base-models', tiny, 'model.gguf')
  tunery(['bundle', 'small', '--gguf', gguf, '-o', path.join(data, 'bundle')])
  assert.ok(existsSync(path.join(data, 'bundle/Dockerfile')) && existsSync(path.join(data, 'bundle/engine/main.ts')))
})

test('SIGTERM ends the service with status 0, and it has written nothing into the image', async () => {
  server.kill('SIGTERM')
  await ended(server)
  assert.equal(server.exitCode, 0, log)
  const newer = execFileSync(
    'find',
    [path.join(image.folder, 'app'), '-newer', path.join(image.folder, 'data/tunery/first-key.txt'), '-type', 'f'],
    {
      encoding: 'utf8',
    },
  )
  assert.equal(newer, '')
})

interface Service {
  build: { context: string; dockerfile: string; args: { TUNERY_GPU: string } }
  image: string
  user: string
  volumes: string[]
  ports: string[]
  stop_grace_period: string
}

test('compose.yaml and the Dockerfiles agree, and their versions match the checkout', () => {
  const text = readFileSync(file, 'utf8')
  const { services } = parse(readFileSync(path.join(root, 'deploy/compose.yaml'), 'utf8'), { merge: true })
  const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'))
  const node = JSON.parse(readFileSync(path.join(root, 'scripts/setup/pins.json'), 'utf8')).node['linux-x64'].version
  for (const each of [text, readFileSync(path.join(root, 'deploy/Dockerfile.model'), 'utf8')]) {
    assert.ok(each.includes(`FROM node:${node}-bookworm-slim AS node`))
    for (const [, image] of each.matchAll(/^FROM (\S+)/gm))
      assert.match(image!, /^(node|base-\$\{TUNERY_GPU\}|\S+:\d+\.\d+\.\d+-\S+)$/, 'a version is named')
  }
  assert.deepEqual(Object.keys(services), ['tunery', 'tunery-cuda'])
  for (const { build, image: name, user, volumes, ports, stop_grace_period } of Object.values(
    services as Record<string, Service>,
  )) {
    const { context, dockerfile, args } = build
    assert.equal(path.resolve(root, 'deploy', context, dockerfile), file)
    assert.ok(text.includes(` AS base-${args.TUNERY_GPU}\n`))
    assert.equal(name, `tunery:${version}${args.TUNERY_GPU === 'none' ? '' : `-${args.TUNERY_GPU}`}`)
    assert.equal(user, image.user)
    assert.deepEqual([volumes, ports], [[`data:${image.volumes[0]}`], [`127.0.0.1:8000:${image.env.TUNERY_PORT}`]])
    assert.ok(Number.parseInt(stop_grace_period, 10) > 40, 'enough time for answers and checkpoints')
  }
})

test('the guide’s commands name existing profiles, services and files', () => {
  const { services } = parse(readFileSync(path.join(root, 'deploy/compose.yaml'), 'utf8'), { merge: true })
  const texts = ['docs/guides/self-host.md', 'deploy/compose.yaml']
    .map((name) => readFileSync(path.join(root, name), 'utf8'))
    .join('\n')
  const commands = [...texts.matchAll(/docker compose (-f (\S+) --profile (\S+) .*)/g)]
  assert.ok(commands.length > 8)
  for (const [line, , name, profile] of commands) {
    assert.equal(path.resolve(root, name!), path.join(root, 'deploy/compose.yaml'))
    const service = Object.keys(services).find((each) => services[each].profiles.includes(profile))
    assert.ok(service, line)
    const within = /(?:exec|run --rm) (\S+)/.exec(line!)
    if (within) assert.equal(within[1], service, line)
  }
})
