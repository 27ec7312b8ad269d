// The history of a job: its evaluations and checkpoints, during the run and afterwards, and the rows with the highest
// loss.

import { createReadStream } from 'node:fs'
import path from 'node:path'
import { createInterface } from 'node:readline'
import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type {
  HeldOutRow,
  JobCheckpoint,
  JobEvaluation,
  JobRow,
  RolloutStep,
  StepRollouts,
} from '../../../contract/job-history.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Datasets } from '../datasets/index.ts'
import { modelKey, readResolvedConfig, rowsFile, type TunedModels } from '../models/index.ts'
import * as store from './store.ts'
import { statusOf } from './store.ts'

/** A page whose cursor is a number: the page starts after this step or row. */
type NumberedPage = { limit: number; after?: number | undefined }

export interface JobHistory {
  /** The evaluations of a job, latest step first. */
  evaluations(account_id: string, id: string, query: NumberedPage): Promise<Page<z.input<typeof JobEvaluation>>>
  /** Its checkpoints, latest step first, with the models made of them. */
  checkpoints(account_id: string, id: string, query: NumberedPage): Promise<Page<z.input<typeof JobCheckpoint>>>
  /** The rows of a completed job with the highest loss, highest first. */
  rows(account_id: string, id: string, query: NumberedPage): Promise<Page<z.input<typeof JobRow>>>
  /** The rows that it is evaluated on, in the order of its dataset or of its validation dataset. */
  heldOut(account_id: string, id: string, query: NumberedPage): Promise<Page<z.input<typeof HeldOutRow>>>
  /** The steps whose answers were kept, latest first. */
  rolloutSteps(account_id: string, id: string, query: NumberedPage): Promise<Page<RolloutStep>>
  /** The answers of a step. Throws not_found where none were kept. */
  rollouts(account_id: string, id: string, step: number): Promise<StepRollouts>
}

interface Options {
  db: Db
  datasets: Pick<Datasets, 'rowsOf' | 'listRows'>
  models: Pick<TunedModels, 'madeBy' | 'nameOf' | 'heldOut'>
  artifacts: Artifacts
  /** Throws job_not_found. */
  requireJob(account_id: string, id: string): Promise<store.JobRow>
}

