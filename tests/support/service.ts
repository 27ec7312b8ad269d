import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before } from 'node:test'
import type { ClientTimeouts } from '../../lib/http/client-timeouts.ts'
import { buildApp } from '../../server/app.ts'
import { readConfig } from '../../server/config.ts'
import { type Db, openDatabase, openThreadedDatabase } from '../../server/platform/db/open.ts'
import { commandLineActor } from '../../server/platform/events/audit.ts'
import { createLog, createServices, type Services } from '../../server/services.ts'
import { client } from './client.ts'
import { withDatabase } from './database.ts'
import { newPostgresDatabase } from './postgres.ts'
import { tinyModelsDir } from './tiny.ts'
import { installColourModel } from './trained.ts'

/** A server with which another one shares the database, the files and the accounts. */
interface Joined {
  /** Settings of the other. */
  shared: Record<string, string>
  owner: { account_id: string; user_id: string }
  key: string
  otherKey: string
}

/**
 * Starts the whole service in this process, composed as in `server/main.ts`, on a free port and a temporary data
 * folder. Engine and trainers are real processes.
 */
export async function startApp(
  settings: Record<string, string> = {},
  { open, times, join }: { open?: (dataDir: string) => Promise<Db>; times?: ClientTimeouts; join?: Joined } = {},
) {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-test-'))
  const postgres = open || join ? undefined : await newPostgresDatabase()
  // TEST_STORAGE=folder: with a storage that machines share, and so a data folder that is only a cache.
  const shared =
    process.env.TEST_STORAGE === 'folder' ? mkdtempSync(path.join(os.tmpdir(), 'tunery-shared-')) : undefined
  const config = readConfig({
    TUNERY_DATA_DIR: dataDir,
    ...(shared && { TUNERY_STORAGE_URL: `file://${shared}` }),
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_LOG_LEVEL: 'silent',
    TUNERY_THREADS: '1',
    ...(process.env.TEST_ENGINE === 'vllm' && { TUNERY_ENGINE: 'vllm', TUNERY_ENGINE_OPTIONS: '--cache-mb 300' }),
    // A process that loads libraries beside the tests takes their time.
    TUNERY_PREPARED_TRAINER_SECONDS: '0',
    ...(postgres && { TUNERY_DATABASE_URL: postgres.url }),
    ...join?.shared,
    ...settings,
  })
  if (!config.database_url && !open) await withDatabase(dataDir)
  const db = await (open?.(dataDir) ?? openThreadedDatabase(dataDir, config))
  const services = await createServices(config, createLog(config), db)
  const { owner, key, otherKey } = join ?? (await createTestAccounts(services, db))
  const app = await buildApp(services, config, times)
  await services.sweep()
  const work = await services.startWork()
  const address = await app.listen({ host: '127.0.0.1', port: 0 })
  const url = `${address}/v1`
  return {
    ...client(url, key),
    address,
    url,
    key,
    otherKey,
    owner,
    other: client(url, otherKey),
    services,
    /** The service's own connection. A second one in this process would deadlock while it waits for a lock. */
    db,
    dataDir,
    shared: {
      TUNERY_DATABASE_URL: config.database_url ?? '',
      TUNERY_STORAGE_URL: config.storage_url ?? '',
      TUNERY_SECRET_KEY_FILE: config.secret_key_file ?? path.join(dataDir, 'secret.key'),
    },
    /** A connection of another process to its database. */
    openDatabase: () => openDatabase(dataDir, config.database_url),
    /** Installs a tiny model that was trained on colours; a new one at each call. */
    colourModel: () => installColourModel({ dataDir, db, account_id: owner.account_id, models_dir: config.models_dir }),
    async stop() {
      services.beginStop()
      app.server.closeAllConnections()
      await Promise.all([app.close(), work.close()])
      await services.close()
      await postgres?.drop()
      rmSync(dataDir, { recursive: true, force: true })
      if (shared) rmSync(shared, { recursive: true, force: true })
    },
  }
}
export type TestApp = Awaited<ReturnType<typeof startApp>>

/**
 * The app of a file's tests: started before the first one, stopped after the last. On a busy machine Node runs the
 * hooks of a file beside each other, so another `before` awaits `app.started`.
 */
export function appOfTests(...options: Parameters<typeof startApp>): TestApp & { started: Promise<void> } {
  const { promise: started, resolve, reject } = Promise.withResolvers<void>()
  const app = { started } as TestApp & { started: Promise<void> }
  before(() => {
    startApp(...options).then((running) => resolve(void Object.assign(app, running)), reject)
    return started
  })
  after(() => app.stop())
  return app
}

/** An account with its owner, without a key. */
export async function createAccount({ accounts }: Services, db: Db, name: string, operator = 0) {
  const request = { name, owner: { name, email: null } }
  return await db.transaction().execute(async (trx) => {
    const { account, owner } = await accounts.operator.insertAccount(trx, commandLineActor, request)
    await trx.updateTable('users').set({ operator }).where('id', '=', owner.id).execute()
    return { account_id: account.id, user_id: owner.id }
  })
}

/** Two accounts with a key each. The owner of the first operates the service, as the first owner of an installation. */
async function createTestAccounts(services: Services, db: Db): Promise<Omit<Joined, 'shared'>> {
  const { accounts } = services
  const owner = await createAccount(services, db, 'test', 1)
  const other = await createAccount(services, db, 'other')
  return {
    owner,
    key: (await accounts.createKey('test', 'full', owner.user_id)).key,
    otherKey: (await accounts.createKey('other', 'full', other.user_id)).key,
  }
}
