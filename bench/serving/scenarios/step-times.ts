// What a step of the engine is made of under 1, 8 and 32 streams through the whole service: the native decode,
// sampling, text, flushes, garbage collection and idle time of the thread that steps, and the processor time of the
// gateway.
import { measure } from '../job.ts'
import { attachProfiler, childOf, difference, type Profile, profiledTimes, timesOf } from '../profile.ts'
import { text, user } from '../prompts.ts'
import { type Row, singleRow } from '../rounds.ts'
import { noEndToken, type Ours, sampling, startOurs } from '../servers.ts'

const output = 128
const sampleInterval_us = 200

const categories = {
  decode: /engine\/llama\/context\.ts$/,
  batch: /engine\/batching\/(batch|kv-cache|prefix-cache)\.ts$/,
  sampling: /engine\/sampling\/(sampler|logprobs)\.ts$/,
  drafts: /engine\/sampling\/drafts\/.*\.ts$/,
  text: /engine\/(sampling\/stop-sequences|llama\/vocab|chat\/.*|tokenizer\/.*)\.ts$/,
  flush: /engine\/http\/answer\/.*\.ts$/,
  'garbage collection': /^\(garbage collector\)$/,
  idle: /^\(idle\)$/,
} as const
type Category = keyof typeof categories

const categoryOf = ({ functionName, url }: { functionName: string; url: string }) =>
  (Object.keys(categories) as Category[]).find((name) => categories[name].test(url || functionName))

interface Window {
  wall_ms: number
  profile: Profile
  steps: number
  tokens: number
  engine: { cpu_ms: number; switches: number }
  gateway: { cpu_ms: number; switches: number }
}

/** A counter of the engine, as the service's page of metrics has it. */
async function engineCount(origin: string, name: string): Promise<number> {
  const page = await (await fetch(`${origin}/metrics`)).text()
  return Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)$`, 'm').exec(page)?.[1] ?? 0)
}

export async function stepTimes(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  try {
    for (const clients of [1, 8, 32]) reportWindows(clients, await measureWindows(us, clients, rounds), report)
  } finally {
    await us.stop()
  }
}

async function measureWindows(us: Ours, clients: number, rounds: number): Promise<Window[]> {
  const bodies = (turn: number) =>
    Array.from({ length: Math.max(8, 2 * clients) }, (_, index) => ({
      ...user(text(32, 1 + turn * 1000 + index + clients * 100_000)),
      ...sampling,
      ...noEndToken,
      max_tokens: output,
    }))
  const counts = async () => ({
    steps: await engineCount(us.url!, 'tunery_engine_decode_seconds_count'),
    tokens: await engineCount(us.url!, 'tunery_engine_generation_tokens_total'),
  })
  await measure(us, clients, bodies(999))
  const pid = childOf(us.pid, 'engine/main.ts')
  const profiler = await attachProfiler(pid, sampleInterval_us)
  const windows: Window[] = []
  for (let round = 0; round < rounds; round++) {
    const before = { ...(await counts()), engine: timesOf(pid), gateway: timesOf(us.pid) }
    await profiler.start()
    const { wall_ms } = await measure(us, clients, bodies(round))
    const profile = await profiler.stop()
    const engine = difference(before.engine, timesOf(pid))
    const gateway = difference(before.gateway, timesOf(us.pid))
    const { steps, tokens } = await counts()
    windows.push({ wall_ms, profile, steps: steps - before.steps, tokens: tokens - before.tokens, engine, gateway })
  }
  profiler.close()
  return windows
}

function reportWindows(clients: number, windows: Window[], report: (row: Row) => void): void {
  const say = (what: string, unit: string, of: (window: Window) => number) =>
    report(singleRow('step-times', `${clients} client${clients > 1 ? 's' : ''}: ${what}`, unit, windows.map(of), {}))
  const times = new Map(windows.map((window) => [window, profiledTimes(window.profile, categoryOf)]))
  say('the whole step', 'ms/step', ({ wall_ms, steps }) => wall_ms / steps)
  for (const category of [...(Object.keys(categories) as Category[]), 'other' as const])
    say(category, 'ms/step', (window) => (times.get(window)![category] ?? 0) / window.steps)
  say('processor time of the engine', 'ms/step', ({ engine, steps }) => engine.cpu_ms / steps)
  say('processor time of the gateway', 'ms/step', ({ gateway, steps }) => gateway.cpu_ms / steps)
  say('processor time of the gateway', 'ms/token', ({ gateway, tokens }) => gateway.cpu_ms / tokens)
  say('context switches of the engine', '/step', ({ engine, steps }) => engine.switches / steps)
  say('context switches of the gateway', '/step', ({ gateway, steps }) => gateway.switches / steps)
  say('tokens', '/step', ({ steps, tokens }) => tokens / steps)
}
