// Merges adapters in high demand with their base into one file, which decodes as fast as the base alone. The merged
// adapter is checked first and then gets the adapter's new requests; running requests finish on the unmerged one.

import { existsSync, statSync } from 'node:fs'
import { rm, stat } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { type PeriodicTask, runPeriodically } from '../../../../lib/periodic.ts'
import type { TrainingSetup } from '../../../platform/setup/index.ts'
import { writeWhileFree } from '../../../platform/storage/free-disk.ts'
import type { Artifacts, Hold } from '../../../platform/storage/objects/index.ts'
import type { TunedModels } from '../../models/index.ts'
import type { UsageRecord } from '../../usage/index.ts'
import type { PoolResponse } from '../replicas/pool.ts'
import type { Pools } from '../replicas/pools.ts'
import { LoadFailure, projectorOf, type Target } from '../requests/replica.ts'
import type { CheckMerged } from './check.ts'
import { createDecayingCounter, type DecayingCounter } from './decaying-counter.ts'
import { MergeRejected, mergeFiles } from './merge.ts'
import { plan } from './plan.ts'

/** Demand is about the output tokens of the last five minutes. */
const halfLife_ms = 200_000
const planInterval_ms = 10_000
/** Delay before a failed merge is retried, and how many failures are accepted. */
const retry_ms = 60_000
const failures_max = 3

interface MergedModel {
  target: Target
  file: string
  bytes: number
  /** Requests in progress. */
  inFlight: number
  /** Called when the last request ends. */
  onIdle: () => void
}

/** An adapter with recent requests. */
interface AdapterState {
  id: string
  account_id: string
  target: Target & { adapter: object }
  demand: DecayingCounter
  /** Gets its new requests. */
  merged?: MergedModel
  /** Evicted; removed when its last request ends. */
  draining?: MergedModel
  /** Not merged until the service restarts. */
  refused: boolean
  failures: number
  /** Earliest next merge, in `performance.now()` milliseconds. */
  retryAt: number
  deleted: AbortController
}

interface Options {
  models: Pick<TunedModels, 'find'>
  pools: Pools
  check: CheckMerged
  artifacts: Pick<Artifacts, 'hold'>
  /** The file that an adapter of this base is merged with. */
  mergeBase(base: Target['base']): string
  dataDir: string
  trainingSetup: TrainingSetup
  python: string
  /** Budget for all merged adapters together; 0 disables merging. */
  memory_bytes: number
  /** Demand from which an adapter is merged, in recent output tokens. */
  after_tokens: number
  min_free_mb: number
  log: Logger
}

export class MergedAdapters {
  private readonly options: Options
  private readonly folder: string
  private readonly adapters = new Map<string, AdapterState>()
  /** Size of a merged file, by base file; known after the first merge on that base. */
  private readonly sizes = new Map<string, number>()
  private readonly stopping = new AbortController()
  private merging: Promise<void> | undefined
  private readonly planning: PeriodicTask

  constructor(options: Options) {
    this.options = options
    this.folder = path.join(this.options.dataDir, 'merged')
    this.planning = runPeriodically(
      planInterval_ms,
      async () => {
        for (const [id, entry] of this.adapters)
          if (entry.demand.isExpired() && this.mayMerge(entry)) this.adapters.delete(id)
        this.runPlan()
      },
      { delayed: true },
    )
  }

  /** Runs a request on the merged adapter if there is one that loads, otherwise on the unmerged target. */
  async run(
    account_id: string,
    target: Target,
    attempt: (target: Target) => Promise<PoolResponse>,
  ): Promise<PoolResponse> {
    const { pools, memory_bytes } = this.options
    const { base, adapter } = target
    // Upstreams cannot serve merged adapters.
    if (memory_bytes === 0 || !adapter || !base.gguf || pools.hasUpstream(base.id)) return attempt(target)
    const entry = this.entryOf(account_id, { ...target, adapter })
    entry.demand.touch()
    const { merged } = entry
    if (!merged) return attempt(target)
    merged.inFlight++
    let released = false
    const release = () => {
      if (released) return
      released = true
      if (--merged.inFlight === 0) merged.onIdle()
    }
    try {
      const response = await attempt(merged.target)
      return {
        ...response,
        release() {
          response.release()
          release()
        },
      }
    } catch (error) {
      release()
      if (!(error instanceof LoadFailure)) throw error
      if (entry.merged === merged) {
        this.refuse(entry, error)
        this.evict(entry, 'it cannot be loaded')
      }
      return attempt(target)
    }
  }

