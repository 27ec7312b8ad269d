// The service's image, tested without a container: the paths that deploy/Dockerfile copies are copied into folders, its
// set-up runs there, then its command. `npm run test:deploy` also builds and runs the image where docker or podman can.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import {
  buildAndRun,
  containerTool,
  copyStage,
  environmentOf,
  jsonOf,
  linkTree,
  stagesOf,
} from '../support/dockerfile-copies.ts'
import { ended } from '../support/server.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

// `npm run test:deploy` downloads everything, as `docker build` does. Otherwise set-up finds what it has installed in
// this checkout, and must find it up to date: it still reads every file that its steps depend on.
const fetchAll = process.env.FETCH_ALL === '1'
const file = path.join(root, 'deploy/Dockerfile')
const stages = stagesOf(file)
const image = stages.last!
const volume = jsonOf(image, 'VOLUME')[0]!
const command = jsonOf(image, 'CMD')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-deploy-'))
const app = path.join(folder, 'app')
const data = path.join(folder, volume)
const env = environmentOf(image, [volume, '/app'], folder)
const local = realpathSync(path.join(root, '.local'))
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

/** Runs the set-up of a stage in a folder with the paths that the stage copies, and nothing else of the checkout. */
function setUp(name: string, parts: string[], others: Record<string, string> = {}): string {
  const at = path.join(folder, name)
  const stage = stages[name]!
  copyStage(stage, at, root, others)
  if (!fetchAll) {
    // Models are copied, not linked: the stage changes their modes. So are stamps, which a set-up may write.
    for (const part of ['stamps', ...parts])
      if (['models', 'stamps'].includes(part))
        cpSync(path.join(local, part), path.join(at, '.local', part), { recursive: true })
      else linkTree(path.join(local, part), path.join(at, '.local', part))
    if (name === 'packages') linkProductionPackages(at)
  }
  const steps = [...stage.text.matchAll(/node scripts\/setup\.mjs --only (\S+)/g)]
  assert.ok(steps.length > 0)
  for (const [, only] of steps) {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/setup.mjs', '--only', only!], {
      cwd: at,
      env: { ...process.env, ...environmentOf(stage, [], ''), ...(fetchAll && { TUNERY_GPU: 'none' }) },
      encoding: 'utf8',
    })
    assert.equal(status, 0, stdout + stderr)
    if (!fetchAll) assert.equal(stdout, '', 'set-up finds its files, and what this checkout has installed')
  }
  changeModes(name, at)
  return at
}

/** The packages that `npm ci --omit=dev` installs, from this checkout's. */
function linkProductionPackages(at: string): void {
  linkTree(path.join(root, 'node_modules'), path.join(at, 'node_modules'))
  const { packages } = JSON.parse(readFileSync(path.join(root, 'package-lock.json'), 'utf8'))
  for (const [name, { dev }] of Object.entries(packages as Record<string, { dev?: boolean }>))
    if (dev) rmSync(path.join(at, name), { recursive: true, force: true })
}

/** Runs the `chmod` of a stage. */
function changeModes(name: string, at: string): void {
  for (const [, args] of stages[name]!.text.matchAll(/chmod ([^&\n]+)/g))
    execFileSync('chmod', args!.trim().split(' '), { cwd: at })
}

