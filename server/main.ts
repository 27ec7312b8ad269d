// Composition root: reads the configuration, takes the lock, starts services, HTTP and the queue, and stops them in
// order.
import { renameSync, rmSync, writeFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import path from 'node:path'
import { killChildren } from '../lib/child-process.ts'
import { buildApp } from './app.ts'
import { ConfigError, readConfig } from './config.ts'
import { dashboardAddress } from './features/sign-in/index.ts'
import { databaseAway } from './platform/db/dialect.ts'
import { NewerDatabase } from './platform/db/migrate.ts'
import { lockDataDir } from './platform/db/open.ts'
import { makeRoomForStart } from './platform/storage/disk-reserve.ts'
import { isFull, storageError } from './platform/storage/durable-files.ts'
import { WrongInstallation } from './platform/storage/installation.ts'
import { KeyUnusable } from './platform/storage/key-file.ts'
import { watchEventLoop } from './platform/telemetry/event-loop.ts'
import { TracingSettingError } from './platform/telemetry/tracing.ts'
import { createLog, createServices, type Services } from './services.ts'

/** Grace period for requests in flight when the service stops. */
const grace_ms = 20_000
/** Time for an aborted stream to write its last event. */
const finalEvent_ms = 500
const idleClose_ms = 50
/** npm forwards the SIGINT that the terminal has already sent to the whole group: two within this time are one. */
const duplicateSignal_ms = 200
/** A shell's exit status for a program that SIGINT ended. */
const interruptedStatus = 130
/** The same for SIGTERM. */
const terminatedStatus = 143

/**
 * Receives the signals that stop the service from the first moment on. Before it listens, one ends the process: nothing
 * has begun. While it starts, the stop waits for the start's end.
 */
function receiveSignals() {
  let listening = false
  let early: NodeJS.Signals | undefined
  let stop: ((signal: NodeJS.Signals) => void) | undefined
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const)
    process.on(signal, () => {
      if (stop) return stop(signal)
      if (!listening || (early && signal === 'SIGINT')) {
        killChildren()
        process.exit(signal === 'SIGINT' ? interruptedStatus : terminatedStatus)
      }
      early = signal
    })
  return {
    listens() {
      listening = true
    },
    started(stopWith: (signal: NodeJS.Signals) => void) {
      stop = stopWith
      if (early) stop(early)
    },
  }
}

async function main(): Promise<void> {
  const signals = receiveSignals()
  const config = readConfig(process.env)
  const log = createLog(config)
  const { lock, reserved } = await lockWithRoom(config.data_dir)
  if (!lock)
    throw new ConfigError(
      `Another Tunery already serves the data folder ${config.data_dir}. ` +
        'Stop it, or set TUNERY_DATA_DIR to another folder.',
    )
  const services = await createServices(config, log)
  const isFirst = await showFirstKey(services.accounts, config.data_dir)
  const app = await buildApp(services, config)
  const sockets = new Set<Socket>()
  app.server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  let requests = 0
  app.server.on('request', (request, response) => {
    // Count only POST: reads are short or end when the stop begins.
    if (request.method !== 'POST') return
    requests++
    response.once('close', () => requests--)
  })
  await services.sweep()
  signals.listens()
  const address = await app.listen({ host: config.host, port: config.port })
  // Start the queue only after listening has succeeded.
  const work = await services.startWork()
  watchEventLoop({ metrics: services.metrics, log })
  const url = `${address}/v1`
  const serverFile = path.join(config.data_dir, 'server.json')
  // Atomic: other processes wait for this file.
  writeFileSync(`${serverFile}.new`, JSON.stringify({ url, pid: process.pid }))
  renameSync(`${serverFile}.new`, serverFile)
  if (reserved > 0) await services.reserve.refill(reserved)
  const dashboard = dashboardAddress(address, config.public_url)
  console.log(`Tunery serves ${url} (dashboard: ${dashboard}/, documentation: ${dashboard}/docs)`)
  if (isFirst) await showSignInLink(services.signIn, dashboard, config.data_dir)
  services.startEngine().catch((error: Error) => log.error(error.message))
  services.deployments.recover().catch((error: Error) => log.error(error.message))

  let stopping_since: number | undefined
  async function stop(signal: NodeJS.Signals) {
    if (stopping_since !== undefined) {
      // A second Ctrl-C stops at once; a second SIGTERM changes nothing.
      if (signal === 'SIGINT' && performance.now() - stopping_since > duplicateSignal_ms) {
        killChildren()
        process.exit(interruptedStatus)
      }
      return
    }
    stopping_since = performance.now()
    console.log(stopMessage(requests, services.runningTrainings()))
    log.info(`${signal}: stopping`)
    services.beginStop()
    rmSync(serverFile, { force: true })
    const cut = setTimeout(() => {
      services.abortStreams()
      setTimeout(() => app.server.closeAllConnections(), finalEvent_ms)
    }, grace_ms)
    const closing = setInterval(() => {
      // Poll: a keep-alive connection becomes idle only after its last answer, and Node never counts a connection
      // without any request as idle.
      app.server.closeIdleConnections()
      for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy()
    }, idleClose_ms)
    await Promise.all([app.close(), work.close()])
    clearInterval(closing)
    clearTimeout(cut)
    await services.close()
    lock?.release()
    process.exit(0)
  }
  // Ignore write errors: the terminal may be gone.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
  signals.started((signal) => void stop(signal))
}

