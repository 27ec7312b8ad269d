// Watches the event loop: a piece of work that holds it longer than 200 ms makes every request wait. Reports how long
// it was blocked and what ran, as a thread of its own (`event-loop-thread.ts`) saw the stack meanwhile.
import { Worker } from 'node:worker_threads'
import type { Logger } from 'pino'
import type { ServerMetrics } from './metrics.ts'

const blocked_ms_min = 200
/** Each beat wakes the process, beside the threads that decode. */
const beat_ms = 100
/** Time between lines of the log that name no stack. The thread bounds those that do. */
const log_ms = 5000
/** Frames of a stack in the log. */
const framesMax = 12

export interface Frame {
  name: string
  /** A path in the checkout, or the URL of a module of Node. */
  file: string
  line: number
}

/** The route of the request that came last: in most cases the one that blocks. */
export const lastRequest = { route: '' }

interface Options {
  metrics: Pick<ServerMetrics, 'loopBlockedSeconds'>
  log: Logger
}

/** Watches until the process ends. */
export function watchEventLoop({ metrics, log }: Options): void {
  const beats = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT))
  let stack: Frame[] | undefined
  const thread = new Worker(new URL('./event-loop-thread.ts', import.meta.url), {
    workerData: { beats, blocked_ms_min },
  })
  thread.on('message', (frames: Frame[]) => {
    stack = frames
  })
  thread.on('error', (error) => log.warn({ err: error }, 'what blocks the event loop is not seen any more'))
  thread.unref()

  let beat_at = performance.now()
  let cpu = process.threadCpuUsage()
  let logged_at = Number.NEGATIVE_INFINITY
  let unlogged = 0
  let pending: { blocked_ms: number; cpu_ms: number; route: string } | undefined
  function report({ blocked_ms, cpu_ms, route }: NonNullable<typeof pending>) {
    // A thread that did not run waited for the processor, or for a file.
    const thread = cpu_ms >= blocked_ms / 2 ? 'running' : 'waiting'
    const where = stack?.find(isOwn)?.file ?? (stack ? 'node' : 'unknown')
    metrics.loopBlockedSeconds.observe({ where, thread }, blocked_ms / 1000)
    unlogged++
    if (stack || beat_at - logged_at > log_ms) {
      log.warn(
        { blocked_ms, cpu_ms, thread, where, stack: stack?.slice(0, framesMax).map(frameText), route, times: unlogged },
        'the event loop was blocked',
      )
      logged_at = beat_at
      unlogged = 0
    }
    stack = undefined
  }
  setInterval(() => {
    const now = performance.now()
    const used = process.threadCpuUsage()
    // One beat later: the thread has told by then what it saw.
    if (pending) report(pending)
    pending = undefined
    const blocked_ms = Math.round(now - beat_at - beat_ms)
    const cpu_ms = Math.round((used.user + used.system - cpu.user - cpu.system) / 1000)
    if (blocked_ms > blocked_ms_min) pending = { blocked_ms, cpu_ms, route: lastRequest.route }
    else stack = undefined
    beat_at = now
    cpu = used
    Atomics.add(beats, 0, 1)
  }, beat_ms).unref()
}

const isOwn = ({ file }: Frame) => !file.startsWith('node:') && !file.includes('node_modules') && file !== ''
const frameText = ({ name, file, line }: Frame) => `${name || '(anonymous)'} ${file}:${line}`
