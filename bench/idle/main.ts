// `npm run bench -- idle [--seconds 60] [--clients 8] [--llama-server FILE] [--out FILE] [--record MACHINE]`: what the
// service takes while nobody asks for anything. Starts it as `npm start` does, waits until it is quiet, and counts for
// each process the processor time, the wake-ups, the memory and the threads: after the start, right after work, and
// quiet again with a prepared trainer. Processor time is counted, so other programs of the machine change little.
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { root } from '../../lib/root.ts'
import { compactJson } from '../../scripts/docs/json.ts'
import { llamaFlags, model } from '../serving/servers.ts'
import { endWithThisProcess } from '../support/child.ts'
import { freePort } from '../support/free-port.ts'
import { describeMachine } from '../support/machine.ts'
import { between, coresOf, type Snapshot, snapshot } from './processes.ts'
import { type Phase, recordOf } from './record.ts'

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    clients: { type: 'string', default: '8' },
    'llama-server': { type: 'string' },
    out: { type: 'string' },
    record: { type: 'string' },
  },
})
const seconds = Number(values.seconds)
const clients = Number(values.clients)
if (!(seconds > 0) || !(clients >= 1)) {
  console.error(
    'Usage: npm run bench -- idle [--seconds 60] [--clients 8] [--llama-server FILE] [--out FILE] [--record MACHINE]',
  )
  process.exit(2)
}
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))

/** Quiet: less than this share of a core for this long. */
const quiet = { core: 0.01, seconds: 15 }
const quietWait_s = 240

async function untilQuiet(pid: number): Promise<number> {
  const began = performance.now()
  for (;;) {
    const before = snapshot(pid)
    await sleep(quiet.seconds * 1000)
    const after = snapshot(pid)
    const same = before.length === after.length
    if (same && coresOf(between(before, after, quiet.seconds)) < quiet.core) return (performance.now() - began) / 1000
    if (performance.now() - began > quietWait_s * 1000) {
      console.log(`not quiet after ${quietWait_s} s; measured as it is`)
      return quietWait_s
    }
  }
}

async function measure(phase: string, pid: number): Promise<Phase> {
  const before = snapshot(pid)
  const began = performance.now()
  await sleep(seconds * 1000)
  return { phase, processes: between(before, snapshot(pid), (performance.now() - began) / 1000) }
}

/** Memory and threads right now. */
const asIs = (phase: string, processes: readonly Snapshot[]): Phase => ({
  phase,
  processes: between(processes, processes, 1),
})

