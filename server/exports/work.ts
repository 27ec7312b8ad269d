import type { Logger } from 'pino'
import type { ExportStage } from '../../contract/exports.ts'
import type { Db } from '../db/open.ts'
import type { TunedModels } from '../fine-tuning/models/registry.ts'
import type { Place } from '../queue/account-slots.ts'
import { type Claim, type Queue, underClaim } from '../queue/queue.ts'
import type { Push } from './push.ts'
import * as store from './store.ts'

/** What the background work of exports works with. */
export interface ExportWork {
  db: Db
  queue: Queue
  models: TunedModels
  dataDir: string
  python: string
  converters: string
  threads: number
  min_free_mb: number
  /** How long the files of one that is ready are kept; 0: until it is deleted. */
  kept_days: number
  /** Whether the trainer's answers are to prompts whose control texts are parsed, as the engine parses them. */
  parse_control_tokens: boolean
  log: Logger
  /** Undefined where there is no token for it. */
  push: Push | undefined
  place: Place
  /** Tells readers of an export's events that there are more. */
  changed(id: string): void
  /** Aborts when it was deleted. */
  deleted(id: string): AbortSignal
  /** The work on it here has ended. */
  forget(id: string): void
  now(): number
}

/** What ends an export, with the code that its record gets. */
export class ExportFailure extends Error {
  readonly code: string
  /** What the program said on standard error, at the end. */
  readonly log: string | undefined
  constructor(code: string, message: string, log?: string) {
    super(message)
    this.code = code
    this.log = log
  }
}

/** A program that worked on it ended without a word. */
export class Died extends Error {
  readonly log: string
  constructor(message: string, log: string) {
    super(message)
    this.log = log
  }
}

/** How much of the whole a stage is, roughly, where each has its turn. */
const shares: Record<ExportStage, number> = {
  reference: 20,
  merge: 15,
  convert: 15,
  quantize: 15,
  check: 20,
  pack: 10,
  push: 20,
}

export type Told = (stage: ExportStage, done: number) => void

/** Turns what stages tell into events and the export's progress, which never goes back, one write after the other. */
export function createProgress(work: ExportWork, claim: Claim, stages: ExportStage[]) {
  const whole = stages.reduce((sum, stage) => sum + shares[stage], 0)
  let progress = 0
  let last: { stage: ExportStage; at: number } | undefined
  let writes = Promise.resolve()
  let broken: unknown
  const failed = new AbortController()

  const write = (text: string, stage: ExportStage, done: number) => {
    writes = writes.then(async () => {
      if (broken) return
      try {
        const time = work.now()
        await underClaim(work, claim, async (trx) => {
          await store.update(trx, claim.ref, { stage, progress })
          await store.log.append(
            trx,
            claim.ref,
            [{ type: 'progress', message: text, data: { stage, done, progress } }],
            time,
          )
        })
      } catch (error) {
        broken = error
        failed.abort()
      }
    })
  }

  const told: Told = (stage, done) => {
    const at = stages.indexOf(stage)
    if (at < 0) return
    const before = stages.slice(0, at).reduce((sum, each) => sum + shares[each], 0)
    progress = Math.max(
      progress,
      Math.round((1000 * (before + shares[stage] * Math.min(1, Math.max(0, done)))) / whole) / 1000,
    )
    // A beginning is always told, the rest twice a second at most.
    if (last?.stage === stage && done < 1 && work.now() - last.at < 500) return
    last = { stage, at: work.now() }
    write(`${sayings[stage]}: ${Math.round(100 * done)} %`, stage, done)
  }
  return {
    told,
    /** Aborts when nothing can be written any more: the work is another's, or the database cannot be used. */
    failed: failed.signal,
    /** Resolves when all that was told is written; throws why it is not. */
    async written() {
      await writes
      if (broken) throw broken
    },
  }
}

const sayings: Record<ExportStage, string> = {
  reference: 'Asking the trainer’s own model',
  merge: 'Merging',
  convert: 'Converting',
  quantize: 'Quantizing',
  check: 'Asking the exported file',
  pack: 'Packing',
  push: 'Sending to the hub',
}
