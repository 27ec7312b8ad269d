// Webhooks on their own database, with a manual clock.
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import pino from 'pino'
import { Webhooks } from '../../server/features/webhooks/service.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { recordEvent } from '../../server/platform/events/outbox.ts'
import { createAddressRules, type Resolve, readAllowed } from '../../server/platform/outbound/addresses.ts'
import { createSecrets } from '../../server/platform/storage/secrets.ts'
import { createServerMetrics } from '../../server/platform/telemetry/metrics.ts'

export const account_id = 'acc_test'
export const by = { kind: 'key' as const, account_id, user_id: null, key_id: null }

interface Options {
  allow?: string
  resolve?: Resolve
  timeout_ms?: number
}

export async function startWebhooks({ allow = '127.0.0.0/8', ...options }: Options = {}) {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-webhooks-'))
  const db = await openDatabase(dataDir)
  const clock = { time: Date.now() }
  async function addAccount(id: string): Promise<string> {
    const account = { id, name: id, tier: 'free', suspended_at: null, created_at: clock.time }
    await db.insertInto('accounts').values(account).execute()
    return id
  }
  await addAccount(account_id)
  /** Another process on the same database. */
  const another = (key = 'secret.key', lines?: string[]) =>
    new Webhooks({
      db,
      secrets: createSecrets(path.join(dataDir, key)),
      rules: createAddressRules(readAllowed(allow)),
      max: 1000,
      version: 'test',
      log: pino({ level: lines ? 'info' : 'silent' }, { write: (line: string) => void lines?.push(line) }),
      metrics: createServerMetrics(),
      now: () => clock.time,
      ...options,
    })
  const webhooks = another()
  let delivering = webhooks.deliverer.start()
  return {
    db,
    clock,
    webhooks,
    another,
    addAccount,
    register: async (url: string, account = account_id) =>
      (await webhooks.create({ ...by, account_id: account }, { url, events: ['model.deployed'] })).id,
    /** Records an event that every webhook of the account subscribes to. */
    async happen(name: string, account = account_id): Promise<void> {
      await db.transaction().execute((trx) => recordEvent(trx, account, 'model.deployed', { name }, clock.time))
      webhooks.deliverer.wake()
    },
    passTo(time: number): void {
      clock.time = Math.max(clock.time, time)
      webhooks.deliverer.wake()
    },
    /** The deliveries of a webhook, oldest first. */
    deliveries: async (id: string) => (await webhooks.deliveries(account_id, id, { limit: 100 })).items.toReversed(),
    pause: () => delivering.close(),
    goOn: () => {
      delivering = webhooks.deliverer.start()
    },
    async stop() {
      await delivering.close()
      await db.destroy()
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}
