// The composition root: configuration, lock, services, then HTTP and the queue; and the order in which they end.
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { buildApp } from './app.ts'
import { ConfigError, readConfig, settingsWithoutEffect } from './config.ts'
import { lockDataDir } from './db/open.ts'
import { createLog, createServices } from './services.ts'

/** How long requests under way may take when the service stops. */
const grace_ms = 20_000

async function main(): Promise<void> {
  const config = readConfig(process.env)
  const log = createLog(config)
  for (const name of settingsWithoutEffect(process.env)) log.warn(`${name} is accepted but has no effect in this version`)
  const lock = lockDataDir(config.data_dir)
  if (!lock) throw new ConfigError(`Another Tunery already serves the data folder ${config.data_dir}. Stop it, or set TUNERY_DATA_DIR to another folder.`)
  const services = await createServices(config, log)
  await showFirstKey(services.accounts, config.data_dir)
  const app = await buildApp(services)
  const worker = await services.startWork()
  const address = await app.listen({ host: config.host, port: config.port })
  const url = `${address}/v1`
  const serverFile = path.join(config.data_dir, 'server.json')
  writeFileSync(serverFile, JSON.stringify({ url, pid: process.pid }))
  console.log(`Tunery serves ${url} (documentation: ${address}/docs)`)
  services.warm().catch((error: Error) => log.error(error.message))

  let stopping = false
  async function stop(signal: string) {
    if (stopping) return
    stopping = true
    log.info(`${signal}: stopping`)
    services.beginStop()
    rmSync(serverFile, { force: true })
    const cut = setTimeout(() => app.server.closeAllConnections(), grace_ms)
    await Promise.all([app.close(), worker.stop()])
    clearTimeout(cut)
    await services.close()
    lock?.release()
    process.exit(0)
  }
  process.on('SIGTERM', () => void stop('SIGTERM'))
  process.on('SIGINT', () => void stop('SIGINT'))
}

// A key on a terminal is seen by one person; in a log or a pipe it would be kept by others, so there it goes to a file.
async function showFirstKey(accounts: Awaited<ReturnType<typeof createServices>>['accounts'], dataDir: string): Promise<void> {
  await accounts.ensureOwner()
  const first = await accounts.createFirstKey()
  if (!first) return
  if (process.stdout.isTTY) {
    console.log(`\nThe owner's API key, shown this once:\n\n    ${first.key}\n`)
    return
  }
  const file = path.join(dataDir, 'first-key.txt')
  mkdirSync(dataDir, { recursive: true })
  writeFileSync(file, `${first.key}\n`, { mode: 0o600 })
  console.log(`The owner's API key is in ${file}. Move it to where you keep secrets, then delete the file.`)
}

main().catch((error: unknown) => {
  const code = (error as { code?: string }).code
  const message =
    error instanceof ConfigError
      ? error.message
      : code === 'EADDRINUSE'
        ? `The port is taken: ${(error as Error).message}. Set TUNERY_PORT to another one.`
        : String((error as Error).stack ?? error)
  console.error(message)
  process.exit(1)
})
