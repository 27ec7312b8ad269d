// `npm run test:fuzz [-- --cases N] [--seed N] [--case N] [--at-once N]`: random bodies for the inference routes of the
// whole service. Every answer must match the contract, none may be a 500 or take longer than `atOnce` long prompts (or
// 30 s), and neither process may die or grow. A failing case is printed with the command that repeats it.
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import { parseArgs } from 'node:util'
import { startService } from '../../bench/support/service.ts'
import { type Answer, checkAnswer } from './answers.ts'
import { paths } from './bodies.ts'
import { type Case, makeCase } from './cases.ts'

const minLimit_ms = 30_000
/** Tokens of a long prompt among these cases. */
const longPrompt = 3000
/**
 * How much either process may grow after the first fifth of the cases, in which caches fill. The engine creates batch
 * runners as requests of new lengths arrive; these may take a quarter of the machine's memory.
 */
const growth_mb = 1000
const model = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const models = { text: model, embedding: 'sentence-transformers/all-MiniLM-L6-v2' }

const { values } = parseArgs({
  options: {
    cases: { type: 'string', default: '3000' },
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    case: { type: 'string' },
    'at-once': { type: 'string', default: '8' },
  },
})
const seed = Number(values.seed)
const count = Number(values.cases)
const atOnce = Number(values['at-once'])

for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
const service = await startService()
let limit_ms = minLimit_ms
const agent = new http.Agent({ keepAlive: true, maxSockets: atOnce })

function sendRequest({ path, headers, bytes }: Case): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const all = { ...headers, authorization: `Bearer ${service.key}`, 'content-length': bytes.length }
    const request = http.request(
      service.url + path,
      { method: 'POST', agent, headers: all, signal: AbortSignal.timeout(limit_ms) },
      (response) => {
        const parts: Buffer[] = []
        response.on('data', (part) => parts.push(part))
        response.on('error', reject)
        response.on('end', () => {
          const text = Buffer.concat(parts).toString()
          resolve({
            status: response.statusCode!,
            type: String(response.headers['content-type'] ?? ''),
            text,
            headers: response.headers,
          })
        })
      },
    )
    request.on('error', (error: NodeJS.ErrnoException) => {
      // A server may close a keep-alive connection just as it is reused.
      if (error.code === 'ECONNRESET' && request.reusedSocket)
        sendRequest({ path, headers, bytes } as Case).then(resolve, reject)
      else
        reject(
          error.name === 'TimeoutError' || error.name === 'AbortError'
            ? new Error(`no whole answer in ${Math.round(limit_ms / 1000)} s`)
            : error,
        )
    })
    request.end(bytes)
  })
}

const status = (pid: number | string) => {
  try {
    return readFileSync(`/proc/${pid}/status`, 'utf8')
  } catch {
    return ''
  }
}
const engine = () =>
  Number(readdirSync('/proc').find((pid) => new RegExp(`^PPid:\\s+${service.pid}$`, 'm').test(status(pid))))
const megabytes = (pid: number) => Number(/VmRSS:\s+(\d+)/.exec(status(pid))?.[1] ?? 0) / 1000

const statuses = new Map<string, number>()
const slowest: { number: number; kind: string; seconds: number }[] = []
const failures: string[] = []
function recordFailure(what: string) {
  failures.push(what)
  console.error(`✖ ${what}\n`)
}

async function run(number: number): Promise<void> {
  const testCase = makeCase(seed, number, models)
  const began = performance.now()
  try {
    const answer = await sendRequest(testCase)
    const kind = `${testCase.path} ${answer.status}`
    slowest.push({ number, kind, seconds: (performance.now() - began) / 1000 })
    statuses.set(kind, (statuses.get(kind) ?? 0) + 1)
    if (values.case)
      console.log(
        `${testCase.path} ${JSON.stringify(testCase.headers)}\n${testCase.bytes.toString()}\n\n` +
          `${answer.status} ${answer.text.slice(0, 5000)}\n`,
      )
    checkAnswer(testCase.path, answer)
  } catch (error) {
    recordFailure(
      `case ${number}: ${(error as Error).message}\n` +
        `  repeat: npm run test:fuzz -- --seed ${seed} --case ${number}\n` +
        `  ${testCase.path} ${testCase.headers['content-type']} ${testCase.bytes.toString().slice(0, 600)}`,
    )
  }
}

async function range(from: number, to: number): Promise<void> {
  let next = from
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      while (next < to) await run(next++)
    }),
  )
}

let checks = 0
function expect(what: string, holds: boolean) {
  checks++
  if (!holds) recordFailure(what)
}

try {
  console.log(`seed ${seed}`)
  await service.api('POST', '/chat/completions', { model, messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 })
  const began = performance.now()
  await service.api('POST', '/completions', { model, prompt: ' word'.repeat(longPrompt), max_tokens: 1 })
  limit_ms = Math.max(minLimit_ms, Math.ceil(atOnce * (performance.now() - began)))
  console.log(`limit ${Math.round(limit_ms / 1000)} s`)
  if (values.case) await run(Number(values.case))
  else {
    const first = engine()
    await range(0, Math.ceil(count / 5))
    const before = { server: megabytes(service.pid), engine: megabytes(engine()) }
    await range(Math.ceil(count / 5), count)
    expect('the engine was restarted', engine() === first)
    expect('the server has died', status(service.pid) !== '')
    for (const [name, pid] of [
      ['server', service.pid],
      ['engine', engine()],
    ] as const) {
      const growth = megabytes(pid) - before[name]
      console.log(
        `the ${name} has ${megabytes(pid).toFixed(0)} MB, ${growth.toFixed(0)} more than after the first fifth`,
      )
      expect(`the ${name} grew by ${growth.toFixed(0)} MB`, growth < growth_mb)
    }
    const health = await fetch(new URL('/health/ready', service.url))
    expect(`/health/ready says ${health.status}`, health.status === 200)
    const answer = await service.api('POST', '/chat/completions', {
      model,
      messages: [{ role: 'user', content: 'Hi' }],
      max_tokens: 4,
    })
    expect('a plain request is not answered', answer.choices.length === 1)
    for (const path of paths) expect(`no case of ${path} was answered with 200`, statuses.has(`${path} 200`))
    expect('a prototype was polluted', !('polluted' in {}))
  }
} finally {
  agent.destroy()
  await service.stop()
}
console.log(
  [...statuses]
    .sort()
    .map(([code, times]) => `${code}: ${times}`)
    .join(', '),
)
const longest = slowest.sort((a, b) => b.seconds - a.seconds).slice(0, 5)
const slowCases = longest.map(({ number, kind, seconds }) => `case ${number} (${kind}) ${seconds.toFixed(1)} s`)
console.log(`longest: ${slowCases.join(', ')}`)
const total = (values.case ? 1 : count) + checks
console.log(`seed ${seed}`)
console.log(`${total - failures.length} passed, ${failures.length} failed`)
process.exit(failures.length > 0 ? 1 : 0)
