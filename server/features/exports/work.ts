import type { Logger } from 'pino'
import type { ExportCheck, ExportStage } from '../../../contract/exports.ts'
import type { Db } from '../../platform/db/open.ts'
import type { NewEvent } from '../../platform/events/event-streams.ts'
import type { AcquireSlot } from '../../platform/queue/account-slots.ts'
import { createLeaseWrites } from '../../platform/queue/lease-writes.ts'
import type { Claim, Queue } from '../../platform/queue/queue.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Projector } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import * as store from './store.ts'

export interface ExportOutput {
  /** The path of a file or a folder. */
  out: string
  /** The projector's file beside a whole GGUF file of a model that reads pictures, or an adapter that has its own. */
  projector?: Projector | undefined
  check: ExportCheck
}

/** The operator's repositories on the hub. */
export interface Push {
  /** Creates a private repository. False if it exists already. */
  create(repository: string, signal: AbortSignal): Promise<boolean>
  /** Uploads the files in one commit. Returns the repository's URL. */
  upload(
    repository: string,
    files: { name: string; path: string }[],
    title: string,
    onProgress: (done: number) => void,
    signal: AbortSignal,
  ): Promise<string>
}

/** The result of a push to the hub: the repository's URL or an error. */
export interface PushResult {
  repository: string
  url: string | null
  error: string | null
}

/** The dependencies of the background work of exports. */
export interface ExportWork {
  db: Db
  queue: Queue
  models: TunedModels
  artifacts: Artifacts
  dataDir: string
  python: string
  converters: string
  threads: number
  min_free_mb: number
  quota: StorageQuota
  /** How long the files of a ready export are kept; 0 keeps them until it is deleted. */
  retention_days: number
  /** True if control tokens in prompts are parsed, by the engine and for the reference answers. */
  parse_control_tokens: boolean
  log: Logger
  /** Undefined without a hub token. */
  push: Push | undefined
  acquireSlot: AcquireSlot
  /** Notifies readers of an export's event stream. */
  notifyEvents(id: string): void
  /** Aborts when the export is deleted. */
  deletionSignal(id: string): AbortSignal
  /** Marks the end of the work on an export in this process. */
  finished(id: string): void
  now(): number
}

/** A permanent failure, with the error code for the export's row. */
export class ExportFailure extends Error {
  readonly code: string
  /** The end of the program's standard error. */
  readonly log: string | undefined
  constructor(code: string, message: string, log?: string) {
    super(message)
    this.code = code
    this.log = log
  }
}

/** A child process ended without a result or an error. */
export class ProcessDied extends Error {
  readonly log: string
  constructor(message: string, log: string) {
    super(message)
    this.log = log
  }
}

/** The rough share of each stage in the total time. */
const stageWeights: Record<ExportStage, number> = {
  reference: 20,
  merge: 15,
  convert: 15,
  quantize: 15,
  check: 20,
  pack: 10,
  push: 20,
}

export type ReportProgress = (stage: ExportStage, done: number) => void

/** Writes reported progress as events and as the export's progress, in order and never decreasing. */
export function createProgress(work: ExportWork, claim: Claim, stages: ExportStage[]) {
  const total = stages.reduce((sum, stage) => sum + stageWeights[stage], 0)
  let progress = 0
  let last: { stage: ExportStage; at: number } | undefined
  const writes = createLeaseWrites(work, claim)

  const report: ReportProgress = (stage, done) => {
    const at = stages.indexOf(stage)
    if (at < 0) return
    const before = stages.slice(0, at).reduce((sum, stage) => sum + stageWeights[stage], 0)
    progress = Math.max(
      progress,
      Math.round((1000 * (before + stageWeights[stage] * Math.min(1, Math.max(0, done)))) / total) / 1000,
    )
    // Always report the start and the end of a stage, the rest at most twice a second.
    if (last?.stage === stage && done < 1 && work.now() - last.at < 500) return
    last = { stage, at: work.now() }
    const message = `${stageLabels[stage]}: ${Math.round(100 * done)} %`
    writes.add(async (trx) => {
      await store.update(trx, claim.ref, { stage, progress })
      const event: NewEvent = { type: 'progress', message, data: { stage, done, progress } }
      await store.events.append(trx, claim.ref, [event], work.now())
    })
  }
  return {
    report,
    /** Aborts with the error of a failed write: the lease was lost, or the database cannot be used. */
    failed: writes.failed,
    /** Resolves when all reports are written; throws the error of a failed write. */
    async flushed() {
      await writes.ended()
      writes.failed.throwIfAborted()
    },
  }
}

const stageLabels: Record<ExportStage, string> = {
  reference: 'Computing the reference answers',
  merge: 'Merging',
  convert: 'Converting',
  quantize: 'Quantizing',
  check: 'Checking the exported file',
  pack: 'Packing',
  push: 'Uploading to the hub',
}
