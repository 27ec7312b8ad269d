// Tinker's API (https://tinker-docs.thinkingmachines.ai): clients train adapters step by step and sample from them.
import path from 'node:path'
import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Bases } from './bases.ts'
import type { Checkpoints } from './checkpoints.ts'
import type { Futures, Requester } from './futures.ts'
import { otherOptimizer } from './losses.ts'
import type { CheckpointPath } from './names.ts'
import { type Runs, runFolder } from './runs.ts'
import type { Samplers } from './samplers.ts'
import type { Sessions } from './sessions.ts'
import * as store from './store.ts'
import type {
  CreateModel,
  FinishSession,
  OptimStep,
  SaveWeights,
  SaveWeightsExternal,
  SaveWeightsForSampler,
} from './wire/requests.ts'

interface Options {
  db: Db
  dataDir: string
  futures: Futures
  sessions: Sessions
  bases: Bases
  runs: Runs
  samplers: Samplers
  checkpoints: Checkpoints
  /** Removes the folder of a session that has ended. */
  removeFiles(session_id: string): Promise<void>
}

export class Tinker {
  readonly futures: Futures
  readonly sessions: Sessions
  readonly bases: Bases
  readonly runs: Runs
  readonly samplers: Samplers
  readonly checkpoints: Checkpoints
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
    this.futures = options.futures
    this.sessions = options.sessions
    this.bases = options.bases
    this.runs = options.runs
    this.samplers = options.samplers
    this.checkpoints = options.checkpoints
  }

  async finishSession(account_id: string, session_id: string, body: FinishSession): Promise<void> {
    if (await this.sessions.finish(account_id, session_id, body)) await this.clear({ id: session_id, account_id })
  }

  /** Ends what a session that has ended leaves. */
  async clear({ id: session_id, account_id }: Pick<store.SessionRow, 'id' | 'account_id'>): Promise<void> {
    // What is at work may write files, and bring its run back into a trainer's memory.
    await this.futures.end(account_id, `${session_id}:`)
    await this.runs.end(session_id)
    await this.samplers.end(session_id)
    await this.options.removeFiles(session_id)
    await store.updateSession(this.options.db, session_id, { has_files: 0 })
  }

  async sessionIds(account_id: string, { limit, offset }: store.OffsetQuery): Promise<string[]> {
    return (await store.listSessions(this.options.db, account_id, { limit, offset })).rows.map(({ id }) => id)
  }

  async session(account_id: string, id: string) {
    const { db } = this.options
    const { user_metadata_json, display_name } = await this.sessions.find(account_id, id)
    return {
      training_run_ids: (await store.runsOfSession(db, id)).map((run) => run.id),
      sampler_ids: (await store.samplersOfSession(db, id)).map((sampler) => sampler.id),
      user_metadata: fromJson(user_metadata_json),
      display_name,
    }
  }

  async createModel(caller: Requester, body: CreateModel) {
    const type = body.optimizer_config?.type ?? 'adamw'
    if (type !== 'adamw') throw otherOptimizer(type)
    return await this.runs.create(caller, body)
  }

  async optimStep(by: Requester, { model_id, seq_id, adam_params, optimizer_params }: z.infer<typeof OptimStep>) {
    if (optimizer_params) throw otherOptimizer(optimizer_params.type)
    if (!adam_params) throw new ApiError('invalid_request', "'adam_params' is missing: the settings of the step.")
    return await this.runs.optimStep(by, model_id, seq_id, adam_params)
  }

  async saveWeights(by: Requester, body: SaveWeights) {
    return await this.runs.files(by, body.model_id, body.seq_id, async ({ row }, use) => {
      const saving = { ...body, name: body.path ?? nextName(row) }
      return {
        kind: 'json',
        fields: { type: 'save_weights', path: await this.checkpoints.saveState(row, use, saving) },
      }
    })
  }

  async saveWeightsForSampler(by: Requester, body: SaveWeightsForSampler) {
    return await this.runs.files(by, body.model_id, body.seq_id, async ({ row }, use) => {
      const type = 'save_weights_for_sampler'
      if (body.path == null && body.sampling_session_seq_id != null) {
        const sampling_session_id = await this.samplers.createOfRun(row, body.sampling_session_seq_id, use)
        return { kind: 'json', fields: { type, path: null, sampling_session_id } }
      }
      const saving = { ...body, name: body.path ?? nextName(row) }
      const path = await this.checkpoints.saveModel(row, use, saving, this.scratch(row))
      return { kind: 'json', fields: { type, path } }
    })
  }

  async saveWeightsExternal(by: Requester, body: SaveWeightsExternal) {
    if (body.age_encryption_recipients && body.age_encryption_recipients.length > 0)
      throw new ApiError(
        'parameter_not_supported',
        'Files are not encrypted here: leave age_encryption_recipients out.',
      )
    return await this.runs.files(by, body.model_id, body.seq_id, async ({ row }, use) => {
      const saving = { ...body, name: body.path ?? nextName(row) }
      const saved = await this.checkpoints.saveExternal(row, use, saving, this.scratch(row))
      return { kind: 'json', fields: { type: 'save_weights_external', ...saved } }
    })
  }

  async info(account_id: string, model_id: string) {
    const { model_name, base_model_id, lora_json } = await this.runs.require(account_id, model_id)
    return {
      type: 'get_info',
      model_data: { arch: null, model_name, tokenizer_id: base_model_id },
      model_id,
      optimizer_config: { type: 'adamw' },
      is_lora: true,
      lora_rank: fromJson(lora_json).rank,
      model_name,
    }
  }

  async listRuns(account_id: string, { limit, offset }: store.OffsetQuery) {
    const { rows, total } = await store.listRuns(this.options.db, account_id, { limit, offset })
    return {
      training_runs: await Promise.all(rows.map((row) => this.toRun(row))),
      cursor: { offset, limit, total_count: total },
    }
  }

  async run(account_id: string, id: string) {
    return await this.toRun(await this.runs.require(account_id, id))
  }

  async weightsInfo(account_id: string, at: CheckpointPath) {
    const { run_id } = await this.checkpoints.find(account_id, at)
    const { model_name, lora_json } = (await store.findRunUnscoped(this.options.db, run_id))!
    const { rank, train_mlp, train_attn } = fromJson(lora_json)
    return {
      base_model: model_name,
      optimizer_config: { type: 'adamw' },
      is_lora: true,
      lora_rank: rank,
      train_unembed: false,
      train_mlp,
      train_attn,
    }
  }

  private async toRun(row: store.RunRow) {
    const checkpoints = await this.checkpoints.ofRun(row.id)
    const last = (kind: string) => checkpoints.findLast(({ checkpoint_type }) => checkpoint_type === kind)
    return runResponse(row, { training: last('training'), sampler: last('sampler') })
  }

  private scratch(row: store.RunRow): string {
    return path.join(this.options.dataDir, runFolder(row), 'scratch')
  }
}

/** The name of a checkpoint that has none: the number of the request that saves it. */
const nextName = ({ next_seq, step }: store.RunRow) => `step-${step}-request-${next_seq}`

const runResponse = (row: store.RunRow, last: { training?: object | undefined; sampler?: object | undefined }) => {
  const { rank } = fromJson(row.lora_json)
  return {
    training_run_id: row.id,
    base_model: row.model_name,
    model_owner: row.account_id,
    is_lora: true,
    corrupted: row.state === 'lost',
    lora_rank: rank,
    last_request_time: isoTime(Number(row.last_request_at)),
    last_checkpoint: last.training ?? null,
    last_sampler_checkpoint: last.sampler ?? null,
    user_metadata: fromJson(row.user_metadata_json),
  }
}
