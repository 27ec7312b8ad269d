// Guarantees training a minimum share of CPU time while the engine on this machine is busy. Trainers run at a
// low priority, as a second busy program would slow every answer. So this asks the engine to pause between decode steps
// for the time that the trainers lack.

import { readdirSync, readFileSync } from 'node:fs'
import type { Logger } from 'pino'
import { type PeriodicTask, runPeriodically } from '../../../lib/periodic.ts'

const default_tick_ms = 1000
/** The engine yields for this many ticks per request, so that it stops yielding by itself. */
const yieldTicks = 3
/** Gain of the controller, per tick: the part of the missing share that is added. Fast, but without oscillation. */
const gain = 0.5
/**
 * A trainer counts as slowed when it gets less than `below` of the CPU time that it wants, over a window of `ticks`,
 * and as recovered when it gets more than `above`.
 */
const slowdownLimits = { below: 0.6, above: 0.8, ticks: 5 }
/** Serving is the cause when the engine uses at least this share of all cores. */
const min_serving_share = 0.25

type SlowdownCause = 'serving' | 'other_work'
/** `cpu_share`: CPU time that the trainer got, as a share of what it wanted. Null: it is no longer slowed. */
export type Slowdown = { by: SlowdownCause; cpu_share: number } | null

export interface CoreShare {
  /**
   * Watches the trainer process and its children until the returned function is called. Calls `onChange` when something
   * starts or stops slowing it.
   */
  watch(pid: number, onChange: (slowdown: Slowdown) => void): () => void
  /** How many trainers are watched. */
  count(): number
}

interface Options {
  /** The guaranteed share of all cores' time, 0 to 1. */
  share: number
  cores: number
  enginePid(): number | undefined
  /** Asks the engine to leave this share of all cores' time free for `for_ms`. */
  yieldCores(share: number, for_ms: number): Promise<void>
  log: Logger
  tick_ms?: number
  now?: () => number
  /** The folder of process statistics: a test writes its own. */
  proc?: string
}

interface WatchedTrainer {
  pid: number
  onChange: (slowdown: Slowdown) => void
  last: ReturnType<typeof threadTimes>
  window: CpuTime[]
  slowed: boolean
}

export function createCoreShare({
  share,
  cores,
  enginePid,
  yieldCores,
  log,
  tick_ms = default_tick_ms,
  now = () => performance.now(),
  proc = '/proc',
}: Options): CoreShare {
  const trainers = new Set<WatchedTrainer>()
  let engine: { pid: number; last: ReturnType<typeof threadTimes> } | undefined
  let ticking: PeriodicTask | undefined
  let ticked_at = 0
  let yielded_share = 0

  function engineShare(wall_ms: number): number {
    const pid = enginePid()
    if (pid === undefined) return 0
    const before = engine?.pid === pid ? engine.last : undefined
    engine = { pid, last: threadTimes(pid, proc) }
    return before ? cpuTimeBetween(before, engine.last).used_ms / (wall_ms * cores) : 0
  }

  function tick(): void {
    const wall_ms = now() - ticked_at
    ticked_at = now()
    const engine_share = engineShare(wall_ms)
    let used_ms = 0
    let waited_ms = 0
    for (const trainer of trainers) {
      const times = threadTimes(trainer.pid, proc)
      const cpu = cpuTimeBetween(trainer.last, times)
      trainer.last = times
      used_ms += cpu.used_ms
      waited_ms += cpu.waited_ms
      updateSlowdown(trainer, cpu, engine_share >= min_serving_share ? 'serving' : 'other_work')
    }
    const got = used_ms / (wall_ms * cores)
    const demand = (used_ms + waited_ms) / (wall_ms * cores)
    yielded_share =
      engine_share >= min_serving_share
        ? Math.min(share, Math.max(0, yielded_share + gain * (Math.min(share, demand) - got)))
        : 0
    if (yielded_share > 0)
      yieldCores(yielded_share, yieldTicks * tick_ms).catch((error: Error) =>
        log.debug({ err: error }, 'the request to the engine to yield CPU time failed'),
      )
  }

  function updateSlowdown(trainer: WatchedTrainer, cpu: CpuTime, by: SlowdownCause): void {
    trainer.window = [...trainer.window, cpu].slice(-slowdownLimits.ticks)
    if (trainer.window.length < slowdownLimits.ticks) return
    const sum = (of: (cpu: CpuTime) => number) => trainer.window.reduce((total, one) => total + of(one), 0)
    const used = sum(({ used_ms }) => used_ms)
    const demand = used + sum(({ waited_ms }) => waited_ms)
    // A trainer that waits for the disk wants no CPU time.
    const got = demand < (slowdownLimits.ticks * tick_ms) / 20 ? 1 : used / demand
    if (trainer.slowed ? got <= slowdownLimits.above : got >= slowdownLimits.below) return
    trainer.slowed = !trainer.slowed
    trainer.onChange(trainer.slowed ? { by, cpu_share: got } : null)
  }

  return {
    watch(pid, onChange) {
      const trainer: WatchedTrainer = { pid, onChange, last: threadTimes(pid, proc), window: [], slowed: false }
      trainers.add(trainer)
      if (!ticking) {
        ticked_at = now()
        ticking = runPeriodically(tick_ms, async () => tick(), { delayed: true })
      }
      return () => {
        trainers.delete(trainer)
        if (trainers.size > 0) return
        void ticking?.close()
        ticking = undefined
        yielded_share = 0
      }
    },
    count: () => trainers.size,
  }
}

// CPU time that a process and its children used and waited for, read from /proc/PID/task/TID/schedstat.

/** By thread: nanoseconds on a core, and nanoseconds in the run queue waiting for one. */
type ThreadTimes = Map<string, [used: number, waited: number]>
type CpuTime = { used_ms: number; waited_ms: number }

/** Empty if the process has ended or the kernel has no schedstat. */
function threadTimes(pid: number, proc = '/proc'): ThreadTimes {
  const times: ThreadTimes = new Map()
  const read = (process: number) => {
    for (const thread of list(`${proc}/${process}/task`)) {
      const [used, waited] = text(`${proc}/${process}/task/${thread}/schedstat`).split(' ').map(Number)
      if (waited !== undefined) times.set(thread, [used!, waited])
      for (const child of text(`${proc}/${process}/task/${thread}/children`).split(' ')) if (child) read(Number(child))
    }
  }
  read(pid)
  return times
}

/** CPU time between two readings. Threads that ended in between are not counted. */
function cpuTimeBetween(before: ThreadTimes, after: ThreadTimes): CpuTime {
  let used = 0
  let waited = 0
  for (const [thread, [used_now, waited_now]] of after) {
    const [used_then, waited_then] = before.get(thread) ?? [0, 0]
    used += used_now - used_then
    waited += waited_now - waited_then
  }
  return { used_ms: used / 1e6, waited_ms: waited / 1e6 }
}

const list = (folder: string) => attempt(() => readdirSync(folder), [])
const text = (file: string) => attempt(() => readFileSync(file, 'utf8'), '').trim()

function attempt<T>(read: () => T, otherwise: T): T {
  try {
    return read()
  } catch {
    return otherwise
  }
}
