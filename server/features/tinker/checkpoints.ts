// Checkpoints of runs: states to resume from, weights to sample from (tuned models of the account), and weights in
// Hugging Face's form to download.
import { mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import { newId } from '../../../lib/ids.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import { recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { hashTree, moveTree, removeUnlessCommitted, syncTree } from '../../platform/storage/durable-files.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { Artifact, ftName, modelKey, moveToModels, servedBaseOf, type TunedModels } from '../models/index.ts'
import {
  type CheckpointKind,
  type CheckpointPath,
  checkpointId,
  checkpointNotFound,
  parsePath,
  requireName,
  tinkerPath,
} from './names.ts'
import { checkpointKey, externalFolder } from './owned-files.ts'
import * as store from './store.ts'

type Call = (command: string, fields: Record<string, unknown>) => Promise<Record<string, unknown>>
/** Runs commands with the run's adapter in the trainer's memory. */
type Use = <T>(run: (call: Call) => Promise<T>) => Promise<T>

interface Saving {
  name: string
  ttl_seconds?: number | null | undefined
  user_metadata?: Record<string, string> | null | undefined
}

/** A checkpoint that a run can begin with. */
export interface TrainingCheckpoint {
  folder: string
  sha256: string
  base_model_id: string
  model_name: string
  lora: { rank: number; seed: number; train_mlp: boolean; train_attn: boolean }
}

interface Options {
  db: Db
  dataDir: string
  min_free_mb: number
  artifacts: Artifacts
  quota: StorageQuota
  models: TunedModels
  now(): number
}

export class Checkpoints {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  /** A checkpoint of the account, or a published one. Throws not_found. */
  async find(account_id: string, at: CheckpointPath): Promise<store.CheckpointRow> {
    const { db, now } = this.options
    const row = await store.findCheckpoint(db, at.run_id, at.kind, at.name)
    const expired = row?.expires_at != null && Number(row.expires_at) <= now()
    if (!row || expired || (row.account_id !== account_id && row.public === 0))
      throw checkpointNotFound(tinkerPath(at.run_id, at.kind, at.name))
    return row
  }

  /** A checkpoint that a run can begin with, its files on this machine. Throws not_found, invalid_request. */
  async requireTraining(account_id: string, tinker_path: string): Promise<TrainingCheckpoint> {
    const { db, artifacts } = this.options
    const at = parsePath(tinker_path)
    if (at.kind !== 'training')
      throw new ApiError(
        'invalid_request',
        `${tinker_path} is not for training, which resumes from what save_state wrote: tinker://RUN/weights/NAME.`,
      )
    const row = await this.find(account_id, at)
    const { base_model_id, model_name, lora_json } = (await store.findRunUnscoped(db, row.run_id))!
    const folder = await artifacts.ensureLocal(checkpointKey(row.id))
    return { folder, sha256: row.sha256, base_model_id, model_name, lora: fromJson(lora_json) }
  }

  /** Writes what a run needs to resume. Returns its path. */
  async saveState(run: store.RunRow, use: Use, saving: Saving & { overwrite: boolean }): Promise<string> {
    const { dataDir, artifacts } = this.options
    const before = await this.requireFree(run, 'training', saving.name, saving.overwrite)
    const id = newId('tnc')
    const folder = path.join(dataDir, checkpointKey(id))
    await mkdir(path.dirname(folder.replace(/\/$/, '')), { recursive: true, mode: 0o700 })
    const insert = async () => {
      const { sha256, size_mb } = await use((call) =>
        call('save_state', { adapter: run.id, path: folder.replace(/\/$/, ''), fields: { step: run.step } }),
      )
      await artifacts.publish(checkpointKey(id))
      const size_bytes = Math.round(Number(size_mb) * 1e6)
      await this.insert(run, 'training', saving, { id, sha256: String(sha256), size_bytes, model_id: null }, before)
    }
    await insert().catch((error) => this.undo(id, error))
    if (before) await artifacts.remove(checkpointKey(before.id))
    return tinkerPath(run.id, 'training', saving.name)
  }

  /** Makes a tuned model of a run's weights. Returns the path by which it is sampled from. */
  async saveModel(run: store.RunRow, use: Use, saving: Saving, scratch: string): Promise<string> {
    const { dataDir, artifacts, models, db, now } = this.options
    await this.requireFree(run, 'sampler', saving.name, false)
    const copy = `${run.id}#result`
    try {
      const artifact = Artifact.parse(
        await use(async (call) => {
          // Saving a result takes the adapter from the trainer: a copy is saved.
          const state = path.join(scratch, 'state')
          await mkdir(scratch, { recursive: true, mode: 0o700 })
          await call('save_state', { adapter: run.id, path: state })
          await call('load_state', { adapter: copy, path: state })
          const fields = await call('save_result', { adapter: copy, path: path.join(scratch, 'result') }).catch(
            async (error) => {
              await call('drop', { adapter: copy }).catch(() => {})
              throw error
            },
          )
          return { step: run.step, validation_loss: null, ...fields }
        }),
      )
      const startingModel = await models.startingModel(run.account_id, run.base_model_id)
      const stored = await moveToModels(dataDir, artifact)
      const created_at = now()
      const model = {
        id: stored.id,
        kind: artifact.kind,
        base_model_id: run.base_model_id,
        weights_model_id: null,
        projector_sha256: null,
        weights_projector_sha256: null,
        created_at,
      }
      const register = async () => {
        const comparison = await models.compareNew(run.account_id, model, servedBaseOf(startingModel))
        await artifacts.publish(modelKey(stored.id))
        const checkpoint = { id: newId('tnc'), sha256: artifact.gguf_sha256, size_bytes: 0, model_id: stored.id }
        const path = tinkerPath(run.id, 'sampler', saving.name)
        await this.insert(run, 'sampler', saving, checkpoint, undefined, async (trx) => {
          const { account_id, base_model_id } = run
          await models.insert(trx, {
            ...model,
            account_id,
            ft_name: ftName({ base_model_id, account_id, model_id: stored.id, suffix: saving.name }),
            name: saving.name,
            description: `Trained by a client of Tinker's API: ${path}`,
            metadata_json: JSON.stringify({ tinker_path: path.slice(0, 512), training_run_id: run.id }),
            parent_model_id: null,
            job_id: null,
            method: 'lora',
            step: run.step,
            validation_loss: null,
            gguf_sha256: artifact.gguf_sha256,
            folder_sha256: stored.folder_sha256,
            comparison_json: comparison && JSON.stringify(comparison),
            trained_with_json: null,
            size_bytes: stored.size_bytes,
          })
        })
        return path
      }
      return await register().catch(async (error) => {
        const isCommitted = () => db.selectFrom('models').select('id').where('id', '=', stored.id).executeTakeFirst()
        await removeUnlessCommitted(isCommitted, () => artifacts.remove(modelKey(stored.id)))
        throw error
      })
    } finally {
      await rm(scratch, { recursive: true, force: true })
    }
  }

  /** Writes a run's weights in Hugging Face's form. Returns their path. */
  async saveExternal(run: store.RunRow, use: Use, saving: Saving, scratch: string) {
    const { dataDir, artifacts } = this.options
    await this.requireFree(run, 'external', saving.name, false)
    const id = newId('tnc')
    try {
      await mkdir(scratch, { recursive: true, mode: 0o700 })
      await use((call) => call('save_weights', { adapter: run.id, path: path.join(scratch, 'out') }))
      const folder = path.join(dataDir, checkpointKey(id), externalFolder)
      await mkdir(path.dirname(folder), { recursive: true, mode: 0o700 })
      await moveTree(path.join(scratch, 'out', 'adapter'), folder)
      const size_bytes = await syncTree(folder)
      const { sha256 } = await hashTree(folder)
      await artifacts.publish(checkpointKey(id))
      await this.insert(run, 'external', saving, { id, sha256, size_bytes, model_id: null }, undefined)
      return { path: tinkerPath(run.id, 'external', saving.name), size_bytes }
    } catch (error) {
      return await this.undo(id, error)
    } finally {
      await rm(scratch, { recursive: true, force: true })
    }
  }

  async ofRun(run_id: string) {
    const rows = await store.checkpointsOfRun(this.options.db, run_id)
    return Promise.all(rows.filter((row) => this.isThere(row)).map((row) => this.toResponse(row)))
  }

  async list(account_id: string, query: store.OffsetQuery) {
    const { rows, total } = await store.listCheckpoints(this.options.db, account_id, query)
    const checkpoints = await Promise.all(rows.filter((row) => this.isThere(row)).map((row) => this.toResponse(row)))
    return { checkpoints, cursor: { ...query, total_count: total } }
  }

  /** Deletes a checkpoint of the caller's account, and the model that it is. */
  async delete(by: Caller, at: CheckpointPath): Promise<void> {
    await this.remove(by, await this.requireOwn(by.account_id, at))
  }

  /** Whether accounts that know its path may use it. */
  async publish(by: Caller, at: CheckpointPath, isPublic: boolean): Promise<void> {
    const { db, now } = this.options
    const row = await this.requireOwn(by.account_id, at)
    await db.transaction().execute(async (trx) => {
      await store.updateCheckpoint(trx, row.id, { public: isPublic ? 1 : 0 })
      const action = isPublic ? 'checkpoint.published' : 'checkpoint.unpublished'
      await recordAuditEntry(trx, by, action, row.id, { path: tinkerPath(at.run_id, at.kind, at.name) }, now())
    })
  }

  async setTtl(account_id: string, at: CheckpointPath, ttl_seconds: number | null): Promise<void> {
    const { db, now } = this.options
    const row = await this.requireOwn(account_id, at)
    await store.updateCheckpoint(db, row.id, { expires_at: expiryOf(ttl_seconds, now()) })
  }

  /** Deletes checkpoints whose time is over. A model that something needs stays, without its path. */
  async removeExpired(): Promise<void> {
    const { db, now } = this.options
    for (const row of await store.expiredCheckpoints(db, now())) {
      const { key_id } = (await store.findRunUnscoped(db, row.run_id))!
      const by = { kind: 'service' as const, user_id: null, key_id, account_id: row.account_id }
      try {
        await this.remove(by, row)
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        await store.removeCheckpoint(db, row.id)
      }
    }
  }

  private async remove(by: Parameters<TunedModels['delete']>[0], row: store.CheckpointRow): Promise<void> {
    const { db, models, artifacts, now } = this.options
    // Its row goes with it; see the listener of model.deleted.
    if (row.model_id !== null) {
      await models.delete(by, row.model_id)
      return
    }
    await db.transaction().execute(async (trx) => {
      await store.removeCheckpoint(trx, row.id)
      await recordAuditEntry(trx, by, 'checkpoint.deleted', row.id, {}, now())
    })
    await artifacts.remove(checkpointKey(row.id))
  }

  private async requireOwn(account_id: string, at: CheckpointPath): Promise<store.CheckpointRow> {
    const row = await this.find(account_id, at)
    if (row.account_id !== account_id) throw checkpointNotFound(tinkerPath(at.run_id, at.kind, at.name))
    return row
  }

  /** The checkpoint that has the name already, if it may be overwritten. Throws invalid_request if not. */
  private async requireFree(run: store.RunRow, kind: CheckpointKind, name: string, overwrite: boolean) {
    const { db, dataDir, min_free_mb, quota } = this.options
    requireName(name)
    await requireFreeDisk(dataDir, min_free_mb)
    await quota.require(db, run.account_id, 0)
    const existing = await store.findCheckpoint(db, run.id, kind, name)
    if (existing && !overwrite)
      throw new ApiError(
        'name_taken',
        `This run has a checkpoint '${checkpointId(kind, name)}' already. Take another name` +
          (kind === 'training' ? ', or set overwrite.' : ', or delete it first.'),
      )
    return existing
  }

  private async insert(
    run: store.RunRow,
    kind: CheckpointKind,
    { name, ttl_seconds, user_metadata }: Saving,
    files: { id: string; sha256: string; size_bytes: number; model_id: string | null },
    before: store.CheckpointRow | undefined,
    also: (trx: Parameters<typeof store.insertCheckpoint>[0]) => Promise<void> = async () => {},
  ): Promise<void> {
    const { db, quota, now } = this.options
    await db.transaction().execute(async (trx) => {
      if (before) await store.removeCheckpoint(trx, before.id)
      await also(trx)
      await store.insertCheckpoint(trx, {
        ...files,
        run_id: run.id,
        account_id: run.account_id,
        kind,
        name,
        public: 0,
        user_metadata_json: user_metadata ? JSON.stringify(user_metadata) : null,
        expires_at: expiryOf(ttl_seconds ?? null, now()),
        created_at: now(),
      })
      await quota.require(trx, run.account_id, 0)
    })
  }

  private async undo(id: string, error: unknown): Promise<never> {
    const { db, artifacts } = this.options
    await removeUnlessCommitted(
      () => store.findCheckpointUnscoped(db, id),
      () => artifacts.remove(checkpointKey(id)),
    )
    throw error
  }

  private isThere({ expires_at }: store.CheckpointRow): boolean {
    return expires_at === null || Number(expires_at) > this.options.now()
  }

  private async toResponse(row: store.CheckpointRow) {
    const { run_id, kind, name, model_id, created_at, expires_at } = row
    const size_bytes =
      model_id === null
        ? Number(row.size_bytes)
        : (
            await this.options.db
              .selectFrom('models')
              .select('size_bytes')
              .where('id', '=', model_id)
              .executeTakeFirst()
          )?.size_bytes
    return {
      checkpoint_id: checkpointId(kind, name),
      checkpoint_type: kind,
      time: isoTime(Number(created_at)),
      tinker_path: tinkerPath(run_id, kind, name),
      size_bytes: Number(size_bytes ?? 0),
      public: row.public === 1,
      user_metadata: fromJson(row.user_metadata_json),
      expires_at: expires_at === null ? null : isoTime(Number(expires_at)),
      ...(model_id !== null && { model_id }),
    }
  }
}

const expiryOf = (ttl_seconds: number | null, now: number) => (ttl_seconds === null ? null : now + ttl_seconds * 1000)
