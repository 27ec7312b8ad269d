// Runs a program on an untrusted file, as a process with bounds on its time and memory, so that no file can slow or
// stop the service.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'

const max_memory_mb = 1024
/** Reading must make this much headway, in bytes of the file a second, after a start of its own. */
const start_ms = 8_000
const slowest_bytes_a_ms = 10_000
const look_ms = 50

interface Bounded {
  command: string
  args: string[]
  env: NodeJS.ProcessEnv
  max_ms: number
  max_memory_mb: number
  signal?: AbortSignal
}

/**
 * How a bounded program ended: its status and what it printed, or which bound ended it. `problem` is the end of its
 * standard error.
 */
export interface BoundedEnd {
  status: number | null
  printed: string
  problem: string
  stopped?: 'time' | 'memory'
}

/**
 * Runs a program in the root of the checkout. Rejects where it does not start, or where the signal aborts, which ends
 * it.
 */
export async function runBounded({ command, args, env, max_ms, max_memory_mb, signal }: Bounded): Promise<BoundedEnd> {
  signal?.throwIfAborted()
  const child = spawnChild(command, args, { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
  let stopped: BoundedEnd['stopped']
  const stop = (why: BoundedEnd['stopped']) => {
    stopped ??= why
    child.kill('SIGKILL')
  }
  const timer = setTimeout(() => stop('time'), max_ms)
  const watch = setInterval(() => {
    if (memoryMb(child.pid) > max_memory_mb) stop('memory')
  }, look_ms)
  const abort = () => void child.kill('SIGKILL')
  signal?.addEventListener('abort', abort, { once: true })
  let printed = ''
  let problem = ''
  child.stdout.setEncoding('utf8').on('data', (data) => (printed += data))
  child.stderr.on('data', (data) => (problem = (problem + data).slice(-2000)))
  const status = await new Promise<number | null>((resolve, reject) =>
    child.on('error', reject).on('close', resolve),
  ).finally(() => {
    clearTimeout(timer)
    clearInterval(watch)
    signal?.removeEventListener('abort', abort)
  })
  signal?.throwIfAborted()
  return { status, printed, problem, ...(stopped && { stopped }) }
}

/** What the script printed; or why it was stopped, in words that end "The file cannot be read: …". */
export type ReadBy = { printed: string } | { stopped: string }

/** Runs one of the service's own scripts. Rejects where the script itself is at fault, or where the signal aborts. */
export async function readUntrusted(
  script: string,
  request: object,
  size_bytes: number,
  signal?: AbortSignal,
): Promise<ReadBy> {
  // Rows live for a moment: with a larger nursery few of them are ever moved.
  const args = [
    `--max-old-space-size=${max_memory_mb / 2}`,
    '--max-semi-space-size=32',
    path.join(root, script),
    JSON.stringify(request),
  ]
  const max_ms = start_ms + size_bytes / slowest_bytes_a_ms
  const bounds = { max_ms, max_memory_mb, ...(signal && { signal }) }
  const { status, printed, problem, stopped } = await runBounded({
    command: process.execPath,
    args,
    env: { PATH: process.env.PATH },
    ...bounds,
  })
  if (stopped === 'time')
    return {
      stopped: `reading it takes longer than ${Math.round(max_ms / 1000)} s. It is damaged, or made to be unreadable.`,
    }
  if (stopped)
    return {
      stopped: `reading it takes more than ${max_memory_mb} MB of memory. It is damaged, or made to be unreadable.`,
    }
  if (status === 0) return { printed }
  // The heap's own limit ends the process with a message of V8's.
  if (/heap out of memory|Array buffer allocation failed|Invalid array length/.test(problem))
    return { stopped: 'a part of it is too large for the memory that reading may take.' }
  throw new Error(`${script} ended with ${status}: ${problem}`)
}

function memoryMb(pid: number | undefined): number {
  try {
    return (Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1]) * 4096) / 1e6
  } catch {
    return 0
  }
}
