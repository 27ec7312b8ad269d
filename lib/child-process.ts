// Starts child processes that ignore the terminal's signals (SIGINT, SIGQUIT, SIGHUP). A terminal sends these to the
// whole process group, and only the server decides when its children end. They stay in the server's session: where the
// kernel schedules by session (autogroup), priorities count only within one.
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import path from 'node:path'
import { root } from './root.ts'

const running = new Set<ChildProcess>()

function track(child: ChildProcess): void {
  running.add(child)
  child.once('exit', () => running.delete(child)).once('error', () => child.pid === undefined && running.delete(child))
}

/** Wraps a command to ignore these signals. Node resets ignored signals when it starts; other programs inherit them. */
function ignoringTerminal(command: string, args: readonly string[]): [string, string[]] {
  if (command === process.execPath) return [command, ['--import', path.join(root, 'lib/ignore-terminal.mjs'), ...args]]
  return ['/bin/sh', ['-c', 'trap "" INT QUIT HUP; exec "$0" "$@"', command, ...args]]
}

/**
 * Like `spawn`, for a child that ignores the terminal's signals. To run Node, pass `process.execPath`. A program that
 * does not exist exits with status 127.
 */
export const spawnChild = ((command: string, args: readonly string[], options: SpawnOptions) => {
  const child = spawn(...ignoringTerminal(command, args), options)
  track(child)
  return child
}) as typeof spawn

/** How a process ended: its exit status or the signal that killed it, and the last 2000 characters of its stderr. */
export interface ProgramEnd {
  status: number | null
  killed_by: string | null
  stderr: string
}

/**
 * Runs a program to its end, in the root of the checkout. Its stdin is an empty pipe whose end tells it that this
 * server is gone. Rejects if it cannot start, or when `signal` aborts, which kills it.
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
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr = (stderr + data).slice(-2000)
  })
  const [status, killed_by] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    let failure: Error | undefined
    child.on('error', (error) => {
      failure = error
      if (child.pid === undefined) reject(error)
    })
    child.on('close', (...how) => (failure ? reject(failure) : resolve(how)))
  })
  return { status, killed_by, stderr: stderr.trim() }
}

/** Sends SIGKILL to all running children. */
export function killChildren(): void {
  for (const child of running) child.kill('SIGKILL')
}