export function createJobHistory({ db, datasets, models, artifacts, requireJob }: Options): JobHistory {
  /** Adds their messages to the rows of a page that fit it. The rows of a deleted dataset are shown without. */
  async function withMessages<T extends { row: number }>(dataset_id: string, { items, has_more }: Page<T>) {
    const numbers = items.map(({ row }) => row)
    const { rows, count = items.length } = (items.length > 0 && (await datasets.rowsOf(dataset_id, numbers))) || {}
    return {
      items: items
        .slice(0, count)
        .map((item) => ({ ...item, ...(rows?.get(item.row) ?? { line: null, messages: null }) })),
      has_more: has_more || count < items.length,
    }
  }

  return {
    async evaluations(account_id, id, { limit, after }) {
      await requireJob(account_id, id)
      const rows = await store.evaluations(db, id, limit, after)
      return pageOf(
        rows.map(({ step, data_json, created_at }) => ({
          step,
          ...fromJson(data_json),
          created_at: isoTime(created_at),
        })),
        limit,
      )
    },

    async checkpoints(account_id, id, { limit, after }) {
      const job = await requireJob(account_id, id)
      const losses = new Map(
        (await store.evaluations(db, id)).map(({ step, data_json }) => [step, fromJson(data_json).validation_loss]),
      )
      // A resumed attempt writes some steps again: the last one counts.
      const steps = new Map<number, z.input<typeof JobCheckpoint>>()
      for (const { step, created_at } of await store.checkpointSteps(db, id))
        steps.set(step, {
          step,
          model: null,
          validation_loss: losses.get(step) ?? null,
          result: false,
          created_at: isoTime(created_at),
        })
      // Models of early versions have no step.
      for (const { id: model, step, validation_loss, created_at } of await models.madeBy(id))
        steps.set(step ?? 0, {
          step: step ?? 0,
          model,
          validation_loss,
          result: model === job.model,
          created_at: isoTime(created_at),
        })
      const rest = [...steps.values()]
        .filter(({ step }) => after === undefined || step < after)
        .sort((a, b) => b.step - a.step)
      return pageOf(rest, limit)
    },

    async rows(account_id, id, { limit, after }) {
      const job = await requireJob(account_id, id)
      if (!job.model)
        throw new ApiError(
          'job_not_completed',
          `The job is ${statusOf(job)}; the losses of its rows are known when it is completed.`,
        )
      if ((await models.nameOf(db, account_id, job.model)) === undefined)
        throw new ApiError('model_not_found', 'The result of this job was deleted, and the losses of its rows with it.')
      const page = await highestLossRows(
        path.join(await artifacts.ensureLocal(modelKey(job.model)), rowsFile),
        limit,
        after,
      )
      return withMessages(job.dataset_id, page)
    },

    async heldOut(account_id, id, { limit, after = 0 }) {
      const job = await requireJob(account_id, id)
      if (job.validation_dataset_id !== null)
        return await datasets.listRows(account_id, job.validation_dataset_id, { limit, after })
      if (!readResolvedConfig(job.resolved_config_json).evaluation_config.validation_split.value)
        return { items: [], has_more: false }
      const all = await models.heldOut(id)
      if (!all)
        throw new ApiError(
          'not_found',
          job.finished_at === null
            ? 'The job has not held out its rows yet: it does when its training begins. Try again then.'
            : 'Which rows this job held out is not known: it ended before its training began, or an earlier version ' +
                'of the service trained it.',
        )
      const rest = all.filter((row) => row > after).map((row) => ({ row }))
      return withMessages(job.dataset_id, pageOf(rest, limit))
    },

    async rolloutSteps(account_id, id, { limit, after }) {
      await requireJob(account_id, id)
      const steps = new Map<number, RolloutStep>()
      for (const { step, split, figures_json } of await store.rolloutSteps(db, id, limit, after))
        steps.set(step, {
          ...(steps.get(step) ?? { step, training: null, validation: null }),
          [split]: fromJson(figures_json),
        })
      return pageOf([...steps.values()], limit)
    },

    async rollouts(account_id, id, step) {
      const { dataset_id, validation_dataset_id } = await requireJob(account_id, id)
      const rollouts: StepRollouts = { step, training: null, validation: null }
      for (const { split, figures_json, groups_json } of await store.rolloutsOf(db, id, step)) {
        const groups = fromJson(groups_json)
        const source = split === 'validation' ? (validation_dataset_id ?? dataset_id) : dataset_id
        // A row may be among them twice.
        const numbers = [...new Set(groups.map(({ row }) => row))]
        const rows = (await datasets.rowsOf(source, numbers))?.rows
        rollouts[split] = {
          ...fromJson(figures_json),
          groups: groups.map(({ row, ...rest }) => ({
            row,
            line: rows?.get(row)?.line ?? null,
            messages: rows?.get(row)?.messages ?? null,
            ...rest,
          })),
        }
      }
      if (rollouts.training || rollouts.validation) return rollouts
      throw new ApiError(
        'not_found',
        `No answers of step ${step} are kept. GET /v1/fine-tuning/jobs/${id}/rollouts lists the steps that have some.`,
      )
    },
  }
}

interface RowLoss {
  row: number
  loss: number
  first_loss: number
  tokens: number
}

/** Reads a page of the row losses file, which the trainer sorted by loss: up to `limit` rows after the row `after`. */
async function highestLossRows(file: string, limit: number, after: number | undefined): Promise<Page<RowLoss>> {
  const items: RowLoss[] = []
  let started = after === undefined
  const input = createReadStream(file)
  try {
    for await (const line of createInterface({ input })) {
      const item = JSON.parse(line) as RowLoss
      if (!started) {
        started = item.row === after
        continue
      }
      if (items.length === limit) return { items, has_more: true }
      items.push(item)
    }
  } catch (error) {
    // Models of early versions have no such file.
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  } finally {
    input.destroy()
  }
  return { items, has_more: false }
}