/** Clients that chat for some seconds, one request after the other. */
async function work(url: string, headers: Record<string, string>, body: object, work_s: number): Promise<number> {
  const ends = performance.now() + work_s * 1000
  let answers = 0
  await Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      for (let turn = 0; performance.now() < ends; turn++) {
        const messages = [{ role: 'user', content: `Write about the number ${client * 1000 + turn}.` }]
        const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ ...body, messages }) })
        if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`)
        await response.arrayBuffer()
        answers++
      }
    }),
  )
  return answers
}

async function firstAnswer(url: string, headers: Record<string, string>, body: object): Promise<void> {
  for (;;) {
    const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) }).catch(() => undefined)
    if (answer?.ok) return void (await answer.arrayBuffer())
    await sleep(20)
  }
}

async function ours() {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-idle-'))
  const began = performance.now()
  const env = { ...process.env, TUNERY_PORT: '0', TUNERY_DATA_DIR: dataDir, TUNERY_LOG_LEVEL: 'warn' }
  const server = spawn(process.execPath, [path.join(root, 'server/main.ts')], { cwd: root, env, stdio: 'ignore' })
  endWithThisProcess(server)
  const pid = server.pid!
  try {
    const keyFile = path.join(dataDir, 'first-key.txt')
    const serverFile = path.join(dataDir, 'server.json')
    while (!existsSync(serverFile) || !existsSync(keyFile)) {
      if (server.exitCode !== null) throw new Error('the service could not be started')
      await sleep(20)
    }
    const { url } = JSON.parse(readFileSync(serverFile, 'utf8')) as { url: string }
    const listening_s = (performance.now() - began) / 1000
    const headers = {
      authorization: `Bearer ${readFileSync(keyFile, 'utf8').trim()}`,
      'content-type': 'application/json',
    }
    const chat = `${url}/chat/completions`
    const body = { model, max_tokens: 32, messages: [{ role: 'user', content: 'Say hello.' }] }
    await firstAnswer(chat, headers, { ...body, max_tokens: 1 })
    const answer_s = (performance.now() - began) / 1000
    const phases: Phase[] = []
    await untilQuiet(pid)
    phases.push(await measure('idle after the start and one answer', pid))
    await work(chat, headers, body, 10)
    phases.push(asIs(`right after ${clients} clients`, snapshot(pid)))
    await untilQuiet(pid)
    phases.push(await measure('idle after work', pid))
    // An upload lets a trainer wait with its libraries loaded.
    const form = new FormData()
    const row = { messages: [body.messages[0], { role: 'assistant', content: 'Hello.' }] }
    form.append('file', new Blob([`${JSON.stringify(row)}\n`.repeat(16)]), 'rows.jsonl')
    const { authorization } = headers
    const upload = await fetch(`${url}/datasets/`, { method: 'POST', headers: { authorization }, body: form })
    if (!upload.ok) throw new Error(`the upload failed: ${await upload.text()}`)
    const hasTrainer = () => snapshot(pid).some(({ name }) => name.startsWith('trainer'))
    for (let wait = 0; wait < 60 && !hasTrainer(); wait++) await sleep(500)
    await untilQuiet(pid)
    phases.push(await measure('idle with a prepared trainer', pid))
    return { listening_s, answer_s, phases }
  } finally {
    server.kill('SIGTERM')
    await new Promise((resolve) => (server.exitCode === null ? server.once('exit', resolve) : resolve(undefined)))
    rmSync(dataDir, { recursive: true, force: true })
  }
}

/** llama-server with the same weights. */
async function peer(file: string) {
  const port = await freePort()
  const began = performance.now()
  const server = spawn(file, llamaFlags(clients, 2048, port), { stdio: 'ignore' })
  endWithThisProcess(server)
  const pid = server.pid!
  try {
    const chat = `http://127.0.0.1:${port}/v1/chat/completions`
    const headers = { 'content-type': 'application/json' }
    const body = { model, max_tokens: 32, messages: [{ role: 'user', content: 'Say hello.' }] }
    await firstAnswer(chat, headers, { ...body, max_tokens: 1 })
    const answer_s = (performance.now() - began) / 1000
    await untilQuiet(pid)
    const phases = [await measure('llama-server, idle after one answer', pid)]
    await work(chat, headers, body, 10)
    phases.push(asIs(`llama-server, right after ${clients} clients`, snapshot(pid)))
    await untilQuiet(pid)
    phases.push(await measure('llama-server, idle after work', pid))
    return { answer_s, phases }
  } finally {
    server.kill('SIGKILL')
  }
}

function table({ phase, processes }: Phase): string {
  const lines = processes.map(
    ({ name, core, wakeups_per_s, involuntary_per_s, threads, rss_mb, pss_mb }) =>
      `  ${name.padEnd(34)} ${(100 * core).toFixed(3).padStart(8)} % of a core ` +
      `${wakeups_per_s.toFixed(1).padStart(7)} ` +
      `wake-ups/s ${involuntary_per_s.toFixed(1).padStart(6)} preempted/s ${String(threads).padStart(4)} threads ` +
      `${rss_mb.toFixed(0).padStart(6)} MB RSS ${pss_mb.toFixed(0).padStart(6)} MB PSS`,
  )
  return [`${phase}: ${(100 * coresOf(processes)).toFixed(3)} % of a core in all`, ...lines].join('\n')
}

const load = os.loadavg()[0]!
const tunery = await ours()
console.log(`Listening after ${tunery.listening_s.toFixed(2)} s, first answer after ${tunery.answer_s.toFixed(2)} s.`)
for (const phase of tunery.phases) console.log(table(phase))
const beside =
  values['llama-server'] && existsSync(values['llama-server']) ? await peer(values['llama-server']) : undefined
if (beside) {
  console.log(`llama-server: first answer after ${beside.answer_s.toFixed(2)} s.`)
  for (const phase of beside.phases) console.log(table(phase))
}
const result = { seconds, clients, load, tunery, peer: beside ?? null }
if (values.out) writeFileSync(values.out, compactJson({ machine: describeMachine(), ...result }, 300))
if (values.record) {
  const file = path.join(root, 'docs/performance/idle.json')
  writeFileSync(file, compactJson(recordOf(result, values.record, new Date().toISOString().slice(0, 10)), 1000))
  console.log("Wrote docs/performance/idle.json; 'npm run docs' writes the page.")
}
