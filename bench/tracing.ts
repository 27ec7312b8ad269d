// What traces, request lines and scrapes cost the gateway, in front of an engine that answers at once: latency,
// requests per second and processor time a request, each server beside one without. `npm run bench -- tracing [rounds]`
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { durations, measure, median, type Target } from './serving/job.ts'
import { user } from './serving/prompts.ts'
import { startService } from './support/service.ts'

const rounds = Number(process.argv[2] ?? 3)
const body = { ...user('Say hello.'), max_tokens: 8, temperature: 0 }
const each = 2000
const clients = 32
const seconds = 5
/** The kernel's clock ticks, in milliseconds. */
const tick_ms = 10

/** Takes spans as a collector does, and says how many bytes came. */
const collector = `
  const http = require('node:http')
  let bytes = 0
  const server = http.createServer((request, response) => {
    if (request.method === 'GET') return response.end(String(bytes))
    request.on('data', (part) => { bytes += part.length }).on('end', () => response.end())
  })
  server.listen(0, '127.0.0.1', () => console.log('http://127.0.0.1:' + server.address().port))
  process.stdin.on('end', () => process.exit(0)).resume()`

async function start(...args: string[]) {
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] })
  const [line] = (await once(child.stdout, 'data')) as [Buffer]
  return { url: String(line).trim(), stop: () => child.kill() }
}

const mock = await start(path.join(import.meta.dirname, 'serving/mock-engine.ts'))
const sink = await start('--eval', collector)
const upstreams = JSON.stringify([{ model: 'mock', url: mock.url, kind: 'openai' }])
const on = { OTEL_EXPORTER_OTLP_ENDPOINT: sink.url }
const variants: Record<string, Record<string, string>> = {
  off: {},
  'off, again': {},
  'all traced': on,
  'a tenth traced': { ...on, OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.1' },
  'collector away': { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9' },
  'a line each': { TUNERY_REQUEST_LOG: 'all', TUNERY_LOG_LEVEL: 'info' },
}

interface Running {
  target: Target
  pid: number
  stop(): Promise<void>
  latencies: number[]
  rates: number[]
  cpu: number[]
}

const servers = new Map<string, Running>()
for (const [name, settings] of Object.entries(variants)) {
  const service = await startService({ TUNERY_UPSTREAMS: upstreams, ...settings }, undefined, name === 'a line each')
  const target: Target = {
    name,
    url: new URL(service.url).origin,
    path: '/v1/chat/completions',
    headers: { authorization: `Bearer ${service.key}` },
    model: 'mock',
    extra: {},
    keepAlive: true,
  }
  servers.set(name, { target, pid: service.pid, stop: service.stop, latencies: [], rates: [], cpu: [] })
  await measure(target, 4, new Array(each).fill(body))
}

function cpu_ms(pid: number) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')
  return (Number(fields[11]) + Number(fields[12])) * tick_ms
}

for (let round = 0; round < rounds; round++) {
  const order = [...servers.values()]
  for (const server of round % 2 === 0 ? order : order.reverse()) {
    const alone = await measure(server.target, 1, new Array(each).fill(body))
    server.latencies.push(median(durations(alone)))
    const before = cpu_ms(server.pid)
    const { requests, wall_ms } = await measure(server.target, clients, [body], seconds)
    server.cpu.push((cpu_ms(server.pid) - before) / requests.length)
    server.rates.push(requests.length / (wall_ms / 1000))
  }
}

const off = servers.get('off')!
const share = (value: number, of: number) => `${(100 * (value / of - 1)).toFixed(1)} %`
for (const [name, { latencies, rates, cpu }] of servers) {
  const [latency, rate, cost] = [latencies, rates, cpu].map(median) as [number, number, number]
  console.log(
    `${name.padEnd(16)} p50 ${latency.toFixed(3)} ms (+${(latency - median(off.latencies)).toFixed(3)}), ` +
      `${rate.toFixed(0)}/s at ${clients} clients (${share(rate, median(off.rates))}), ` +
      `${cost.toFixed(3)} ms of processor a request (${share(cost, median(off.cpu))})`,
  )
}
console.log(`The collector got ${((await (await fetch(sink.url)).json()) as number) / 1e6} MB.`)
for (const server of servers.values()) await server.stop()
mock.stop()
sink.stop()
