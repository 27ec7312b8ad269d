// Latency that the service adds in front of an engine that answers at once, compared with Portkey's gateway; and
// requests per second, with every request metered.
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import Database from 'better-sqlite3'
import { durations, measure, median, type Target } from '../job.ts'
import { user } from '../prompts.ts'
import { comparisonRow, interleave, type Row, singleRow } from '../rounds.ts'
import { root, startBareRelay, startMock, startOurs } from '../servers.ts'

const body = { ...user('Say hello.'), max_tokens: 8, temperature: 0 }
const each = 2000
/** Counts every request against limits that nobody reaches. */
const plans = path.join(root, 'bench/support/wide-limits.json')
/** The first tens of thousands of requests run in code that is not optimized yet, on both sides. */
const warm_seconds = 8

async function startPortkey(mock: string) {
  const port = 18_000 + (process.pid % 2000)
  const program = path.join(root, '.local/peers/portkey/node_modules/@portkey-ai/gateway/build/start-server.js')
  const child = spawn(process.execPath, [program, `--port=${port}`, '--headless'], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const url = `http://127.0.0.1:${port}`
  for (const end = performance.now() + 30_000; ; ) {
    if (child.exitCode !== null || performance.now() > end) throw new Error('Portkey’s gateway could not be started')
    if (
      await fetch(url).then(
        () => true,
        () => false,
      )
    )
      break
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  const headers = { authorization: 'Bearer any', 'x-portkey-provider': 'openai', 'x-portkey-custom-host': `${mock}/v1` }
  return { url, headers, stop: () => child.kill() }
}

/** Metered requests in the data folder's database. */
function countMetered(dataDir: string): number {
  const db = new Database(path.join(dataDir, 'tunery.db'), { readonly: true })
  try {
    return db.prepare('select count(*) from usage').pluck().get() as number
  } finally {
    db.close()
  }
}

export async function gateway(rounds: number, report: (row: Row) => void): Promise<void> {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-gateway-'))
  const mock = await startMock()
  const portkey = await startPortkey(mock.url)
  const bareRelay = await startBareRelay(mock.url)
  let sent = 0
  try {
    const us = await startOurs(
      {
        TUNERY_UPSTREAMS: JSON.stringify([{ model: 'mock', url: mock.url, kind: 'openai' }]),
        TUNERY_PLANS_FILE: plans,
      },
      dataDir,
    )
    try {
      const path = '/v1/chat/completions'
      const tunery: Target = { ...us, model: 'mock', keepAlive: true }
      const bare: Target = { name: 'mock', url: mock.url, path, headers: {}, model: 'mock', extra: {}, keepAlive: true }
      const relay: Target = { ...bare, name: 'bare relay', url: bareRelay.url }
      const peer: Target = {
        name: 'portkey',
        url: portkey.url,
        path,
        headers: portkey.headers,
        model: 'mock',
        extra: {},
        keepAlive: true,
      }
      const ask = async (target: Target, clients: number, count: number, seconds?: number) => {
        const timing = await measure(target, clients, seconds ? [body] : new Array(count).fill(body), seconds)
        if (target === tunery) sent += timing.requests.length
        return timing
      }
      const p50 = async (target: Target) => median(durations(await ask(target, 1, each)))
      for (const target of [bare, relay, tunery, peer]) await ask(target, 32, 0, warm_seconds)
      // Each measurement subtracts one of the mock alone, made right before it.
      const addedBy = async (target: Target) => {
        const alone = await p50(bare)
        return (await p50(target)) - alone
      }
      const added = await interleave(rounds, { ours: tunery, theirs: peer }, addedBy)
      const note = `a relay with nothing in it adds ${(await addedBy(relay)).toFixed(3)}`
      report(singleRow('gateway', 'added at 1 client, p50', 'ms', added.ours, { most: 0.2 }, note))
      report(comparisonRow('gateway', 'added at 1 client, p50, against Portkey', 'ms', added, { most: 1 / 3 }))
      const perSecond = async (target: Target) => {
        const { requests, wall_ms } = await ask(target, 32, 0, 5)
        return requests.length / (wall_ms / 1000)
      }
      const rate = await interleave(rounds, { ours: tunery, theirs: peer }, perSecond)
      const reachable = `a relay with nothing in it: ${(await perSecond(relay)).toFixed(0)}`
      report(singleRow('gateway', 'requests a second at 32 clients', '1/s', rate.ours, { least: 1000 }, reachable))
      report(comparisonRow('gateway', 'requests a second at 32 clients, against Portkey', '1/s', rate, { least: 5 }))
    } finally {
      // SIGKILL: metered usage must survive it. The next start folds the journal into the database.
      process.kill(us.pid, 'SIGKILL')
      await us.stop()
    }
    await (await startOurs({}, dataDir)).stop()
    const metered = countMetered(dataDir)
    report(
      singleRow(
        'gateway',
        'metered of those sent, after a SIGKILL',
        'share',
        [metered / sent],
        { least: 1, most: 1 },
        `${metered} of ${sent}`,
      ),
    )
  } finally {
    portkey.stop()
    bareRelay.stop()
    mock.stop()
    rmSync(dataDir, { recursive: true, force: true })
  }
}