  /** Adds a response's output tokens to the adapter's demand. */
  recordUsage({ model_id, completion_tokens }: Pick<UsageRecord, 'model_id' | 'completion_tokens'>): void {
    const entry = this.adapters.get(model_id)
    if (!entry) return
    entry.demand.add(completion_tokens)
    if (!this.merging && this.mayMerge(entry) && entry.demand.value() >= this.options.after_tokens) this.runPlan()
  }

  /** The merged target that serves this model; undefined if the unmerged adapter does. */
  servingTarget(model_id: string): Target | undefined {
    return this.adapters.get(model_id)?.merged?.target
  }

  /** Adapters that are served merged, and adapters whose merge was rejected. */
  counts(): { serving: number; refused: number } {
    const all = [...this.adapters.values()]
    return { serving: all.filter(({ merged }) => merged).length, refused: all.filter(({ refused }) => refused).length }
  }

  /** Serves a deleted model no more. */
  forget(model_id: string): void {
    const entry = this.adapters.get(model_id)
    if (!entry) return
    this.adapters.delete(model_id)
    entry.deleted.abort()
    this.evict(entry, 'its model was deleted')
  }

  /** Deletes merged files of an earlier process. */
  removeLeftovers(): Promise<void> {
    return rm(this.folder, { recursive: true, force: true })
  }

  async close(): Promise<void> {
    await this.planning.close()
    this.stopping.abort()
    await this.merging
  }

  private mayMerge(entry: AdapterState) {
    return (
      this.options.trainingSetup.ready() &&
      !entry.merged &&
      !entry.draining &&
      !entry.refused &&
      performance.now() >= entry.retryAt
    )
  }

  private baseFile(entry: AdapterState) {
    return this.options.mergeBase(entry.target.base)
  }

  private sizeOf(entry: AdapterState) {
    return (
      this.sizes.get(this.baseFile(entry)) ??
      statSync(this.baseFile(entry), { throwIfNoEntry: false })?.size ??
      Number.POSITIVE_INFINITY
    )
  }

  private runPlan(): void {
    const { memory_bytes, after_tokens } = this.options
    if (this.stopping.signal.aborted) return
    const all = [...this.adapters.values()]
    const mergedAdapters = all.flatMap(({ id, demand, merged, draining }) => {
      const model = merged ?? draining
      return model ? [{ id, demand: demand.value(), bytes: model.bytes, draining: !merged }] : []
    })
    const candidates =
      this.merging !== undefined
        ? []
        : all
            .filter((candidate) => this.mayMerge(candidate))
            .map((entry) => ({ id: entry.id, demand: entry.demand.value(), bytes: this.sizeOf(entry) }))
    const next = plan(candidates, mergedAdapters, after_tokens, memory_bytes)
    for (const id of next.evict) this.evict(this.adapters.get(id)!, 'its demand fell, or another adapter has more')
    if (!next.merge) return
    this.merging = this.merge(this.adapters.get(next.merge)!).finally(() => {
      this.merging = undefined
      this.runPlan()
    })
  }

