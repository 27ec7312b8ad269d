// Kills the service's processes at random moments under load and checks that nothing acknowledged is lost.
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, client, until } from '../support/client.ts'
import { startReceiver } from '../support/receiver.ts'
import { alive, children, dataFolder, type RunningServer } from '../support/server.ts'
import { type Ledger, openLedger } from './ledger.ts'
import { startLoad } from './load.ts'
import { verify } from './verify.ts'

export interface SoakOptions {
  folder: string
  seed: number
  kills: number
  report(text: string): void
  /** Number of kills between two full checks. */
  verifyEach: number
}

export interface SoakResult {
  faults: string[]
  kills: Record<string, number>
  counts: Record<string, number>
}

/** Seeded pseudo-random numbers from 0 to 1 (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

const victims = { server: '', engine: 'engine/main.ts', trainer: 'trainer.cli.train' } as const

/** Runs the soak test; resumes after the kills in the folder's ledger. */
export async function soak({ folder, seed, kills, report: say, verifyEach }: SoakOptions): Promise<SoakResult> {
  const data = dataFolder(
    'soak',
    { TUNERY_CHECKPOINT_SECONDS: '1', TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8' },
    { dataDir: path.join(folder, 'data') },
  )
  const ledger = openLedger(path.join(folder, 'ledger.jsonl'))
  const faults: string[] = []
  const key = data.key()
  const receiver = await startReceiver()
  try {
    return await run()
  } finally {
    receiver.stop()
    data.kill()
  }

  async function run(): Promise<SoakResult> {
    let server = await data.start()
    const webhook = await register(client(server.url, key), receiver.url)
    let done = ledger.of('killed').length
    if (done > 0) say(`${done} of ${kills} kills were done before`)

    while (done < kills && faults.length === 0) {
      const random = seeded(seed + done)
      const load = startLoad({ url: () => server.url, key, ledger, random, fault: (text) => faults.push(text) })
      const stop = Math.min(kills, done + verifyEach)
      for (; done < stop && faults.length === 0; done++) {
        const victim = random() < 0.5 ? 'server' : random() < 0.5 ? 'engine' : 'trainer'
        await sleep(200 + random() * 4000)
        const [killed, running] = await kill(victim, server)
        server = running
        ledger.add({ kind: 'killed', what: killed })
      }
      await load.stop()
      await waitUntilIdle(client(server.url, key), '/fine-tuning/jobs', ['queued', 'running'])
      await waitUntilIdle(client(server.url, key), '/datasets', ['preparing'])
      const events = await waitForDeliveries(client(server.url, key), webhook)
      const receivedIds = new Set(receiver.received.map(({ headers }) => headers['webhook-id']))
      faults.push(
        ...events
          .filter(({ event_id, status }) => status !== 'delivered' || !receivedIds.has(event_id))
          .map((each) => `not received: ${JSON.stringify(each)}`),
      )
      faults.push(...(await verify(client(server.url, key), data.dataDir, ledger, webhook)))
      say(`${done} of ${kills} kills; ${JSON.stringify(countsOf(ledger))}`)
    }
    const status = await server.end('SIGTERM')
    if (status !== 0) faults.push(`the last server ended with ${status}`)
    const left = processesOn(data.dataDir)
    if (left.length > 0) faults.push(`processes are left: ${left.join(', ')}`)
    return { faults, kills: killsOf(ledger), counts: countsOf(ledger) }
  }

  /**
   * Kills one of the processes, or the server if the other does not start in time. After a server kill, waits until its
   * children have ended and starts another.
   */
  async function kill(
    victim: keyof typeof victims,
    running: RunningServer,
  ): Promise<[keyof typeof victims, RunningServer]> {
    for (let tries = 0; victim !== 'server' && tries < 50; tries++) {
      const pids = children(running.pid, victims[victim])
      for (const pid of pids) process.kill(pid, 'SIGKILL')
      if (pids.length > 0) return [victim, running]
      await sleep(100)
    }
    const own = processesOn(data.dataDir).filter((pid) => pid !== running.pid)
    await running.end('SIGKILL')
    await until('the server’s children to end', () => !own.some(alive))
    return ['server', await data.start()]
  }
}

/** Waits until none of the newest 100 items has one of these statuses. */
async function waitUntilIdle({ api }: Client, route: string, activeStatuses: string[]): Promise<void> {
  for (;;) {
    const { items } = (await api('GET', `${route}?limit=100`)).body
    if (!items.some(({ status }: { status: string }) => activeStatuses.includes(status))) return
    await sleep(200)
  }
}

const eventTypes = ['training.started', 'training.completed', 'training.failed', 'model.deployed']

async function register({ api }: Client, url: string): Promise<string> {
  // Remove webhooks to the receiver of an earlier run.
  for (const { id } of (await api('GET', '/webhooks')).body.items) await api('DELETE', `/webhooks/${id}`)
  const { status, body } = await api('POST', '/webhooks', { url, events: eventTypes })
  if (status !== 201) throw new Error(`the webhook was refused: ${JSON.stringify(body)}`)
  return body.id
}

/** Resolves with a webhook's deliveries when none is pending. The first retry comes after five seconds. */
async function waitForDeliveries({ api }: Client, webhook: string): Promise<{ event_id: string; status: string }[]> {
  for (;;) {
    const found: { id: string; event_id: string; status: string }[] = []
    for (let more = true; more; ) {
      const { items, has_more } = (
        await api(
          'GET',
          `/webhooks/${webhook}/deliveries?limit=100${found.length > 0 ? `&after=${found.at(-1)!.id}` : ''}`,
        )
      ).body
      found.push(...items)
      more = has_more
    }
    if (!found.some(({ status }) => status === 'pending')) return found
    await sleep(500)
  }
}

/** Processes with this data folder in their environment, whatever their parent. */
function processesOn(dataDir: string): number[] {
  const setting = `TUNERY_DATA_DIR=${dataDir}\0`
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return alive(pid) && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(setting)
      } catch {
        return false
      }
    })
}

const killsOf = (ledger: Ledger) => countBy(ledger.of('killed').map(({ what }) => what))
const countsOf = (ledger: Ledger) =>
  Object.fromEntries(
    (['dataset', 'dataset_deleted', 'job', 'job_ended', 'key', 'key_revoked', 'deployment', 'answer'] as const).map(
      (kind) => [kind, ledger.of(kind).length],
    ),
  )

function countBy(names: string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}
