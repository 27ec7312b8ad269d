// Queue estimates: when jobs start and end. Accounts take turns, and a job pauses after its time slice while others
// wait: the turns are played through with the remaining durations.

import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import type { PendingEntry } from '../../platform/queue/turns.ts'
import { recipeOf } from '../models/index.ts'
import * as store from './store.ts'

export interface QueueEstimate {
  /** 1 is the next to start; null: it runs. */
  queue_position: number | null
  /** Unix ms; null if it runs, or the duration of a job before it is unknown. */
  estimated_start: number | null
  /** Unix ms, with the turns of others; null if unknown. */
  estimated_end: number | null
}

export interface Turns {
  /** Jobs that train at once. */
  at_once: number
  /** The time slice; 0: a job trains to its end. */
  slice_ms: number
}

/** Looks at accounts before the rest counts as unknown: some 20 ms of this thread. */
const looks_max = 50_000

export type Waiting = Pick<PendingEntry, 'id' | 'ref' | 'account_id' | 'run_at' | 'turn_until'>
export interface Running extends Waiting {
  /** Remaining time (ms); infinite if unknown. */
  left: number
  turn_ends: number
}

/** Estimates for the queued and running jobs of all accounts, by job id. */
export async function estimateQueue(
  db: Db,
  queue: Pick<Queue, 'pending'>,
  kind: string,
  now: number,
  turns: Turns,
): Promise<Map<string, QueueEstimate>> {
  const jobs = new Map((await store.liveJobs(db)).map((job) => [job.id, job]))
  const { entries, served } = await queue.pending(kind)
  const completed = new Map<string, Completed[]>()
  for (const base of new Set([...jobs.values()].map(({ base_model_id }) => base_model_id)))
    completed.set(base, (await store.completedJobs(db, base)).map(readCompleted))
  const remaining = (job: store.LiveJob) => durationOf(job, completed.get(job.base_model_id)!)
  const running: Running[] = []
  const entryOf = new Map(entries.map((entry) => [entry.ref, entry]))
  for (const job of jobs.values()) {
    if (job.status !== 'running') continue
    const { id, account_id, estimated_completion, running_since } = job
    const end = estimated_completion ?? (running_since ?? now) + remaining(job)
    const entry = entryOf.get(id)
    const left = Math.max(0, end - now)
    const turn_ends = entry?.turn_until ?? now + turns.slice_ms
    running.push({ id: entry?.id ?? 0, ref: id, account_id, run_at: 0, turn_until: 0, left, turn_ends })
  }
  const waiting = entries.filter(({ ref }) => jobs.get(ref)?.status === 'queued')
  return playTurns(running, waiting, (ref) => remaining(jobs.get(ref)!), served, now, turns)
}

/**
 * Plays the turns through, by the rules of the queue (server/platform/queue/turns.ts). `waiting` is in the order of
 * places; `durationOf`: its remaining time (ms), infinite if unknown. A job of unknown duration trains as long as
 * nobody else has a turn; whatever waits for its end has an unknown start.
 */
