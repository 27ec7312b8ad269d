// Runs one of the service's own scripts on an untrusted file, as a process with bounds on its time and memory, so that no file can slow
// or stop the service.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { root } from './config.ts'

const max_memory_mb = 1024
/** Reading must make this much headway, in bytes of the file a second, after a start of its own. */
const start_ms = 8_000
const slowest_bytes_a_ms = 10_000
const look_ms = 50

/** What the script printed; or why it was stopped, in words that end "The file cannot be read: …". */
export type ReadBy = { printed: string } | { stopped: string }

/** Rejects where the script itself is at fault, or where the signal aborts. */
export async function readUntrusted(script: string, request: object, size_bytes: number, signal?: AbortSignal): Promise<ReadBy> {
  // Rows live for a moment: with a larger nursery few of them are ever moved.
  const args = [`--max-old-space-size=${max_memory_mb / 2}`, '--max-semi-space-size=32', path.join(root, script), JSON.stringify(request)]
  const child = spawn(process.execPath, args, { cwd: root, env: { PATH: process.env.PATH }, stdio: ['ignore', 'pipe', 'pipe'] })
  let killed: string | undefined
  const kill = (why: string) => {
    killed ??= why
    child.kill('SIGKILL')
  }
  const max_ms = start_ms + size_bytes / slowest_bytes_a_ms
  const timer = setTimeout(() => kill(`reading it takes longer than ${Math.round(max_ms / 1000)} s. It is damaged, or made to be unreadable.`), max_ms)
  const watch = setInterval(() => {
    if (memoryMb(child.pid) > max_memory_mb) kill(`reading it takes more than ${max_memory_mb} MB of memory. It is damaged, or made to be unreadable.`)
  }, look_ms)
  const abort = () => kill('stopped')
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted) abort()
  let out = ''
  let problem = ''
  child.stdout.on('data', (data) => (out += data))
  child.stderr.on('data', (data) => (problem = (problem + data).slice(-2000)))
  const status = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve)).finally(() => {
    clearTimeout(timer)
    clearInterval(watch)
    signal?.removeEventListener('abort', abort)
  })
  signal?.throwIfAborted()
  if (killed) return { stopped: killed }
  if (status === 0) return { printed: out }
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
