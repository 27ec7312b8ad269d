// The service as its users run it: a process of its own, on a data folder that outlives it.
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
  /** Sends the signal and waits for the end. Resolves with the exit status; null where a signal ended it. */
  end(signal: 'SIGTERM' | 'SIGKILL'): Promise<number | null>
}

export interface DataFolder {
  dataDir: string
  env: NodeJS.ProcessEnv
  /** Starts a server and waits until it listens. */
  start(): Promise<RunningServer>
  /** What `./tunery` answers with to these words and `--json`. */
  tunery(...words: string[]): Record<string, string>
  /** Makes a key on the command line, with every scope. */
  key(): string
  /** Kills what still runs. */
  kill(): void
  /** The same, and removes the folder. */
  remove(): void
}

/** A data folder with the tiny models, and servers on it; `log` takes what they print. */
export function dataFolder(
  name: string,
  settings: Record<string, string> = {},
  { dataDir = mkdtempSync(path.join(os.tmpdir(), `tunery-${name}-`)), log }: { dataDir?: string; log?: string } = {},
): DataFolder {
  // One thread, as two test files run at once: where threads of several engines and trainers share two cores, they wait
  // for each other at every step.
  const usual = {
    TUNERY_DATA_DIR: dataDir,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'fatal',
    TUNERY_THREADS: '1',
  }
  const env = { ...process.env, ...usual, ...settings }
  const servers: ChildProcess[] = []
  const kill = () => {
    for (const server of servers) server.kill('SIGKILL')
  }
  const tunery = (...words: string[]) =>
    JSON.parse(execFileSync(path.join(root, 'tunery'), [...words, '--json'], { env, encoding: 'utf8' }))
  return {
    dataDir,
    env,
    tunery,
    key: () => tunery('keys', 'create', '--name', 'ci').key,
    async start() {
      const file = path.join(dataDir, 'server.json')
      rmSync(file, { force: true })
      const printed = log === undefined ? undefined : openSync(log, 'a')
      const server = spawn(process.execPath, ['server/main.ts'], {
        cwd: root,
        env,
        stdio: ['ignore', printed ?? 'ignore', printed ?? 'inherit'],
      })
      if (printed !== undefined) closeSync(printed)
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

/** The process ids of a process's children whose command line has this text. */
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
    // A process that has ended but was not waited for is still listed, as a zombie.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}
