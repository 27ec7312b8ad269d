// Runs a program on an untrusted file in a process with limits on time and memory, so that no file can slow or stop the
// service.
import path from 'node:path'
import { runToEnd } from '../../../lib/child-process.ts'
import { root } from '../../../lib/root.ts'

const max_memory_mb = 1024
/** Limit of processor time, of two threads together: twice `start_ms`, and 1 ms per this many bytes of the file. */
const start_ms = 8_000
const min_bytes_per_ms = 10_000
/**
 * How much longer the whole may take, as a script waits for the process that decodes pictures: a minute, and 1 ms per
 * this many bytes of the file. Pictures that decode to far more pixels than they have bytes run into it.
 */
const waiting_ms = 60_000
const min_picture_bytes_per_ms = 1_000

/** The script's output, or why it was stopped: the end of the sentence "The file cannot be read: …". */
type ScriptOutcome = { stdout: string } | { stopped: string }

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
  const own_ms = start_ms + size_bytes / min_bytes_per_ms
  const max_ms = own_ms + waiting_ms + size_bytes / min_picture_bytes_per_ms
  const cache = process.env.NODE_COMPILE_CACHE
  const { status, stdout, stderr, exceeded } = await runToEnd(process.execPath, args, {
    // With Node's own cache of compiled code it starts in a third of the time.
    env: { PATH: process.env.PATH, ...(cache && { NODE_COMPILE_CACHE: cache }) },
    stdout: 'text',
    signal,
    limits: { max_ms, max_cpu_ms: 2 * own_ms, max_memory_mb },
  })
  if (exceeded === 'time')
    return {
      stopped:
        `reading it takes more than ${Math.round((2 * own_ms) / 1000)} s of processor time, or with its pictures ` +
        `more than ${Math.round(max_ms / 1000)} s. It is damaged, or made to be unreadable.`,
    }
  if (exceeded === 'memory')
    return {
      stopped: `reading it takes more than ${max_memory_mb} MB of memory. It is damaged, or made to be unreadable.`,
    }
  if (status === 0) return { stdout }
  // V8's own heap limit ends the process with one of these messages.
  if (exceeded === 'output' || /heap out of memory|Array buffer allocation failed|Invalid array length/.test(stderr))
    return { stopped: 'a part of it is too large for the memory that reading may take.' }
  throw new Error(`${script} ended with ${status}: ${stderr}`)
}
