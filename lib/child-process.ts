// Child processes. They ignore the terminal's signals (SIGINT, SIGQUIT, SIGHUP): a terminal sends these to the whole
// process group, and only the server decides when its children end. They stay in the server's session: where the kernel
// schedules by session (autogroup), priorities count only within one.
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { createInterface } from 'node:readline'
import type { Writable } from 'node:stream'
import { Worker } from 'node:worker_threads'
import { root } from './root.ts'

const stderrTail_characters = 4000
const stdoutText_characters_max = 64e6
/** Longest line that is read of a child: a longer one would fill the memory before it ends. */
const line_bytes_max = 64e6
const memoryPoll_ms = 50

export interface ChildOptions {
  env: NodeJS.ProcessEnv
  /**
   * 'text' collects stdout for the result; a function gets each line. By default it is discarded. A child on whose
   * output one of the functions throws is killed, and `ended` rejects with that error.
   */
  stdout?: 'text' | ((line: string) => void)
  onStderr?: (text: string) => void
  /** Called when the process has ended. `ended` also waits for processes that it started and that hold its output. */
  onExit?: () => void
  /** Stops the child when it aborts. */
  signal?: AbortSignal | undefined
  /** Time between SIGTERM and SIGKILL when `signal` aborts. By default SIGKILL is sent at once. */
  grace_ms?: number
  /** The cores that the child may use, by the kernel's numbers. By default those of this process. */
  cores?: readonly number[] | undefined
  /**
   * The child is killed when it exceeds one of these. `with_children`: the memory is that of the processes that its
   * main thread started, too.
   */
  limits?: { max_ms: number; max_cpu_ms?: number; max_memory_mb: number; with_children?: boolean }
}

/** How a child ended. */
interface ChildEnd {
  /** Null after a signal. */
  status: number | null
  killed_by: NodeJS.Signals | null
  /** Empty unless it was requested as text. */
  stdout: string
  /** The last 4000 characters. */
  stderr: string
  /** The limit that the child exceeded, and was killed for. */
  exceeded?: 'time' | 'memory' | 'output'
}

export interface Child {
  /** Undefined if the process could not be started. */
  readonly pid: number | undefined
  /**
   * A pipe that stays open until the child has ended. Its end tells the child that this server is gone. Undefined if
   * the process could not be started.
   */
  readonly stdin: Writable | undefined
  /**
   * Resolves when the process has ended and its output is read. Rejects if it could not be started, or if its output
   * could not be handled.
   */
  readonly ended: Promise<ChildEnd>
  kill(signal: NodeJS.Signals): void
  /** Sends SIGKILL if the child has not ended by then. */
  killAfter(ms: number): void
  /** Stops the child when `signal` aborts, as the options of the same names do. */
  stopOn(signal: AbortSignal, grace_ms?: number): void
}

const running = new Set<ChildProcess>()

/**
 * Starts a program in the root of the checkout. To run Node, pass `process.execPath`. Another program that does not
 * exist exits with status 127.
 */
export function spawnChild(command: string, args: readonly string[], options: ChildOptions): Child {
  const { env, stdout: onStdout, onStderr, onExit, signal, grace_ms, limits, cores } = options
  let child: ChildProcess
  try {
    child = spawn(...onCores(cores, ignoringTerminal(command, args)), {
      cwd: root,
      env,
      stdio: ['pipe', onStdout ? 'pipe' : 'ignore', 'pipe'],
    })
  } catch (error) {
    return notStarted(error)
  }
  if (child.pid === undefined) return notStarted(new Promise((_, reject) => child.once('error', reject)))
  running.add(child)

  let stdout = ''
  let stderr = ''
  let exceeded: ChildEnd['exceeded']
  const exceed = (limit: NonNullable<ChildEnd['exceeded']>) => {
    exceeded ??= limit
    child.kill('SIGKILL')
  }
  let unhandled: { error: unknown } | undefined
  /** What a handler throws would be uncaught in the stream's event, and end this process. */
  const guarded = (handle: (text: string) => void) => (text: string) => {
    if (unhandled) return
    try {
      handle(text)
    } catch (error) {
      unhandled = { error }
      child.kill('SIGKILL')
    }
  }
  // A write to a child that has ended.
  child.stdin?.on('error', () => {})
  const onErrorText = onStderr && guarded(onStderr)
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    stderr = (stderr + text).slice(-stderrTail_characters)
    onErrorText?.(text)
  })
  if (typeof onStdout === 'function') {
    let line_bytes = 0
    // Before the reader of lines gets it.
    child.stdout!.on('data', (chunk: Buffer) => {
      const end = chunk.lastIndexOf(10)
      line_bytes = end === -1 ? line_bytes + chunk.length : chunk.length - end - 1
      if (line_bytes <= line_bytes_max) return
      exceed('output')
      child.stdout!.destroy()
    })
    createInterface({ input: child.stdout! }).on('line', guarded(onStdout))
  } else
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      if (stdout.length + text.length > stdoutText_characters_max) exceed('output')
      else stdout += text
    })

  const timers: NodeJS.Timeout[] = []
  if (limits) {
    timers.push(setTimeout(() => exceed('time'), limits.max_ms))
    const { max_memory_mb, max_cpu_ms, with_children } = limits
    const check = () => {
      const pids = [child.pid, ...(with_children ? childrenOf(child.pid) : [])]
      if (pids.reduce<number>((sum, pid) => sum + processMemoryMb(pid), 0) > max_memory_mb) exceed('memory')
      if (max_cpu_ms !== undefined && processCpuMs(child.pid) > max_cpu_ms) exceed('time')
    }
    timers.push(setInterval(check, memoryPoll_ms))
  }
  const killAfter = (ms: number) => {
    if (running.has(child)) timers.push(setTimeout(() => child.kill('SIGKILL'), ms).unref())
  }
  const exited = new AbortController()
  const stopOn = (signal: AbortSignal, grace_ms = 0) => {
    const stop = () => {
      child.kill(grace_ms > 0 ? 'SIGTERM' : 'SIGKILL')
      if (grace_ms > 0) killAfter(grace_ms)
    }
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true, signal: exited.signal })
  }
  if (signal) stopOn(signal, grace_ms)

  const ended = new Promise<ChildEnd>((resolve, reject) => {
    // A signal that could not be sent. Without a listener it would end this process.
    child.on('error', () => {})
    child.once('exit', () => {
      running.delete(child)
      for (const timer of timers) clearTimeout(timer)
      exited.abort()
      onExit?.()
    })
    child.once('close', (status, killed_by) => {
      if (unhandled) reject(unhandled.error)
      else resolve({ status, killed_by, stdout, stderr: stderr.trim(), ...(exceeded && { exceeded }) })
    })
  })
  // Its owner may look later.
  ended.catch(() => {})
  return { pid: child.pid, stdin: child.stdin!, ended, kill: (name) => void child.kill(name), killAfter, stopOn }
}