/**
 * Locks the data folder. On a full disk a start uses the reserve, the lock included; `reserved`: bytes that the reserve
 * had.
 */
async function lockWithRoom(dataDir: string): Promise<{ lock: ReturnType<typeof lockDataDir>; reserved: number }> {
  let reserved = 0
  let lock: ReturnType<typeof lockDataDir>
  try {
    lock = lockDataDir(dataDir)
  } catch (error) {
    if (!isFull(error)) throw error
    reserved = await makeRoomForStart(dataDir)
    lock = lockDataDir(dataDir)
  }
  if (lock) reserved = Math.max(reserved, await makeRoomForStart(dataDir))
  return { lock, reserved }
}

/** One line that says what the stop waits for. */
function stopMessage(requests: number, trainings: number): string {
  const count = (number: number, noun: string) => `${number} ${noun}${number === 1 ? '' : 's'}`
  const waitingFor = [
    ...(requests > 0 ? [`${count(requests, 'request')} to end, ${grace_ms / 1000} s at most`] : []),
    ...(trainings > 0 ? [`the checkpoint of ${count(trainings, 'training')}`] : []),
  ]
  const waiting = waitingFor.length > 0 ? `: waiting for ${waitingFor.join(', and for ')}` : ''
  return `Stopping${waiting}. Press Ctrl-C again to stop at once.`
}

// Prints the first API key only to a terminal; output that goes to a log or pipe would store it, so write a file there.
async function showFirstKey(accounts: Services['accounts'], dataDir: string): Promise<boolean> {
  await accounts.ensureOwner()
  const file = path.join(dataDir, 'first-key.txt')
  const isFirst = await accounts.createFirstKey(({ key }) => {
    if (!process.stdout.isTTY) writeFileSync(file, `${key}\n`, { mode: 0o600 })
    else console.log(`\nThe owner's API key, shown this once:\n\n    ${key}\n`)
  })
  if (isFirst && !process.stdout.isTTY)
    console.log(`The owner's API key is in ${file}. Move it to where you keep secrets, then delete the file.`)
  return isFirst
}

/** The link with which the first person signs in to the dashboard, shown as the first key is. */
async function showSignInLink(signIn: Services['signIn'], address: string, dataDir: string): Promise<void> {
  const { token } = await signIn.createLink()
  const link = `${address}/sign-in#${token}`
  if (process.stdout.isTTY) {
    console.log(`\nSign in to the dashboard with this link. It works once, within a day:\n\n    ${link}\n`)
    return
  }
  const file = path.join(dataDir, 'sign-in-link.txt')
  writeFileSync(file, `${link}\n`, { mode: 0o600 })
  console.log(`The link to sign in to the dashboard is in ${file}. It works once, within a day.`)
}

function explain(error: NodeJS.ErrnoException): string {
  const said = [ConfigError, TracingSettingError, NewerDatabase, WrongInstallation, KeyUnusable]
  if (said.some((kind) => error instanceof kind)) return error.message
  if (error.syscall === 'listen' && error.code === 'EACCES')
    return `The port may not be used: ${error.message}. Set TUNERY_PORT to another one.`
  if (error.code === 'EADDRINUSE') return `The port is taken: ${error.message}. Set TUNERY_PORT to another one.`
  if (['EADDRNOTAVAIL', 'ENOTFOUND', 'EAI_AGAIN'].includes(error.code ?? ''))
    return `TUNERY_HOST is not an address of this machine: ${error.message}.`
  if (error.code?.startsWith('SQLITE_BUSY'))
    return `Another process has locked the database: ${error.message}. Start again when it has ended.`
  if (['SQLITE_NOTADB', 'SQLITE_CORRUPT'].some((code) => error.code?.startsWith(code)))
    return (
      `The database in the data folder is damaged (tunery.db or server.lock): ${error.message}. ` +
      `'./tunery check' says more; './tunery restore' brings a backup back.`
    )
  if (error.code === databaseAway)
    return `The database of TUNERY_DATABASE_URL does not answer (${error.message}). Start again when it does.`
  const storage = storageError(error)?.code
  if (storage === 'storage_full')
    return `The disk of the data folder is full: ${error.message}. Make room and start again.`
  if (storage)
    return `The data folder cannot be used: ${error.message}. Set TUNERY_DATA_DIR to a folder that can be written.`
  if (error.path !== undefined)
    return `A file that the start needs cannot be used: ${error.message}. Mend or move away what is there.`
  return error.stack ?? String(error)
}

main().catch((error: Error) => {
  console.error(explain(error))
  process.exit(1)
})
