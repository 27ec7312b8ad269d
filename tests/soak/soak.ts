// Kills the service's processes at random moments under load and checks that nothing acknowledged is lost.
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, client } from '../support/client.ts'
import { seededRandom } from '../support/random.ts'
import { startReceiver } from '../support/receiver.ts'
import { createInstallation } from './installation.ts'
import { type Ledger, openLedger } from './ledger.ts'
import { startLoad } from './load.ts'
import { verify } from './verify.ts'

export interface SoakOptions {
  folder: string
  seed: number
  kills: number
  /** Several share Postgres, Redis and storage, which are killed too. */
  servers?: number
  /** Processes that may be down at once. */
  atOnce?: number
  report(text: string): void
  /** Number of kills between two full checks. */
  verifyEach: number
}

export interface SoakResult {
  faults: string[]
  kills: Record<string, number>
  counts: Record<string, number>
}

/** Runs the soak test; resumes after the kills in the folder's ledger. */
export async function soak({
  folder,
  seed,
  kills,
  servers = 1,
  atOnce = 1,
  report: say,
  verifyEach,
}: SoakOptions): Promise<SoakResult> {
  const installation = await createInstallation(folder, servers)
  const ledger = openLedger(path.join(folder, 'ledger.jsonl'))
  const faults: string[] = []
  const { key } = installation
  const receiver = await startReceiver()
  try {
    return await run()
  } finally {
    receiver.stop()
    await installation.stop()
  }

  async function run(): Promise<SoakResult> {
    await installation.start()
    const any = () => client(installation.urls()[0]!, key)
    const webhook = await register(any(), receiver.url)
    let done = ledger.of('killed').length
    if (done > 0) say(`${done} of ${kills} kills were done before`)

    while (done < kills && faults.length === 0) {
      const random = seededRandom(seed + done)
      const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)]!
      const url = () => pick(installation.urls())
      const load = startLoad({ url, key, ledger, random, fault: (text) => faults.push(text) })
      const stop = Math.min(kills, done + verifyEach)
      let left = stop - done
      const killer = async () => {
        while (left > 0 && faults.length === 0) {
          left--
          await sleep(200 + random() * 4000)
          const what = await installation.kill(pick(installation.victims), random)
          if (what) ledger.add({ kind: 'killed', what })
          else left++
        }
      }
      await Promise.all(Array.from({ length: atOnce }, killer))
      done = stop - left
      await load.stop()
      await waitUntilIdle(any(), '/fine-tuning/jobs', ['queued', 'running'])
      await waitUntilIdle(any(), '/datasets', ['preparing'])
      const events = await waitForDeliveries(any(), webhook)
      const receivedIds = new Set(receiver.received.map(({ headers }) => headers['webhook-id']))
      faults.push(
        ...events
          .filter(({ event_id, status }) => status !== 'delivered' || !receivedIds.has(event_id))
          .map((event) => `not received: ${JSON.stringify(event)}`),
      )
      // A report folds what its own server has recorded.
      for (const url of installation.urls()) await client(url, key).api('GET', '/usage')
      faults.push(...(await verify(any(), installation, ledger, webhook)))
      say(`${done} of ${kills} kills; ${JSON.stringify(countsOf(ledger))}`)
    }
    faults.push(...(await installation.end()))
    return { faults, kills: killsOf(ledger), counts: countsOf(ledger) }
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
    const deliveries: { id: string; event_id: string; status: string }[] = []
    for (let more = true; more; ) {
      const { items, has_more } = (
        await api(
          'GET',
          `/webhooks/${webhook}/deliveries?limit=100${deliveries.length > 0 ? `&after=${deliveries.at(-1)!.id}` : ''}`,
        )
      ).body
      deliveries.push(...items)
      more = has_more
    }
    if (!deliveries.some(({ status }) => status === 'pending')) return deliveries
    await sleep(500)
  }
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
