// Runs the service as a separate process on a data folder that outlives it.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { root } from '../../lib/root.ts'
import { until } from './client.ts'
import { tinyModelsDir } from './tiny.ts'

export interface RunningServer {
  process: ChildProcess
  pid: number
  url: string
  /** Sends the signal and waits for the end. Resolves with the exit status; null if a signal killed it. */
  end(signal: 'SIGTERM' | 'SIGKILL'): Promise<number | null>
}

export interface DataFolder {
  dataDir: string
  env: NodeJS.ProcessEnv
  /** Starts a server and waits until it listens. */
  start(): Promise<RunningServer>
  /** Runs `./tunery` with these arguments and `--json`, and parses its output. */
  tunery(...words: string[]): Record<string, string>
  /** Creates an API key with every scope. */
  key(): string
  /** Kills all servers. */
  kill(): void
  /** The same, and removes the folder. */
  remove(): void
}

/** A data folder for servers with the tiny models, of this or another checkout; `log` is a file for their output. */
export function dataFolder(
  name: string,
  settings: Record<string, string> = {},
  {
    dataDir = mkdtempSync(path.join(os.tmpdir(), `tunery-${name}-`)),
    log,
    checkout = root,
  }: { dataDir?: string; log?: string; checkout?: string } = {},
): DataFolder {
  // One thread, as two test files run at once: threads of several engines and trainers that share two cores would wait
  // for each other at every step.
  const defaults = {
    TUNERY_DATA_DIR: dataDir,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'fatal',
    TUNERY_THREADS: '1',
    // A process that loads libraries beside the tests takes their time.
    TUNERY_PREPARED_TRAINER_SECONDS: '0',
  }
  const env = { ...process.env, ...defaults, ...settings }
  const servers: ChildProcess[] = []
  const kill = () => {
    for (const server of servers) server.kill('SIGKILL')
  }
  const tunery = (...words: string[]) =>
    JSON.parse(execFileSync(path.join(checkout, 'tunery'), [...words, '--json'], { env, encoding: 'utf8' }))
  return {
    dataDir,
    env,
    tunery,
    key: () => tunery('keys', 'create', '--name', 'ci').key,
    async start() {
      const file = path.join(dataDir, 'server.json')
      rmSync(file, { force: true })
      const logFile = log === undefined ? undefined : openSync(log, 'a')
      const server = spawn(process.execPath, ['server/main.ts'], {
        cwd: checkout,
        env,
        stdio: ['ignore', logFile ?? 'ignore', logFile ?? 'inherit'],
      })
      if (logFile !== undefined) closeSync(logFile)
      servers.push(server)
      await until('the server to listen', () => {
        if (server.exitCode !== null) throw new Error(`the server ended with status ${server.exitCode}`)
        return existsSync(file)
      })
      return {
        process: server,
        pid: server.pid!,
        url: JSON.parse(readFileSync(file, 'utf8')).url,
        async end(signal) {
          server.kill(signal)
          await ended(server)
          return server.exitCode
        },
      }
    },
    kill,
    remove() {
      kill()
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}

export const ended = (child: ChildProcess) =>
  new Promise<void>((resolve) =>
    child.exitCode !== null || child.signalCode ? resolve() : child.once('exit', () => resolve()),
  )

/** Ids of a process's children whose command line matches this regular expression. */
export function children(parent: number, text: string): number[] {
  try {
    return execFileSync('pgrep', ['-P', String(parent), '-f', text], { encoding: 'utf8' })
      .trim()
      .split('\n')
      .map(Number)
  } catch {
    return []
  }
}

export function alive(pid: number): boolean {
  try {
    // Ignore zombies: ended processes that were not waited for.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}
