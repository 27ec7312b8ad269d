// Crashes while an export is made or downloaded: of child processes, the server, or the connection.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import net, { type AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import type { Export } from '../../contract/exports.ts'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { root } from '../../lib/root.ts'
import { removeDir } from '../../server/features/exports/store.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { type Client, client, until } from '../support/client.ts'
import { alive, children, dataFolder, type RunningServer } from '../support/server.ts'
import { standalone } from '../support/standalone.ts'
import { installColourModel } from '../support/trained.ts'
import { uploadHub } from '../support/upload-hub.ts'

const hub = await uploadHub('hf_token')
const folder = dataFolder('exports', { TUNERY_HUGGINGFACE_URL: hub.url, TUNERY_HUGGINGFACE_TOKEN: 'hf_token' })
const here = mkdtempSync(path.join(os.tmpdir(), 'tunery-brought-'))
let server: RunningServer
let key: string
let api: Client
let model: string
let ready: Export
before(async () => {
  server = await folder.start()
  key = folder.key()
  api = client(server.url, key)
  model = await installColourModel({ dataDir: folder.dataDir })
})
after(() => {
  folder.remove()
  rmSync(here, { recursive: true })
  hub.close()
})

const get = async (id: string): Promise<Export> => (await api.api('GET', `/exports/${id}`)).body
const inExports = () => readdirSync(path.join(folder.dataDir, 'exports'))

test('an export whose child processes keep dying fails with the reason and leaves no files', async () => {
  const { id } = (await api.api('POST', '/exports', { model, format: 'gguf' })).body
  const pids = new Set<number>()
  const killer = setInterval(() => {
    for (const pid of children(server.pid, `trainer.export /.*${id}`)) {
      pids.add(pid)
      process.kill(pid, 'SIGKILL')
    }
  }, 100)
  for await (const _ of api.events(id));
  clearInterval(killer)
  const { status, error } = await get(id)
  assert.deepEqual([status, error?.code], ['failed', 'export_crashed'], JSON.stringify(error))
  assert.match(error!.message, /SIGKILL, 3 times/)
  assert.equal(pids.size, 3)
  assert.deepEqual(inExports(), [])
})

test('a server killed during an export leaves no process and no half-ready export, and retries it', async () => {
  const { id } = (
    await api.api('POST', '/exports', { model, format: 'gguf', quantization: 'Q4_0', push_to: 'team/model' })
  ).body
  await api.untilEvent(id, ({ data }) => data?.status === 'running')
  await until('a program to make it', () => children(server.pid, 'trainer.export /').length > 0)
  assert.equal(await server.end('SIGTERM'), 0)
  assert.deepEqual(inExports(), [])
  server = await folder.start()
  api = client(server.url, key)
  // The last stage: a complete file exists that has not been checked.
  await api.untilEvent(id, ({ data }) => data?.stage === 'check')
  const left = children(server.pid, 'engine/main.ts')
  assert.equal(left.length, 2, 'the serving engine and the one that verifies the file')
  await server.end('SIGKILL')
  await until('the engines to be gone', () => !left.some(alive))
  assert.deepEqual(inExports(), [`${id}.part`])

  server = await folder.start()
  api = client(server.url, key)
  const events: JobEvent[] = []
  for await (const event of api.events(id)) events.push(event)
  ready = await get(id)
  assert.equal(ready.status, 'ready', JSON.stringify(ready.error))
  assert.deepEqual(
    events.filter(({ data }) => data?.status).map(({ data }) => data!.status),
    ['queued', 'running', 'queued', 'running', 'queued', 'running', 'ready'],
  )
  assert.deepEqual(inExports(), [id])
  const { name } = ready.files[0]!
  assert.deepEqual(ready.push, { repository: 'team/model', url: `${hub.url}/team/model`, error: null })
  assert.deepEqual([...hub.repositories.get('team/model')!.keys()], [name])

  hub.repositories.set('other/model', new Map())
  const adapter = { model, format: 'gguf', merge: false }
  const again = await api.exported({ ...adapter, push_to: 'team/model' })
  assert.equal(again.push!.error, null, 'into what its own exports have made it may push again')
  const foreign = await api.exported({ ...adapter, push_to: 'other/model' })
  assert.deepEqual([foreign.status, foreign.push!.url], ['ready', null])
  assert.match(foreign.push!.error!, /no export of this account created/)
  assert.equal(hub.repositories.get('other/model')!.size, 0)
})

test('an export that keeps crashing the service is given up', async () => {
  const { id } = (await api.api('POST', '/exports', { model, format: 'gguf' })).body
  await api.untilEvent(id, ({ data }) => data?.status === 'running')
  await server.end('SIGKILL')
  // Three more crashes like the first.
  const db = await openDatabase(folder.dataDir)
  await db.updateTable('exports').set({ interruptions: 3 }).where('id', '=', id).execute()
  await db.destroy()
  server = await folder.start()
  api = client(server.url, key)
  await api.untilEvent(id, ({ data }) => data?.attempt === 2)
  await server.end('SIGKILL')
  server = await folder.start()
  api = client(server.url, key)
  for await (const _ of api.events(id));
  const { status, error } = await get(id)
  assert.deepEqual([status, error?.code], ['failed', 'export_crashed'])
  assert.match(error!.message, /ended 5 times/)
  assert.ok(!inExports().some((name) => name.startsWith(id)))
})

const tunery = (words: string[], env: Record<string, string> = {}) =>
  promisify(execFile)(path.join(root, 'tunery'), words, { env: { ...folder.env, TUNERY_KEY: key, ...env } })
