// `npm run bench -- servers`: requests a second of 1, 2 and 4 server processes on one Postgres, in front of engines
// that answer at once. Load and engines run on the same cores: 2 processes can only be nearly twice as fast where there
// are cores for them. Ends with 1 if they are less than 1.9 times as fast on six cores or more.
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { postgresTest, startPostgres } from '../../tests/support/postgres.ts'
import { durations, measure, median, type Target } from '../serving/job.ts'
import { user } from '../serving/prompts.ts'
import { startMock } from '../serving/servers.ts'
import { startService } from '../support/service.ts'

const cores = os.availableParallelism()
const seconds = 5
const clients = 32
const rounds = 3
const body = { ...user('Say hello.'), max_tokens: 8, temperature: 0 }

if (postgresTest.skip) {
  console.error(postgresTest.skip)
  process.exit(2)
}
const postgres = await startPostgres()
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-servers-'))
const mocks = await Promise.all([startMock(), startMock()])
const settings = {
  TUNERY_DATABASE_URL: postgres.url,
  TUNERY_STORAGE_URL: `file://${folder}`,
  TUNERY_SECRET_KEY_FILE: path.join(folder, 'secret.key'),
  TUNERY_UPSTREAMS: JSON.stringify(mocks.map(({ url }) => ({ model: 'mock', url, kind: 'openai' }))),
}
const services: Awaited<ReturnType<typeof startService>>[] = []
try {
  const rates = new Map<number, number[]>()
  const latencies = new Map<number, number[]>()
  let key = ''
  for (const count of [1, 2, 4]) {
    while (services.length < count) services.push(await startService(settings, undefined, false, key || undefined))
    key ||= services[0]!.key
    const targets = services.map(
      ({ url }, index): Target => ({
        name: `server ${index + 1}`,
        url: new URL(url).origin,
        path: '/v1/chat/completions',
        headers: { authorization: `Bearer ${key}` },
        model: 'mock',
        extra: {},
        keepAlive: true,
      }),
    )
    for (const target of targets) await measure(target, 4, new Array(1000).fill(body))
    for (let round = 0; round < rounds; round++) {
      const all = await Promise.all(
        targets.map((target) => measure(target, Math.ceil(clients / count), [body], seconds)),
      )
      const rate = all.reduce((sum, { requests, wall_ms }) => sum + requests.length / (wall_ms / 1000), 0)
      rates.set(count, [...(rates.get(count) ?? []), rate])
      const alone = await measure(targets[0]!, 1, new Array(500).fill(body))
      latencies.set(count, [...(latencies.get(count) ?? []), median(durations(alone))])
    }
  }
  const one = median(rates.get(1)!)
  for (const [count, values] of rates)
    console.log(
      `${count} ${count === 1 ? 'process  ' : 'processes'}: ${median(values).toFixed(0).padStart(6)} requests a ` +
        `second at ${clients} clients (${(median(values) / one).toFixed(2)}), p50 ` +
        `${median(latencies.get(count)!).toFixed(2)} ms at one`,
    )
  console.log(`${cores} cores, which load, engines and Postgres share`)
  if (cores >= 6 && median(rates.get(2)!) < 1.9 * one) process.exitCode = 1
} finally {
  for (const service of services) await service.stop()
  for (const mock of mocks) mock.stop()
  await postgres.stop()
  rmSync(folder, { recursive: true, force: true })
}
