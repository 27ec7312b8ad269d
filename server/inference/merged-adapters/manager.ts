// Adapters that are asked for much are served from merged copies: base and adapter in one file, which costs no more
// than the base alone. A copy is made aside, checked, and then takes the adapter's new requests; those under way end
// where they are.
import { existsSync, statSync } from 'node:fs'
import { mkdir, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { runToEnd } from '../../../lib/child-process.ts'
import type { ServableModel, TunedModels } from '../../fine-tuning/models/registry.ts'
import { requireFreeDisk } from '../../storage/durable-files.ts'
import type { UsageRecord } from '../../usage/journal.ts'
import type { Served } from '../replicas/pool.ts'
import type { Pools } from '../replicas/pools.ts'
import { LoadFailure, type Target } from '../replicas/replica.ts'
import type { CheckCopy } from './check.ts'
import { createHeat, type Heat } from './decaying-counter.ts'
import { plan } from './plan.ts'

/** Output tokens count for about the last five minutes. */
const halfLife_ms = 200_000
const look_ms = 10_000
/** What failed for a reason that may pass is tried again after this time, so often. */
const again_ms = 60_000
const failures_max = 3

export interface Copies {
  /**
   * Has a request attempted on the copy of its adapter where there is one; on the adapter itself where there is none,
   * or it cannot be loaded.
   */
  run(account_id: string, target: Target, attempt: (target: Target) => Promise<Served>): Promise<Served>
  /** Counts what an answer was. */
  used(record: Pick<UsageRecord, 'model_id' | 'completion_tokens'>): void
  /** What serves this model in place of its adapter; undefined where the adapter does. */
  of(model_id: string): Target | undefined
  /** Adapters that are served from a copy now, and those that turned out not to be worth one. */
  counts(): { serving: number; refused: number }
  /** Removes what an earlier process left. */
  sweep(): Promise<void>
  close(): Promise<void>
}

interface Copy {
  target: Target
  file: string
  bytes: number
  /** Requests that may be using it. */
  users: number
  /** Called when the last of them has ended. */
  idle: () => void
}

/** An adapter that was asked for lately. */
interface Entry {
  id: string
  account_id: string
  target: Target & { adapter: object }
  heat: Heat
  /** What takes its requests. */
  copy?: Copy
  /** A copy that is given up and has not gone yet. */
  leaving?: Copy
  /** It stays as it is until the service is started again. */
  refused: boolean
  failures: number
  /** Not to be tried before, in milliseconds of this process. */
  notBefore: number
  deleted: AbortController
}

interface Options {
  models: TunedModels
  pools: Pools
  check: CheckCopy
  dataDir: string
  python: string
  /** Of all copies together; 0 makes none. */
  memory_bytes: number
  after_tokens: number
  min_free_mb: number
  log: Logger
}

export function createCopies({
  models,
  pools,
  check,
  dataDir,
  python,
  memory_bytes,
  after_tokens,
  min_free_mb,
  log,
}: Options): Copies {
  const folder = path.join(dataDir, 'merged')
  const entries = new Map<string, Entry>()
  /** What a copy on a base takes, known once there was one. */
  const sizes = new Map<string, number>()
  const stopping = new AbortController()
  let underWay: Promise<void> | undefined

  const mayTry = (entry: Entry) =>
    !entry.copy && !entry.leaving && !entry.refused && performance.now() >= entry.notBefore
  const baseFile = (entry: Entry) => entry.target.base.gguf!
  const sizeOf = (entry: Entry) =>
    sizes.get(baseFile(entry)) ?? statSync(baseFile(entry), { throwIfNoEntry: false })?.size ?? Number.POSITIVE_INFINITY

  function next(): void {
    if (stopping.signal.aborted) return
    const all = [...entries.values()]
    const copies = all.flatMap(({ id, heat, copy, leaving }) => {
      const held = copy ?? leaving
      return held ? [{ id, heat: heat.value(), bytes: held.bytes, leaving: !copy }] : []
    })
    const candidates = underWay
      ? []
      : all.filter(mayTry).map((entry) => ({ id: entry.id, heat: entry.heat.value(), bytes: sizeOf(entry) }))
    const { merge, giveUp } = plan(candidates, copies, after_tokens, memory_bytes)
    for (const id of giveUp) leave(entries.get(id)!, 'its adapter has cooled, or another is hotter')
    if (!merge) return
    underWay = make(entries.get(merge)!).finally(() => {
      underWay = undefined
      next()
    })
  }

  async function make(entry: Entry): Promise<void> {
    const { id, account_id, target } = entry
    const file = path.join(folder, `${id}.gguf`)
    const copied: Target = { base: { id: `${id}-merged`, gguf: file } }
    const began = performance.now()
    const stopped = AbortSignal.any([stopping.signal, entry.deleted.signal])
    const discard = async () => {
      await pools.unload(copied)
      await rm(file, { force: true })
      await rm(path.join(folder, `${id}.part`), { force: true })
    }
    try {
      const tuned = await models.find(account_id, id)
      if (!tuned) return void entries.delete(id)
      if (!existsSync(tuned.probe)) throw new NotWorth('it has no rows to check a copy by')
      await requireFreeDisk(dataDir, min_free_mb + Math.ceil(sizeOf(entry) / 1e6))
      await mergeFiles(python, baseFile(entry), tuned.gguf, file, stopped)
      const bytes = (await stat(file)).size
      if (bytes > memory_bytes)
        throw new NotWorth(`its copy has ${megabytes(bytes)} MB, more than TUNERY_MERGED_MEMORY_MB allows for all`)
      const fits = bytes <= sizeOf(entry) || bytes <= memory_bytes - taken()
      sizes.set(baseFile(entry), bytes)
      // Others have to make room first, now that it is known how much.
      if (!fits) return await discard()
      const found = await check(tuned, target, copied, stopped)
      if (stopped.aborted) return await discard()
      entry.copy = { target: copied, file, bytes, users: 0, idle: () => {} }
      const seconds = Number(((performance.now() - began) / 1000).toFixed(1))
      log.info(
        { model: id, seconds, mb: megabytes(bytes), ...found },
        'an adapter is served from a merged copy from now on',
      )
    } catch (error) {
      await discard()
      if (stopped.aborted) return
      if (error instanceof NotWorth || ++entry.failures >= failures_max) return refuse(entry, error as Error)
      entry.notBefore = performance.now() + again_ms
      log.warn({ err: error, model: id }, 'an adapter could not be merged; it is tried again in a minute')
    }
  }

  const taken = () => [...entries.values()].reduce((sum, { copy, leaving }) => sum + ((copy ?? leaving)?.bytes ?? 0), 0)

  function refuse(entry: Entry, { message }: Error): void {
    entry.refused = true
    log.warn(
      { model: entry.id, reason: message },
      'an adapter is served as it is, not merged, until the service is started again',
    )
  }

  /** No new request goes to the copy; when the last has ended, it is freed and removed. */
  function leave(entry: Entry, why: string): void {
    const { copy } = entry
    if (!copy) return
    delete entry.copy
    entry.leaving = copy
    log.info({ model: entry.id, why }, 'a merged copy is given up')
    const go = async () => {
      await pools.unload(copy.target)
      await rm(copy.file, { force: true })
      delete entry.leaving
      next()
    }
    copy.idle = () =>
      void go().catch((error) => log.error({ err: error, model: entry.id }, 'a merged copy could not be removed'))
    if (copy.users === 0) copy.idle()
  }

  function entryOf(account_id: string, target: Target & { adapter: { id: string } }): Entry {
    const { id } = target.adapter
    const known = entries.get(id)
    if (known) return known
    const heat = createHeat(halfLife_ms)
    const fresh: Entry = {
      id,
      account_id,
      target,
      heat,
      refused: false,
      failures: 0,
      notBefore: 0,
      deleted: new AbortController(),
    }
    entries.set(id, fresh)
    return fresh
  }

  models.onDeleted(({ id }: ServableModel) => {
    const entry = entries.get(id)
    if (!entry) return
    entries.delete(id)
    entry.deleted.abort()
    leave(entry, 'its model was deleted')
  })

  const timer = setInterval(() => {
    for (const [id, entry] of entries) if (entry.heat.isSpent() && mayTry(entry)) entries.delete(id)
    next()
  }, look_ms)
  timer.unref()

  return {
    async run(account_id, target, attempt) {
      const { base, adapter } = target
      // Servers elsewhere merge nothing for us.
      if (memory_bytes === 0 || !adapter || !base.gguf || pools.hasUpstream(base.id)) return attempt(target)
      const entry = entryOf(account_id, { ...target, adapter })
      entry.heat.expect()
      const { copy } = entry
      if (!copy) return attempt(target)
      copy.users++
      let released = false
      const release = () => {
        if (released) return
        released = true
        if (--copy.users === 0) copy.idle()
      }
      try {
        const served = await attempt(copy.target)
        return {
          ...served,
          release() {
            served.release()
            release()
          },
        }
      } catch (error) {
        release()
        if (!(error instanceof LoadFailure)) throw error
        if (entry.copy === copy) {
          refuse(entry, error)
          leave(entry, 'it cannot be loaded')
        }
        return attempt(target)
      }
    },

    used({ model_id, completion_tokens }) {
      const entry = entries.get(model_id)
      if (!entry) return
      entry.heat.add(completion_tokens)
      if (!underWay && mayTry(entry) && entry.heat.value() >= after_tokens) next()
    },

    of: (model_id) => entries.get(model_id)?.copy?.target,

    counts() {
      const all = [...entries.values()]
      return { serving: all.filter(({ copy }) => copy).length, refused: all.filter(({ refused }) => refused).length }
    },

    sweep: () => rm(folder, { recursive: true, force: true }),

    async close() {
      clearInterval(timer)
      stopping.abort()
      await underWay
    },
  }
}

const megabytes = (bytes: number) => Math.round(bytes / 1e6)

// Runs the merge of two files: a process of its own, whose memory goes with it and which leaves the cores to answers.

const timeout_ms = 600_000
/** The two files do not make one, and will not the next time. */
const notMergeable = 3

/** Why an adapter stays as it is, for the log: trying again would change nothing. */
export class NotWorth extends Error {}

/**
 * Writes `out` as a whole or not at all. Rejects with NotWorth where the two cannot be merged, with another Error where
 * it may go well the next time.
 */
export async function mergeFiles(
  python: string,
  base: string,
  adapter: string,
  out: string,
  signal: AbortSignal,
): Promise<void> {
  await mkdir(path.dirname(out), { recursive: true, mode: 0o700 })
  const oneThread = { OMP_NUM_THREADS: '1', OPENBLAS_NUM_THREADS: '1', MKL_NUM_THREADS: '1' }
  const args = ['-m', 'trainer.cli.merge', base, adapter, out]
  const inTime = AbortSignal.any([signal, AbortSignal.timeout(timeout_ms)])
  const { status, killed_by, said } = await runToEnd(python, args, { PATH: process.env.PATH, ...oneThread }, inTime)
  if (status === notMergeable) throw new NotWorth(said)
  if (status !== 0) throw new Error(`the merge ended with ${killed_by ?? status}: ${said.split('\n').at(-1)}`)
}