  private async merge(entry: AdapterState): Promise<void> {
    const { models, pools, check, artifacts, dataDir, python, memory_bytes, min_free_mb, log } = this.options
    const { id, account_id, target } = entry
    const file = path.join(this.folder, `${id}.gguf`)
    const mergedTarget: Target = {
      base: { id: `${id}-merged`, gguf: file, projector: projectorOf(target), merged_from: id },
    }
    const started_at = performance.now()
    const signal = AbortSignal.any([this.stopping.signal, entry.deleted.signal])
    let hold: Hold | undefined
    const discard = async () => {
      await pools.unload(mergedTarget)
      await rm(file, { force: true })
      await rm(path.join(this.folder, `${id}.part`), { force: true })
    }
    try {
      const tuned = await models.find(account_id, id)
      if (!tuned) return void this.adapters.delete(id)
      hold = await artifacts.hold([tuned.gguf, this.baseFile(entry)])
      if (!existsSync(tuned.probe)) throw new MergeRejected('it has no probe rows to check the merged adapter with')
      const names: [string, string] = [target.base.id, id]
      await writeWhileFree({ folder: dataDir, min_free_mb, needed_bytes: this.sizeOf(entry), signal }, (signal) =>
        mergeFiles(python, this.baseFile(entry), tuned.gguf, file, names, signal),
      )
      const bytes = (await stat(file)).size
      if (bytes > memory_bytes)
        throw new MergeRejected(`the merged file has ${megabytes(bytes)} MB, more than TUNERY_MERGED_MEMORY_MB allows`)
      const fits = bytes <= this.sizeOf(entry) || bytes <= memory_bytes - this.usedBytes()
      this.sizes.set(this.baseFile(entry), bytes)
      // Larger than estimated: the next plan evicts others first.
      if (!fits) return await discard()
      const result = await check(tuned, target, mergedTarget, signal)
      if (signal.aborted) return await discard()
      entry.merged = { target: mergedTarget, file, bytes, inFlight: 0, onIdle: () => {} }
      const seconds = Number(((performance.now() - started_at) / 1000).toFixed(1))
      log.info({ model: id, seconds, mb: megabytes(bytes), ...result }, 'an adapter is served merged from now on')
    } catch (error) {
      await discard()
      if (signal.aborted) return
      if (error instanceof MergeRejected || ++entry.failures >= failures_max) return this.refuse(entry, error as Error)
      entry.retryAt = performance.now() + retry_ms
      log.warn({ err: error, model: id }, 'an adapter could not be merged; a retry follows in a minute')
    } finally {
      hold?.release()
    }
  }

  private refuse(entry: AdapterState, { message }: Error): void {
    entry.refused = true
    this.options.log.warn(
      { model: entry.id, reason: message },
      'an adapter is served unmerged until the service restarts',
    )
  }

  /** Stops routing requests to the merged adapter; unloads and deletes it when its last request ends. */
  private evict(entry: AdapterState, why: string): void {
    const { pools, log } = this.options
    const { merged } = entry
    if (!merged) return
    delete entry.merged
    entry.draining = merged
    log.info({ model: entry.id, why }, 'a merged adapter is evicted')
    const remove = async () => {
      await pools.unload(merged.target)
      await rm(merged.file, { force: true })
      delete entry.draining
      this.runPlan()
    }
    merged.onIdle = () =>
      void remove().catch((error) =>
        log.error({ err: error, model: entry.id }, 'a merged adapter could not be removed'),
      )
    if (merged.inFlight === 0) merged.onIdle()
  }

  private usedBytes(): number {
    return [...this.adapters.values()].reduce(
      (sum, { merged, draining }) => sum + ((merged ?? draining)?.bytes ?? 0),
      0,
    )
  }

  private entryOf(account_id: string, target: Target & { adapter: { id: string } }): AdapterState {
    const { id } = target.adapter
    const existing = this.adapters.get(id)
    if (existing) return existing
    const created: AdapterState = {
      id,
      account_id,
      target,
      demand: createDecayingCounter(halfLife_ms),
      refused: false,
      failures: 0,
      retryAt: 0,
      deleted: new AbortController(),
    }
    this.adapters.set(id, created)
    return created
  }
}

const megabytes = (bytes: number) => Math.round(bytes / 1e6)