const refusal = async (words: string[], env: Record<string, string> = {}) => {
  const failed = await tunery(words, env).then(
    () => assert.fail('it should have been refused'),
    (error: { code: number; stderr: string }) => error,
  )
  assert.equal(failed.code, 2, failed.stderr)
  return failed.stderr
}
const sha256 = (file: string) => createHash('sha256').update(readFileSync(file)).digest('hex')

test('the command line requests an export and downloads it with a progress bar', async () => {
  const target = path.join(here, 'mine.gguf')
  const { stdout, stderr } = await tunery(['export', model, '--format', 'gguf', '--adapter-only', '-o', target])
  assert.ok(stdout.includes(`SHA-256 ${sha256(target)}`), stdout)
  assert.match(stdout, /100 % of the tokens match the trainer's/)
  assert.match(stderr, /# +100 % {2}Downloading/)
  assert.deepEqual(readdirSync(here), ['mine.gguf'])
  rmSync(target)
})

test('a broken download resumes, also in another call; a file with a wrong hash is not kept', async () => {
  const [file] = ready.files
  const source = readFileSync(path.join(folder.dataDir, 'exports', ready.id, file!.name))
  // A proxy that breaks the connection after each megabyte.
  const ranges: string[] = []
  const proxy = net.createServer((from) => {
    const to = net.connect(Number(new URL(server.url).port), '127.0.0.1')
    let passed = 0
    from.on('data', (data) => {
      ranges.push(...(/^range: .*/im.exec(String(data)) ?? []))
      to.write(data)
    })
    to.on('data', (data) => {
      passed += data.length
      from.write(data)
      if (passed > 1e6) from.destroy()
    })
    for (const socket of [from, to])
      socket.on('error', () => {}).on('close', () => [from, to].map((other) => other.destroy()))
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  const target = path.join(here, 'broken.gguf')
  await tunery(['export', ready.id, '-o', target], {
    TUNERY_URL: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}/v1`,
  })
  proxy.close()
  assert.equal(sha256(target), file!.sha256)
  assert.ok(ranges.length >= 3 && ranges.every((range) => /bytes=\d{6,}-/.test(range)), JSON.stringify(ranges))

  const part = `${target}.${file!.sha256.slice(0, 12)}.part`
  rmSync(target)
  writeFileSync(part, source.subarray(0, 3_000_000))
  await tunery(['export', ready.id, '-o', target])
  assert.equal(sha256(target), file!.sha256)
  rmSync(target)
  writeFileSync(part, Buffer.alloc(3_000_000))
  assert.match(await refusal(['export', ready.id, '-o', target]), /its SHA-256 is not the expected one/)
  assert.ok(!existsSync(part) && !existsSync(target))
})

test('the command line reports missing arguments', async () => {
  assert.match(await refusal(['export', model]), /--format gguf\|huggingface\|onnx/)
  assert.match(await refusal(['export', model, '--format', 'gguf'], { TUNERY_KEY: '' }), /TUNERY_KEY/)
  assert.match(await refusal(['export', model, '--format', 'gguf', '--quantization', 'Q9']), /must be one of F32/)
  assert.match(await refusal(['export', 'exp_nothing']), /no export/)
  assert.match(await refusal(['export', ready.id, '-o', path.join(here, 'no/such/file')]), /no folder/)
})

test('a bundle is built from an export and serves it', async () => {
  const out = path.join(here, 'bundle')
  assert.match(await refusal(['bundle', 'nobody', '-o', out]), /nobody/)
  assert.match(await refusal(['bundle', model, '-o', out, '--quantization', 'Q9']), /must be one of F32/)
  await tunery(['bundle', ready.id, '--name', 'colours', '-o', out])
  assert.deepEqual(readdirSync(here), ['bundle'], 'nothing else is left')
  assert.equal(sha256(path.join(out, 'model/model.gguf')), ready.files[0]!.sha256)
  // tests/process/bundle.full.test.ts covers the set-up that installs these.
  symlinkSync(path.join(root, 'node_modules'), path.join(out, 'node_modules'))
  const lib = path.join(root, '.local/llama/lib')
  const bundle = await standalone(process.execPath, ['start.mjs', '--lib', lib], {
    cwd: out,
    env: { TUNERY_PORT: '0', TUNERY_THREADS: '1' },
  })
  const messages = [{ role: 'user', content: 'green' }]
  const { status, body } = await client(`${bundle.url}/v1`, 'none').api('POST', '/chat/completions', {
    model: 'colours',
    messages,
    max_tokens: 4,
  })
  assert.equal(status, 200, JSON.stringify(body))
  bundle.kill('SIGKILL')
  await bundle.exited
  rmSync(out, { recursive: true })
})

test('./tunery check and backups include the files of exports', async () => {
  const { files } = ready
  const backup = path.join(here, 'backup')
  await tunery(['backup', backup])
  assert.equal(sha256(path.join(backup, 'exports', ready.id, files[0]!.name)), files[0]!.sha256)
  const file = path.join(folder.dataDir, 'exports', ready.id, files[0]!.name)
  writeFileSync(file, 'damaged')
  const { stdout } = await tunery(['check']).catch((error: { stdout: string }) => error)
  assert.match(stdout, new RegExp(`of the export ${ready.id} has changed since`))
})

test('a folder is removed completely even if a program that was just stopped still writes into it', async () => {
  const partial = path.join(here, 'exp_1.part')
  const deep = path.join(partial, 'out/onnx')
  mkdirSync(deep, { recursive: true })
  for (let file = 0; file < 300; file++) writeFileSync(path.join(deep, String(file)), 'x')
  let files = 0
  const writing = setInterval(() => existsSync(deep) && writeFileSync(path.join(deep, `late-${files++}`), 'x'), 0)
  setTimeout(() => clearInterval(writing), 150)
  await removeDir(partial)
  assert.ok(files > 0 && !existsSync(partial))
})
