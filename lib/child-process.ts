// Starts the service's programs. Each obeys the service alone: what a terminal sends to the whole process group
// (Ctrl-C, Ctrl-\, and its end) must not break off what the service is about to end in order. They stay in the
// service's session, since where the kernel groups processes by session a priority counts only within one; so they
// ignore the signals.
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import path from 'node:path'
import { root } from './root.ts'

const alive = new Set<ChildProcess>()

function keep(child: ChildProcess): void {
  alive.add(child)
  child.once('exit', () => alive.delete(child)).once('error', () => child.pid === undefined && alive.delete(child))
}

/** Node sets ignored signals back to their defaults when it starts; other programs inherit them, and so do theirs. */
function ignoringTerminal(command: string, args: readonly string[]): [string, string[]] {
  if (command === process.execPath) return [command, ['--import', path.join(root, 'lib/ignore-terminal.mjs'), ...args]]
  return ['/bin/sh', ['-c', 'trap "" INT QUIT HUP; exec "$0" "$@"', command, ...args]]
}

/**
 * `spawn` of a program that ignores the terminal. One of Node is named by `process.execPath`; one that does not exist
 * ends with status 127.
 */
export const spawnChild = ((command: string, args: readonly string[], options: SpawnOptions) => {
  const child = spawn(...ignoringTerminal(command, args), options)
  keep(child)
  return child
}) as typeof spawn

/** How a program ended: its status, or the signal that ended it, and the end of its standard error. */
export interface ProgramEnd {
  status: number | null
  killed_by: string | null
  said: string
}

/**
 * Runs a program in the root of the checkout to its end. The pipe on its standard input stays open and empty: its end
 * tells it that this server is gone. Rejects where it does not start, or once `signal` aborts, which kills it.
 */
export async function runToEnd(
  command: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  signal: AbortSignal,
): Promise<ProgramEnd> {
  const child = spawnChild(command, args, {
    cwd: root,
    env,
    stdio: ['pipe', 'ignore', 'pipe'],
    signal,
    killSignal: 'SIGKILL',
  })
  child.stdin.on('error', () => {})
  let said = ''
  child.stderr.on('data', (data) => {
    said = (said + data).slice(-2000)
  })
  const [status, killed_by] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    let failure: Error | undefined
    child.on('error', (error) => {
      failure = error
      if (child.pid === undefined) reject(error)
    })
    child.on('close', (...how) => (failure ? reject(failure) : resolve(how)))
  })
  return { status, killed_by, said: said.trim() }
}

/** Kills every program that still runs, at once. */
export function killChildren(): void {
  for (const child of alive) child.kill('SIGKILL')
}
