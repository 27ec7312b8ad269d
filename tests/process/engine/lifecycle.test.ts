// Start and shutdown of the engine process.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { parseCommandLine } from '../../../engine/args.ts'
import { listen, parseAddress } from '../../../engine/http/server.ts'
import { allowed } from '../../support/allowed-time.ts'
import { chat, modelName, modelPath, readEvents, root, startEngine, until } from './engine-process.ts'

const longStream = chat('Tell me a very long story.', { stream: true, max_tokens: 1900, temperature: 1.3 })

test('with --parent-pipe the engine exits within a second of its parent, even during a stream', async (t) => {
  const engine = await startEngine()
  t.after(() => engine.stop())
  const stream = engine.stream('/v1/chat/completions', longStream)
  await stream.headers
  const from = performance.now()
  engine.process.stdin!.destroy()
  assert.equal(await engine.exited, 0)
  assert.ok(performance.now() - from < allowed(1000))
})

test('SIGTERM: running streams finish, and the process exits with 0', async (t) => {
  const engine = await startEngine()
  t.after(() => engine.stop())
  const stream = engine.stream('/v1/chat/completions', chat('Tell me a story.', { stream: true, max_tokens: 60 }))
  await stream.headers
  engine.process.kill('SIGTERM')
  const events = await readEvents(stream)
  assert.ok(events.done)
  assert.equal(await engine.exited, 0)
})

test('only its owner can open the socket, and a stale socket of a dead engine is replaced', async () => {
  const engine = await startEngine([])
  assert.equal(statSync(engine.socket).mode & 0o777, 0o600)
  await engine.stop()
  const folder = mkdtempSync(join(tmpdir(), 'tunery-listen-'))
  const path = join(folder, 'stale.sock')
  spawnSync(process.execPath, [
    '-e',
    `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`,
  ])
  assert.ok(existsSync(path))
  const server = createServer()
  assert.equal(await listen(server as never, { path }), `unix:${path}`)
  await assert.rejects(listen(createServer() as never, { path }), /Another process is listening/)
  server.close()
  rmSync(folder, { recursive: true, force: true })
})

test('an idle engine uses no CPU', async (t) => {
  const engine = await startEngine(['--model', `${modelName}=${modelPath}`, '--threads', '2'])
  t.after(() => engine.stop())
  await engine.ask('POST', '/v1/chat/completions', chat('Hi', { max_tokens: 4 }))
  // The compute threads sleep some milliseconds after the last step.
  await until(async () => {
    const before = await engine.metric('process_cpu_seconds_total')
    await new Promise((resolve) => setTimeout(resolve, 300))
    return (await engine.metric('process_cpu_seconds_total')) - before < 0.03
  }, 'the CPU time to stop growing')
})

test('the command line is validated', () => {
  assert.deepEqual(parseAddress('[::1]:80'), { host: '::1', port: 80 })
  assert.throws(() => parseAddress('somewhere'), /unix:\/path or HOST:PORT/)
  assert.throws(() => parseCommandLine([]), /--model is missing/)
  assert.deepEqual(
    parseCommandLine(['--model', 'a=b.gguf']).listen,
    { host: '127.0.0.1', port: 8000 },
    'by default only this machine can connect',
  )
  assert.throws(() => parseCommandLine(['--model', 'a=b', '--model', 'c=d', '--adapter', 'e=f']), /exactly one --model/)
  assert.throws(() => parseCommandLine(['--listen', 'unix:/a', '--api-key-file', 'x']), /for a server on a port/)
  assert.throws(() => parseCommandLine(['--listen', 'unix:/a', '--model', 'x']), /NAME=FILE/)
  assert.ok(parseCommandLine(['--listen', 'unix:/a', '--threads', '999']).threads < 999)
  assert.deepEqual(
    parseCommandLine(['--listen', 'unix:/a', `--vllm-options= -x 1 --overrides='{"a": "b c"}' --name "d e"`])
      .vllm_options,
    ['-x', '1', '--overrides={"a": "b c"}', '--name', 'd e'],
  )
  assert.deepEqual(parseCommandLine(['--listen', 'unix:/a', '--model', `${modelName}=${modelPath}`]).models, [
    { name: modelName, path: modelPath },
  ])
})

test('a failed start gives the reason on standard error and exits with 1', () => {
  const result = spawnSync(
    process.execPath,
    [join(root, 'engine/main.ts'), '--listen', '127.0.0.1:0', '--model', 'x=/nowhere.gguf'],
    { encoding: 'utf8' },
  )
  assert.equal(result.status, 1)
  assert.match(JSON.parse(result.stderr.trim().split('\n').at(-1)!).msg, /nowhere\.gguf does not exist/)
  assert.equal(result.stdout, '')
})
