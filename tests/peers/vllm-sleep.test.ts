// A real vLLM while a training has its device. Its build for processors has no sleep mode, so it is ended and started
// again.
import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import pino from 'pino'
import { root } from '../../lib/root.ts'
import { EngineClient } from '../../server/features/serving/engine/client.ts'
import { createEngineProcess, type EngineInstance } from '../../server/features/serving/engine/process.ts'
import { ServingSleep } from '../../server/features/serving/engine/sleep.ts'
import { filesHere } from '../../server/features/serving/engine/weight-files.ts'
import { readAll } from '../../server/features/serving/http-client/client.ts'
import { base, until } from './upstreams.ts'

const log = pino({ level: 'silent' })
const python = path.join(root, '.local/vllm/bin/python')
const folder = path.join(root, '.local/models', base)
const target = { base: { id: base, gguf: path.join(folder, 'model.gguf') } }
const files = { ...filesHere, checkpoint: () => path.join(folder, 'hf') }
const tmp = mkdtempSync(path.join(os.tmpdir(), 'vllm-sleep-'))
process.env.TMPDIR = tmp
after(() => rmSync(tmp, { recursive: true, force: true }))

/** The processes of vLLM: its socket's folder is in their command line. */
function vllmPids(): number[] {
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid)) return []
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(path.join(tmp, 'tunery-vllm-')) ? [Number(pid)] : []
    } catch {
      return []
    }
  })
}

test('vLLM is ended while a training has its device, and answers the request that waited afterwards', async () => {
  const options = ['--vllm', python, '--vllm-sleep', '--cache-mb', '500']
  const onStart = (started: EngineInstance) => sleep.begin(started)
  const engine = createEngineProcess({ dataDir: tmp, threads: 1, options, onStart, log })
  const client = new EngineClient(engine, log, files)
  const sleep = new ServingSleep(engine, client, log)
  const { signal } = new AbortController()
  const ask = async () => {
    const body = (model: string) =>
      JSON.stringify({ model, messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 8, temperature: 0 })
    const { response } = await client.post(target, '/v1/chat/completions', body, {}, signal)
    const text = (await readAll(response)).toString('utf8')
    assert.equal(response.status, 200, text)
    assert.match(response.headers['x-weights']!, /server=vllm/)
    return JSON.parse(text).choices[0].message.content
  }
  try {
    const before = await ask()
    assert.ok(vllmPids().length > 0)
    await sleep.claim('job_1', ['cpu'], false, signal)
    assert.deepEqual(vllmPids(), [], 'its memory is free when the claim is granted')
    let answered = false
    const waiting = ask().finally(() => {
      answered = true
    })
    await until('the base sleeps', async () => (await sleep.awake()).length === 0)
    assert.equal(answered, false)
    sleep.release('job_1')
    assert.equal(await waiting, before)
    assert.ok(vllmPids().length > 0)
    // Killed while it sleeps for the next training: nothing is left to wake but the base itself.
    await sleep.claim('job_2', ['cpu'], true, signal)
    assert.deepEqual(vllmPids(), [])
    sleep.release('job_2')
    assert.equal(await ask(), before)
  } finally {
    await engine.stop()
  }
  await until('vLLM has ended with the engine', async () => vllmPids().length === 0, 30)
})
