// Keeps the cores' time of trainings at a floor while this machine's engine is busy. A trainer has the lowest priority,
// since a second busy program beside the engine would ruin answers; so the engine is asked to rest between its steps,
// for as much as the trainer lacks.

import { readdirSync, readFileSync } from 'node:fs'
import type { Logger } from 'pino'

const usualTick_ms = 1000
/** What the engine is asked for ends by itself, should nobody ask again. */
const askedTicks = 3
/** How much of what is lacking is asked for more at each tick: quick, and without swinging. */
const gain = 0.5
/**
 * A training is slowed where it got less of the time that it wanted, and is so no more where it gets more, over a
 * window of ticks.
 */
const slowed = { below: 0.6, above: 0.8, ticks: 5 }
/** Serving is what slows it where the engine used as much of the cores' time. */
const serving_least = 0.25

export type SlowedBy = 'serving' | 'other_work'
/** `pace`: the share of the processor time that the training wanted and got. Null where nothing slows it any more. */
export type Slowed = { by: SlowedBy; pace: number } | null

export interface CoreShare {
  /**
   * Looks after the process and those that it starts until what it returns is called. `tell` hears when something
   * begins and ceases to slow it.
   */
  keep(pid: number, tell: (slowed: Slowed) => void): () => void
  /** How many are looked after. */
  count(): number
}

interface Options {
  /** Of the cores' time, 0 to 1. */
  share: number
  cores: number
  enginePid(): number | undefined
  /** Has the engine leave this share of the cores' time free for a while. */
  leaveCores(share: number, for_ms: number): Promise<void>
  log: Logger
  /** How often is looked. */
  tick_ms?: number
}

interface Kept {
  pid: number
  tell: (slowed: Slowed) => void
  before: ReturnType<typeof timesOf>
  window: Pace[]
  slowed: boolean
}

export function createCoreShare({
  share,
  cores,
  enginePid,
  leaveCores,
  log,
  tick_ms = usualTick_ms,
}: Options): CoreShare {
  const all = new Set<Kept>()
  let engine: { pid: number; before: ReturnType<typeof timesOf> } | undefined
  let timer: NodeJS.Timeout | undefined
  let looked_at = 0
  let left = 0

  function engineShare(wall_ms: number): number {
    const pid = enginePid()
    if (pid === undefined) return 0
    const before = engine?.pid === pid ? engine.before : undefined
    engine = { pid, before: timesOf(pid) }
    return before ? readPace(before, engine.before).used_ms / (wall_ms * cores) : 0
  }

  function tick(): void {
    const wall_ms = performance.now() - looked_at
    looked_at = performance.now()
    const engine_share = engineShare(wall_ms)
    let used_ms = 0
    let waited_ms = 0
    for (const each of all) {
      const now = timesOf(each.pid)
      const pace = readPace(each.before, now)
      each.before = now
      used_ms += pace.used_ms
      waited_ms += pace.waited_ms
      judge(each, pace, engine_share >= serving_least ? 'serving' : 'other_work')
    }
    const got = used_ms / (wall_ms * cores)
    const wanted = (used_ms + waited_ms) / (wall_ms * cores)
    left =
      engine_share >= serving_least ? Math.min(share, Math.max(0, left + gain * (Math.min(share, wanted) - got))) : 0
    if (left > 0)
      leaveCores(left, askedTicks * tick_ms).catch((error: Error) =>
        log.debug({ err: error }, 'the engine could not be asked to leave cores'),
      )
  }

  function judge(each: Kept, pace: Pace, by: SlowedBy): void {
    each.window = [...each.window, pace].slice(-slowed.ticks)
    if (each.window.length < slowed.ticks) return
    const sum = (of: (pace: Pace) => number) => each.window.reduce((total, one) => total + of(one), 0)
    const used = sum(({ used_ms }) => used_ms)
    const wanted = used + sum(({ waited_ms }) => waited_ms)
    // One that waits for a disk wants nothing.
    const got = wanted < (slowed.ticks * tick_ms) / 20 ? 1 : used / wanted
    if (each.slowed ? got <= slowed.above : got >= slowed.below) return
    each.slowed = !each.slowed
    each.tell(each.slowed ? { by, pace: got } : null)
  }

  return {
    keep(pid, tell) {
      const kept: Kept = { pid, tell, before: timesOf(pid), window: [], slowed: false }
      all.add(kept)
      if (!timer) {
        looked_at = performance.now()
        timer = setInterval(tick, tick_ms)
      }
      return () => {
        all.delete(kept)
        if (all.size > 0) return
        clearInterval(timer)
        timer = undefined
        left = 0
      }
    },
    count: () => all.size,
  }
}

// How much processor time a process and those that it started got and waited for, by what the kernel says of their
// threads.

/** Of each thread: nanoseconds on a core, and nanoseconds of waiting for one although it could have run. */
export type Times = Map<string, [used: number, waited: number]>
export type Pace = { used_ms: number; waited_ms: number }

/** Empty where the process has ended, or the kernel does not say. */
export function timesOf(pid: number): Times {
  const times: Times = new Map()
  const read = (process: number) => {
    for (const thread of list(`/proc/${process}/task`)) {
      const [used, waited] = text(`/proc/${process}/task/${thread}/schedstat`).split(' ').map(Number)
      if (waited !== undefined) times.set(thread, [used!, waited])
      for (const child of text(`/proc/${process}/task/${thread}/children`).split(' ')) if (child) read(Number(child))
    }
  }
  read(pid)
  return times
}

/** What was added from one look to the next; of threads that ended in between nothing is known. */
export function readPace(before: Times, after: Times): Pace {
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
