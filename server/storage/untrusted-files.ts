// Runs a program on an untrusted file in a process with limits on time and memory, so that no file can slow or stop the
// service.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'

const max_memory_mb = 1024
/** Time limit: `start_ms`, and 1 ms per this many bytes of the file. */
const start_ms = 8_000
const min_bytes_per_ms = 10_000
const poll_ms = 50

interface BoundedRun {
  command: string
  args: string[]
  env: NodeJS.ProcessEnv
  max_ms: number
  max_memory_mb: number
  signal?: AbortSignal
}

/** How the process ended. `stopped`: the limit that killed it. `stderr`: its last 2000 characters. */
export interface BoundedEnd {
  status: number | null
  stdout: string
  stderr: string
  stopped?: 'time' | 'memory'
}

/** Runs a program in the root of the checkout. Rejects if it cannot start, or when `signal` aborts, which kills it. */
export async function runBounded({
  command,
  args,
  env,
  max_ms,
  max_memory_mb,
  signal,
}: BoundedRun): Promise<BoundedEnd> {
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
  }, poll_ms)
  const abort = () => void child.kill('SIGKILL')
  signal?.addEventListener('abort', abort, { once: true })
  let stdout = ''
  let stderr = ''
  child.stdout.setEncoding('utf8').on('data', (data) => (stdout += data))
  child.stderr.on('data', (data) => (stderr = (stderr + data).slice(-2000)))
  const status = await new Promise<number | null>((resolve, reject) =>
    child.on('error', reject).on('close', resolve),
  ).finally(() => {
    clearTimeout(timer)
    clearInterval(watch)
    signal?.removeEventListener('abort', abort)
  })
  signal?.throwIfAborted()
  return { status, stdout, stderr, ...(stopped && { stopped }) }
}

/** The script's output, or why it was stopped: the end of the sentence "The file cannot be read: …". */
export type ScriptOutcome = { stdout: string } | { stopped: string }

/** Runs one of the service's scripts on an untrusted file. Rejects if the script itself fails or `signal` aborts. */
export async function readUntrusted(
  script: string,
  request: object,
  size_bytes: number,
  signal?: AbortSignal,
): Promise<ScriptOutcome> {
  // Rows are short-lived: a larger young generation keeps most of them from being copied.
  const args = [
    `--max-old-space-size=${max_memory_mb / 2}`,
    '--max-semi-space-size=32',
    path.join(root, script),
    JSON.stringify(request),
  ]
  const max_ms = start_ms + size_bytes / min_bytes_per_ms
  const bounds = { max_ms, max_memory_mb, ...(signal && { signal }) }
  const { status, stdout, stderr, stopped } = await runBounded({
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
  if (status === 0) return { stdout }
  // V8's own heap limit ends the process with one of these messages.
  if (/heap out of memory|Array buffer allocation failed|Invalid array length/.test(stderr))
    return { stopped: 'a part of it is too large for the memory that reading may take.' }
  throw new Error(`${script} ended with ${status}: ${stderr}`)
}

function memoryMb(pid: number | undefined): number {
  try {
    return (Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1]) * 4096) / 1e6
  } catch {
    return 0
  }
}
