import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Patience } from '../../lib/http/client-timeouts.ts'
import { buildApp } from '../../server/app.ts'
import { readConfig } from '../../server/config.ts'
import { type Db, openThreadedDatabase } from '../../server/db/open.ts'
import { createLog, createServices } from '../../server/services.ts'
import { client } from './client.ts'
import { tinyModelsDir } from './tiny.ts'

/**
 * The whole service in this process, as `server/main.ts` composes it, on a free port and a data folder of its own; the
 * engine and trainers are real processes.
 */
export async function startApp(
  settings: Record<string, string> = {},
  { open = openThreadedDatabase, times }: { open?: (dataDir: string) => Promise<Db>; times?: Patience } = {},
) {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-test-'))
  const config = readConfig({
    TUNERY_DATA_DIR: dataDir,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_LOG_LEVEL: 'silent',
    TUNERY_THREADS: '1',
    ...settings,
  })
  const db = await open(config.data_dir)
  const services = await createServices(config, createLog(config), db)
  const owner = await services.accounts.createAccount('test')
  const other = await services.accounts.createAccount('other')
  const key = (await services.accounts.createKey('test', 'full', owner.user_id)).key
  const otherKey = (await services.accounts.createKey('other', 'full', other.user_id)).key
  const app = await buildApp(services, config, times)
  await services.sweep()
  const worker = await services.startWork()
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
    /**
     * The service's own connection. Another that waits for a lock in this process holds up the transaction that it
     * waits for.
     */
    db,
    dataDir,
    async stop() {
      services.beginStop()
      app.server.closeAllConnections()
      await Promise.all([app.close(), worker.stop()])
      await services.close()
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}
export type TestApp = Awaited<ReturnType<typeof startApp>>