/** Runs a program to its end. Rejects if it cannot be started, and when `signal` aborts. */
export async function runToEnd(command: string, args: readonly string[], options: ChildOptions): Promise<ChildEnd> {
  options.signal?.throwIfAborted()
  const end = await spawnChild(command, args, options).ended
  options.signal?.throwIfAborted()
  return end
}

/** Sends SIGKILL to all running children. */
export function killChildren(): void {
  for (const child of running) child.kill('SIGKILL')
}

/**
 * The environment of this process for a child, without the service's settings (TUNERY_*), without secrets and without
 * those of traces (OTEL_*, whose headers carry keys), unless their names match `keep`.
 */
export function childEnv(keep?: RegExp): NodeJS.ProcessEnv {
  const isPrivate = (name: string) =>
    /^(TUNERY_|OTEL_|TRACEPARENT$|TRACESTATE$)/.test(name) || /KEY|TOKEN|SECRET|PASSWORD/i.test(name)
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => keep?.test(name) || !isPrivate(name)))
}

/**
 * For a Node child: kills this process when its stdin ends, that is when the server is gone. A thread does it, as the
 * main thread may be busy for long. SIGKILL, as an exit would wait for native threads.
 */
export function dieWithParent(): void {
  const code = `const { Socket } = require('node:net')
    const die = () => process.kill(process.pid, 'SIGKILL')
    new Socket({ fd: 0, readable: true, writable: false }).on('end', die).on('error', die).resume()`
  // It fails if stdin is no pipe: a person runs this.
  new Worker(code, { eval: true, execArgv: [], env: {} }).on('error', () => {}).unref()
}

function notStarted(reason: unknown): Child {
  const ended = reason instanceof Promise ? reason : Promise.reject(reason)
  ended.catch(() => {})
  return { pid: undefined, stdin: undefined, ended, kill() {}, killAfter() {}, stopOn() {} }
}

/** Wraps a command to ignore these signals. Node resets ignored signals when it starts; other programs inherit them. */
function ignoringTerminal(command: string, args: readonly string[]): [string, string[]] {
  if (command === process.execPath) return [command, ['--import', path.join(root, 'lib/ignore-terminal.mjs'), ...args]]
  return ['/bin/sh', ['-c', 'trap "" INT QUIT HUP; exec "$0" "$@"', command, ...args]]
}

/** Wraps a command to run on these cores. `taskset` becomes the command, so the process id stays. */
const onCores = (cores: readonly number[] | undefined, [command, args]: [string, string[]]): [string, string[]] =>
  cores ? ['taskset', ['-c', cores.join(','), command, ...args]] : [command, args]

/** Resident memory of a process; 0 if it has ended. */
export function processMemoryMb(pid: number | undefined, proc = '/proc'): number {
  try {
    // In kB, whatever the size of a page is: /proc/PID/statm counts pages, of 4 to 64 KiB.
    return (1024 * Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`${proc}/${pid}/status`, 'utf8'))?.[1] ?? 0)) / 1e6
  } catch {
    return 0
  }
}

/** The processes that the main thread of a process started, and that have not ended. */
function childrenOf(pid: number | undefined): number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number)
  } catch {
    return []
  }
}

/** Processor time of a process and all its threads, in ms; 0 if it has ended. */
export function processCpuMs(pid: number | undefined): number {
  try {
    // Behind the program's name, which may have spaces: user and system time, in ticks of 10 ms.
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)!.split(' ')
    return 10 * (Number(fields[11]) + Number(fields[12]))
  } catch {
    return 0
  }
}
