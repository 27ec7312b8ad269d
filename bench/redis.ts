// What a request costs with Redis and without: the service in front of an engine that answers at once, with a private
// redis-server on this machine, in turn. `npm run bench -- redis [rounds]`.
import { spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { durations, measure, median, percentile, type Target } from './serving/job.ts'
import { user } from './serving/prompts.ts'
import { interleave } from './serving/rounds.ts'
import { startMock, startOurs } from './serving/servers.ts'
import { freePort } from './support/free-port.ts'

const rounds = Number(process.argv[2] ?? 5)
const each = 2000
const body = { ...user('Say hello.'), max_tokens: 8, temperature: 0 }

const mock = await startMock()
const port = await freePort()
const redis = spawn('redis-server', ['--port', String(port), '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
await sleep(500)
const settings = { TUNERY_UPSTREAMS: JSON.stringify([{ model: 'mock', url: mock.url, kind: 'openai' }]) }
const [without, withRedis] = await Promise.all([
  startOurs(settings),
  startOurs({ ...settings, TUNERY_REDIS_URL: `redis://127.0.0.1:${port}` }),
])
try {
  const sides = {
    ours: { ...withRedis, model: 'mock', keepAlive: true },
    theirs: { ...without, model: 'mock', keepAlive: true },
  } satisfies Record<string, Target>
  for (const side of Object.values(sides)) await measure(side, 4, new Array(2000).fill(body))
  const figures = await interleave(rounds, sides, async (side) => {
    const all = durations(await measure(side, 1, new Array(each).fill(body)))
    console.log(
      `${side === sides.ours ? 'with   ' : 'without'} p50 ${median(all).toFixed(3)} ms, p99 ` +
        `${percentile(all, 0.99).toFixed(3)} ms`,
    )
    return median(all)
  })
  const rate = await interleave(rounds, sides, async (side) => {
    const { requests, wall_ms } = await measure(side, 32, [body], 5)
    return requests.length / (wall_ms / 1000)
  })
  const row = (what: string, { ours, theirs }: typeof figures, digits: number) =>
    console.log(
      `${what}: without Redis ${median(theirs).toFixed(digits)}, with Redis ${median(ours).toFixed(digits)}, ` +
        `difference ${(median(ours) - median(theirs)).toFixed(digits)}`,
    )
  row('p50 at 1 client, ms', figures, 3)
  row('requests a second at 32 clients', rate, 0)
} finally {
  await Promise.all([without.stop(), withRedis.stop()])
  redis.kill('SIGKILL')
  mock.stop()
}