export function playTurns(
  running: Running[],
  waiting: readonly Waiting[],
  durationOf: (ref: string) => number,
  lastServed: ReadonlyMap<string, number>,
  now: number,
  { at_once, slice_ms }: Turns,
): Map<string, QueueEstimate> {
  const estimates = new Map<string, QueueEstimate>()
  const begin = (ref: string, queue_position: number | null, estimated_start: number | null) =>
    estimates.set(ref, { queue_position, estimated_start, estimated_end: null })
  for (const { ref } of running) begin(ref, null, null)
  const places = new Map(waiting.map(({ ref }, place) => [ref, place]))
  const queues = new Map<string, Waiting[]>()
  for (const entry of waiting) {
    const entries = queues.get(entry.account_id)
    if (entries) entries.push(entry)
    else queues.set(entry.account_id, [entry])
  }
  /** What jobs that passed their turn have left. */
  const left = new Map<string, number>()
  const later = waiting.map(({ run_at }) => run_at).filter((run_at) => run_at > now)
  const served = new Map(lastServed)
  let time = now
  let started = 0
  /** Whether `time` is no longer known, as a job of unknown duration had to end. */
  let unknown = false

  const countRunning = (account: string) => running.filter(({ account_id }) => account_id === account).length
  const firstDue = (entries: Waiting[]) => entries.find(({ run_at }) => run_at <= time)

  function next(): Waiting | undefined {
    let best: { entry: Waiting; order: number[] } | undefined
    for (const [account, entries] of queues) {
      const entry = firstDue(entries)
      if (!entry) continue
      const keepsTurn = entry.turn_until > time ? 0 : 1
      const order = [keepsTurn, countRunning(account), served.get(account) ?? 0, entry.run_at, entry.id]
      if (!best || isBefore(order, best.order)) best = { entry, order }
    }
    return best?.entry
  }
  const idleAccountWaits = (account: string) => {
    for (const [other, entries] of queues)
      if (other !== account && firstDue(entries) && countRunning(other) === 0) return true
    return false
  }

  function start(entry: Waiting): void {
    const entries = queues.get(entry.account_id)!
    entries.splice(entries.indexOf(entry), 1)
    if (entries.length === 0) queues.delete(entry.account_id)
    // Claims at one moment are one after the other.
    served.set(entry.account_id, time + started / 1e6)
    if (!estimates.has(entry.ref)) begin(entry.ref, ++started, unknown ? null : time)
    const turn_ends = entry.turn_until > time ? entry.turn_until : time + slice_ms
    running.push({ ...entry, left: left.get(entry.ref) ?? durationOf(entry.ref), turn_ends })
  }

  /** A job that passes its turn keeps its place, which is before those of its account that have not begun. */
  function pass({ turn_ends: _, left: rest, ...entry }: Running): void {
    left.set(entry.ref, rest)
    const passed = { ...entry, turn_until: 0, run_at: time }
    const entries = queues.get(entry.account_id)
    if (!entries) return void queues.set(entry.account_id, [passed])
    const place = entries.findIndex(({ ref }) => (places.get(ref) ?? -1) > (places.get(entry.ref) ?? -1))
    entries.splice(place < 0 ? entries.length : place, 0, passed)
  }

  for (let looks = 0; looks < looks_max && (queues.size > 0 || running.length > 0); looks += 1 + queues.size) {
    const entry = running.length < Math.max(1, at_once) ? next() : undefined
    if (entry) {
      start(entry)
      continue
    }
    const ends = running.map((run) => time + run.left)
    const turnEnds = running.map((run) =>
      slice_ms > 0 && idleAccountWaits(run.account_id) ? Math.max(time, run.turn_ends) : Number.POSITIVE_INFINITY,
    )
    const until = Math.min(...ends, ...turnEnds, ...later.filter((run_at) => run_at > time))
    if (until === Number.POSITIVE_INFINITY) {
      // Only a job of unknown duration is left to train: what follows it has a place, and no time.
      if (queues.size === 0) break
      unknown = true
      running.shift()
      continue
    }
    for (const run of running) run.left -= until - time
    time = until
    for (const [index, run] of [...running].entries()) {
      const isOver = ends[index]! <= time
      if (!isOver && !(turnEnds[index]! <= time && idleAccountWaits(run.account_id))) continue
      running.splice(running.indexOf(run), 1)
      if (!isOver) pass(run)
      else if (!unknown) estimates.get(run.ref)!.estimated_end = time
    }
  }
  const rest = [...queues.values()].flatMap((entries) => entries.map(({ ref, id }, turn) => ({ ref, id, turn })))
  rest.sort((a, b) => a.turn - b.turn || a.id - b.id)
  for (const { ref } of rest) if (!estimates.has(ref)) begin(ref, ++started, null)
  return estimates
}

function isBefore(a: number[], b: number[]): boolean {
  const index = a.findIndex((value, at) => value !== b[at])
  return index >= 0 && a[index]! < b[index]!
}

interface Completed {
  recipe: ReturnType<typeof recipeOf>
  ran_ms: number
  trained_ms: number
}

const readCompleted = (job: store.CompletedJob): Completed => ({
  recipe: recipeOf(job),
  ran_ms: job.ran_ms,
  trained_ms: (fromJson(job.metrics_json).train_seconds ?? 0) * 1000,
})

/**
 * Remaining duration of a job in ms, from the last completed job with its base and method. Training time scales with
 * the data; the rest is constant. Infinite without such a job.
 */
function durationOf(job: Pick<store.JobRow, 'recipe_json' | 'progress'>, completed: Completed[]): number {
  const recipe = recipeOf(job)
  const volume = trainingVolume(recipe)
  const last = completed.find(
    (entry) =>
      entry.recipe.method === recipe.method &&
      entry.recipe.objective === recipe.objective &&
      trainingVolume(entry.recipe) &&
      entry.trained_ms > 0,
  )
  if (!last || !volume) return Number.POSITIVE_INFINITY
  const train_ms = last.trained_ms * (volume / trainingVolume(last.recipe)!)
  return Math.round(Math.max(0, last.ran_ms - last.trained_ms) + train_ms * (1 - job.progress))
}

/** Megabytes of data times epochs. */
const trainingVolume = ({ epochs, dataset }: { epochs: number; dataset: { size_mb: number | null } }) =>
  dataset.size_mb && dataset.size_mb * epochs