before(async () => {
  const packages = setUp('packages', ['llama', ...(existsSync(path.join(local, 'kernels')) ? ['kernels'] : [])])
  const python = setUp('python', ['python', 'models'], { packages })
  const web = setUp('web', ['web'], { packages })
  const source = path.join(folder, 'source')
  copyStage(stages.source!, source, root)
  // As in a checkout that only its owner may read, under umask 077.
  execFileSync('chmod', ['--recursive', 'go-rwx', source])
  changeModes('source', source)
  copyStage(image, app, root, { packages, python, source, web })
  chmodSync(folder, 0o755)
  // A tiny base model, installed as by `./tunery models add`.
  cpSync(path.join(tinyModelsDir(), tiny), path.join(data, 'base-models', tiny), { recursive: true })
  if (asUser.uid) execFileSync('chown', ['--recursive', `${asUser.uid}:${asUser.gid}`, data])
  server = spawn(process.execPath, command.slice(1), {
    cwd: app,
    env: { PATH: process.env.PATH, ...env, TUNERY_PORT: '0', TUNERY_HOST: '127.0.0.1', TUNERY_THREADS: '1' },
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

test('the image has no data, no tests and no test packages', () => {
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
    'sdk',
    'server',
    'telemetry',
    'trainer',
    'tunery',
  ]
  assert.deepEqual(readdirSync(app).sort(), expected)
  assert.deepEqual(readdirSync(path.join(app, '.local')).sort(), ['llama', 'models', 'python', 'web'])
  for (const file of ['trainer/tests', 'node_modules/typescript', 'node_modules/openai', 'scripts/setup.mjs'])
    assert.ok(!existsSync(path.join(app, file)), file)
})

test('the image’s user can read all its files', () => {
  const unreadable = ['(', '-not', '-perm', '-o=r', '-o', '-type', 'd', '-not', '-perm', '-o=rx', ')']
  assert.equal(execFileSync('find', [app, ...unreadable, '-print'], { encoding: 'utf8' }), '')
})

test('the converter of base models has its files in the stage that converts them', () => {
  const python = path.join(folder, 'python')
  // Also what the converter imports only when it needs it.
  const modules = ['trainer/cli/prepare_base.py', 'trainer/runtime/converters.py'].flatMap((file) =>
    [...readFileSync(path.join(python, file), 'utf8').matchAll(/^\s*from (trainer\.\S+) import/gm)].map(
      ([, name]) => name!,
    ),
  )
  assert.ok(modules.includes('trainer.runtime.converters'))
  // The default models were checked when they were chosen: this stage has no engine.
  const needed = modules.filter((name) => name !== 'trainer.run.base_check')
  const names = ['trainer.cli.prepare_base', ...needed].join()
  execFileSync('.local/python/bin/python', ['-c', `import ${names}`], { cwd: python })
  assert.ok(existsSync(path.join(python, '.local/llama/source/convert_hf_to_gguf.py')))
})

test('the health check passes when the service is ready, and fails without a service', () => {
  const check = (at: string) =>
    spawnSync(process.execPath, jsonOf(image, 'HEALTHCHECK').slice(1), { env: { ...process.env, TUNERY_PORT: at } })
      .status
  assert.deepEqual([check(port), check('1')], [0, 1])
})

test('the image serves the dashboard', async () => {
  const response = await fetch(`http://127.0.0.1:${port}/jobs`, { headers: { accept: 'text/html' } })
  assert.equal(response.status, 200)
  assert.match(await response.text(), /<div id="root">/)
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
  const tunery = (args: string[], more: Record<string, string> = {}) => {
    const { status, stdout, stderr } = spawnSync('./tunery', args, {
      cwd: app,
      env: { PATH: `${path.dirname(process.execPath)}:${process.env.PATH}`, ...env, ...more },
      encoding: 'utf8',
      ...asUser,
    })
    assert.equal(status, 0, stderr)
    return stdout
  }
  assert.match(JSON.parse(tunery(['keys', 'create', '--name', 'x', '--json'])).key, /^tny_/)
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
  const newer = [app, '-newer', path.join(data, 'tunery/first-key.txt'), '-type', 'f']
  assert.equal(execFileSync('find', newer, { encoding: 'utf8' }), '')
})

const tool = fetchAll ? containerTool() : undefined
const why = fetchAll ? 'neither docker nor podman runs here' : 'npm run test:deploy'
test('docker or podman builds the image, and its service becomes ready', { skip: !tool && why }, async () => {
  await buildAndRun(tool!, file, root, '/health/ready')
})
