// Starts the service as users do, with a temporary data folder, and calls only its public API.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { promisify } from 'node:util'

const root = path.resolve(import.meta.dirname, '../..')

export interface Service {
  url: string
  key: string
  /** Resolves when the server's process has ended. */
  ended: Promise<void>
  stop(): Promise<void>
  /** Kills it at once; `stop` then only waits. */
  kill(): void
}

export async function startService(): Promise<Service> {
  mkdirSync(path.join(root, '.local'), { recursive: true })
  const dataDir = mkdtempSync(path.join(root, '.local/demo-'))
  const env = {
    ...process.env,
    TUNERY_DATA_DIR: dataDir,
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: process.env.TUNERY_LOG_LEVEL ?? 'warn',
  }
  // Own process group: Ctrl-C reaches only this script, which then stops the service in order.
  const server = spawn(path.join(root, 'scripts/node'), ['server/main.ts'], {
    cwd: root,
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
    detached: true,
  })
  const ended = new Promise<void>((resolve) => server.once('exit', () => resolve()))
  try {
    const { url } = await serverFile(path.join(dataDir, 'server.json'), server)
    const { stdout } = await promisify(execFile)(
      path.join(root, 'tunery'),
      ['keys', 'create', '--name', 'demo', '--json'],
      { env },
    )
    return {
      url,
      key: (JSON.parse(stdout) as { key: string }).key,
      ended,
      stop: () => stop(server, ended, dataDir),
      kill: () => kill(server),
    }
  } catch (error) {
    await stop(server, ended, dataDir)
    throw error
  }
}

async function serverFile(file: string, server: ChildProcess): Promise<{ url: string }> {
  for (;;) {
    if (existsSync(file)) return JSON.parse(readFileSync(file, 'utf8'))
    if (server.exitCode !== null) throw new Error('The service did not start; see its message above.')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

async function stop(server: ChildProcess, ended: Promise<void>, dataDir: string): Promise<void> {
  if (server.exitCode === null && server.signalCode === null) server.kill('SIGTERM')
  await ended
  rmSync(dataDir, { recursive: true, force: true })
}

function kill(server: ChildProcess): void {
  // A second SIGINT, some time after the first, kills the server and its children.
  const timer = setInterval(() => server.kill('SIGINT'), 100)
  server.once('exit', () => clearInterval(timer))
}

/** Sends one request. Throws with the service's answer if it is not a success. */
export async function call<T>(service: Service, method: string, route: string, body?: object): Promise<T> {
  const isForm = body instanceof FormData
  const response = await fetch(service.url + route, {
    method,
    headers: { authorization: `Bearer ${service.key}`, ...(body && !isForm && { 'content-type': 'application/json' }) },
    ...(body && { body: isForm ? body : JSON.stringify(body) }),
  })
  if (!response.ok) throw new Error(`${method} ${route} answered ${response.status}: ${await response.text()}`)
  return (await response.json()) as T
}

/** Yields the events of a job until it has ended. */
export async function* events(service: Service, job_id: string): AsyncGenerator<JobEvent> {
  const response = await fetch(`${service.url}/fine-tuning/jobs/${job_id}/events`, {
    headers: { authorization: `Bearer ${service.key}` },
  })
  if (!response.ok || !response.body) throw new Error(`the event stream answered ${response.status}`)
  let rest = ''
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) if (line) yield JSON.parse(line) as JobEvent
  }
}

export interface JobEvent {
  type: string
  message: string
  data?: Record<string, number | string | null>
}
