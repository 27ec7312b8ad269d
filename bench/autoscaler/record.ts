// `scripts/node bench/autoscaler/record.ts`: records the trace of a real run into recorded.json: bursts and pauses of
// requests to a deployment of the default base that scales on this machine's cores from zero, and the times that its
// replicas took to start and to answer.
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { root } from '../../lib/root.ts'
import type { Scaling } from '../../sdk/index.ts'
import { startApp } from '../../tests/support/service.ts'
import { random } from './traces.ts'

const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const target = 2
const policy = { min_replicas: 0, max_replicas: 2, scale_up_cooldown: '5s', scale_down_cooldown: '15s' }
/** Seconds, and requests a second in them. */
const phases: [seconds: number, rate: number][] = [
  [20, 0.3],
  [25, 2.5],
  [30, 0],
  [30, 1],
  [20, 3],
  [35, 0.2],
]

const app = await startApp({ TUNERY_MODELS_DIR: path.join(root, '.local/models'), TUNERY_REPLICA_CORES: '1' })
await app.api('POST', '/deployments', { name: 'recorded', model: base })
await app.api('PUT', '/deployments/recorded/scaling', { scaling: { ...policy, target_requests_per_replica: target } })
const begun = performance.now()
const seconds = () => (performance.now() - begun) / 1000
const arrivals: number[] = []
const services: number[] = []
const starts: number[] = []
const next = random(1)

async function ask(): Promise<void> {
  arrivals.push(Number(seconds().toFixed(2)))
  const at = performance.now()
  const messages = [{ role: 'user', content: 'Write a few words about rain.' }]
  const answer = await app.api('POST', '/chat/completions', { model: 'recorded', messages, max_tokens: 24 })
  if (answer.status !== 200) throw new Error(JSON.stringify(answer.body))
  const { queue, start = 0 } = Object.fromEntries(
    answer.headers
      .get('server-timing')!
      .split(', ')
      .map((each) => each.split(';dur='))
      .map(([name, ms]) => [name, Number(ms)]),
  )
  if (start > 0) starts.push(start / 1000)
  else services.push((performance.now() - at - queue) / 1000)
}

const asked: Promise<void>[] = []
let end = 0
for (const [duration, rate] of phases) {
  end += duration
  while (rate > 0) {
    const wait_s = -Math.log(1 - next()) / rate
    if (seconds() + wait_s > end) break
    await sleep(wait_s * 1000)
    asked.push(ask())
  }
  await sleep(Math.max(0, (end - seconds()) * 1000))
}
await Promise.all(asked)
const { decisions } = (await app.api('GET', '/deployments/recorded/scaling')).body as Scaling
await app.stop()
const median = (values: number[]) => Number(values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!.toFixed(2))
const recorded = {
  name: 'recorded',
  duration_s: end,
  arrivals,
  service_s: median(services),
  start_s: median(starts),
  policy: { min_replicas: 0, max_replicas: 4, target_requests: target, up_cooldown_ms: 5000, down_cooldown_ms: 15_000 },
}
writeFileSync(new URL('recorded.json', import.meta.url), `${JSON.stringify(recorded)}\n`)
console.log({ ...recorded, arrivals: arrivals.length, starts }, decisions)
