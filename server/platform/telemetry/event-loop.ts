// Watches the event loop: a piece of work that holds it longer than 200 ms makes every request wait. Reports how long
// it was blocked and what ran, as a thread of its own (`event-loop-thread.ts`) saw the stack meanwhile.
import { Worker } from 'node:worker_threads'
import type { Logger } from 'pino'
import type { ServerMetrics } from './metrics.ts'

const blocked_ms_min = 200
/** Each beat wakes the process, beside the threads that decode. */
const beat_ms = 100
/** After so many beats without work nothing beats: the next request, or work that takes time, starts it again. */
const calmBeats = 50
/** The most processor time, as a share, of a thread without work. */
const calmShare = 0.03
const asleep_ms = 2000
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
let lastRoute = ''
let wake = () => {}

/** Call it when a request comes. */
export function requestComes(route: string): void {
  lastRoute = route
  wake()
}

interface Options {
  metrics: Pick<ServerMetrics, 'loopBlockedSeconds'>
  log: Logger
  /** Tests need less patience. */
  calm_beats?: number
}

/** Watches until the process ends. Returns whether it beats now. */
export function watchEventLoop({ metrics, log, calm_beats = calmBeats }: Options): { isAwake(): boolean } {
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
  /** What came since the last look, where a look was due after `every_ms`. */
  function look(every_ms: number) {
    const now = performance.now()
    const used = process.threadCpuUsage()
    const seen = {
      elapsed_ms: now - beat_at,
      blocked_ms: Math.round(now - beat_at - every_ms),
      cpu_ms: Math.round((used.user + used.system - cpu.user - cpu.system) / 1000),
    }
    beat_at = now
    cpu = used
    return { ...seen, isCalm: seen.cpu_ms <= calmShare * seen.elapsed_ms }
  }
  let calm = 0
  let timer: NodeJS.Timeout
  let isAwake = false
  function beat() {
    // One beat later: the thread has told by then what it saw.
    if (pending) report(pending)
    pending = undefined
    const { blocked_ms, cpu_ms, isCalm } = look(beat_ms)
    if (blocked_ms > blocked_ms_min) pending = { blocked_ms, cpu_ms, route: lastRoute }
    else stack = undefined
    Atomics.add(beats, 0, 1)
    calm = isCalm && !pending ? calm + 1 : 0
    if (calm < calm_beats) return
    isAwake = false
    clearInterval(timer)
    thread.postMessage('sleep')
    timer = setInterval(doze, asleep_ms).unref()
  }
  function doze() {
    const { blocked_ms, cpu_ms, isCalm } = look(asleep_ms)
    if (isCalm && blocked_ms <= blocked_ms_min) return
    if (blocked_ms > blocked_ms_min) pending = { blocked_ms, cpu_ms, route: lastRoute }
    wake()
  }
  wake = () => {
    calm = 0
    if (isAwake) return
    isAwake = true
    clearInterval(timer)
    look(beat_ms)
    thread.postMessage('wake')
    timer = setInterval(beat, beat_ms).unref()
  }
  wake()
  return { isAwake: () => isAwake }
}

const isOwn = ({ file }: Frame) => !file.startsWith('node:') && !file.includes('node_modules') && file !== ''
const frameText = ({ name, file, line }: Frame) => `${name || '(anonymous)'} ${file}:${line}`
