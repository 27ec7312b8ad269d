// Import of an adapter that was trained elsewhere: unzip, check against its base, convert, move to the models folder.

import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import type { AdapterFields } from '../../../contract/models.ts'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db } from '../../platform/db/open.ts'
import type { FormFile } from '../../platform/http/multipart.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import { claimDisk, type DiskClaim, storeStream } from '../../platform/storage/incoming-files.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { shapesOf } from '../../platform/storage/safetensors.ts'
import { readUntrusted } from '../../platform/storage/untrusted-files.ts'
import { runDir } from '../../platform/trainer/run-folder.ts'
import { runToResult, runTrainer } from '../../platform/trainer/trainer.ts'
import { type Hub, linearModules } from '../hub/index.ts'
import { checkAdapter } from './adapter-reader/check.ts'
import type { UnpackRequest, UnpackResult } from './adapter-reader/main.ts'
import { Artifact, moveToModels, type StoredModel } from './artifacts.ts'
import { adapterSpec, resolveStartingModel, type StartingModel } from './starting-model.ts'

/** Half an hour: to read what PiSSA or OLoRA took out of a base, PEFT decomposes each of its matrices. */
const timeout_ms = 1_800_000

export interface AdapterImporterOptions {
  db: Db
  hub: Hub
  artifacts: Artifacts
  dataDir: string
  trainingSetup: TrainingSetup
  python: string
  converters: string
  threads: number
  min_free_mb: number
  max_mb: number
  quota: StorageQuota
  log: Logger
}

interface ImportedAdapter extends StoredModel {
  /** `model`: what it adds to its base could be kept in whole weights alone. */
  kind: Artifact['kind']
  name: string | undefined
  description: string | undefined
  startingModel: StartingModel
  gguf_sha256: string
}

export class AdapterImporter {
  private readonly options: AdapterImporterOptions
  // One at a time: each uses disk and loads a base into memory.
  private readonly inTurn = createFairQueue()

  constructor(options: AdapterImporterOptions) {
    this.options = options
  }

  /**
   * Throws adapter_invalid, file_too_large, storage_full, storage_quota_exceeded, model_not_found, model_not_available,
   * training_not_ready. Leaves no files after a failure.
   */
  async importAdapter(
    account_id: string,
    { file, announced_bytes, ended, fields }: FormFile<AdapterFields>,
  ): Promise<ImportedAdapter> {
    const { db, hub, dataDir, trainingSetup, converters, threads, min_free_mb, max_mb, quota } = this.options
    trainingSetup.requireReady()
    const run_dir = runDir(dataDir, newId('imp'), 1)
    const uploader = quota.uploader(db, account_id)
    const announced = Math.min(announced_bytes, max_mb * 1e6)
    let claim: DiskClaim = await claimDisk(dataDir, min_free_mb, announced, uploader)
    try {
      const source = path.join(run_dir, 'upload.zip')
      let bytes = 0
      const { size_bytes } = await storeStream(
        file,
        source,
        (chunk) => {
          bytes += chunk.length
          if (bytes > max_mb * 1e6)
            throw new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, {
              details: { max_mb: max_mb },
            })
        },
        claim,
      )
      const { name, description, base_model_id } = await fields()
      const folder = path.join(run_dir, 'given')
      const unpackNow = async () => {
        claim.release()
        claim = await claimDisk(dataDir, min_free_mb, max_mb * 1e6)
        return this.unpack(source, folder, size_bytes, ended)
      }
      const unpacked = await this.inTurn(account_id, unpackNow, ended)
      claim.release()
      const startingModel = await this.baseOf(account_id, base_model_id, unpacked.config.base_model_name_or_path)
      const shape = checkAdapter(
        unpacked,
        startingModel.base_model_id,
        shapesOf(startingModel.base.hf),
        linearModules(startingModel.base.hf),
      )
      const spec = {
        base: { id: startingModel.base_model_id, path: startingModel.base.hf },
        start: await adapterSpec({
          ...startingModel,
          adapter: { model_id: '', folder, gguf: '', projector: null, experts: false, ...shape },
        }),
        lora: shape,
        // What changes another layer is merged.
        linear_modules: hub.linearModules(startingModel.base),
        experts: hub.mixture(startingModel.base) !== null,
        merge: startingModel.base.merges_adapters,
        threads: threads,
        converters: converters,
      }
      const artifact = await this.inTurn(account_id, () => this.convert(run_dir, spec, ended), ended)
      return {
        ...(await moveToModels(dataDir, artifact, artifact.kind === 'model' ? startingModel.weights_projector : null)),
        kind: artifact.kind,
        name,
        description,
        startingModel,
        gguf_sha256: artifact.gguf_sha256,
      }
    } finally {
      claim.release()
      await rm(path.dirname(run_dir), { recursive: true, force: true })
    }
  }

  private async unpack(source: string, out: string, size_bytes: number, ended: AbortSignal) {
    const request: UnpackRequest = { source, out, max_bytes: this.options.max_mb * 1e6 }
    const read = await readUntrusted('server/features/models/adapter-reader/main.ts', request, size_bytes, ended)
    if ('stopped' in read) throw new ApiError('adapter_invalid', `The file cannot be read: ${read.stopped}`)
    const result = JSON.parse(read.stdout) as UnpackResult
    if ('invalid' in result) throw new ApiError('adapter_invalid', result.invalid)
    return result
  }

  /** The weights for the adapter: the requested ones, or the ones that its configuration names. */
  private async baseOf(
    account_id: string,
    requested_id: string | undefined,
    config_base: unknown,
  ): Promise<StartingModel> {
    const id = requested_id ?? (typeof config_base === 'string' ? config_base : '')
    if (!requested_id && !this.options.hub.has(id))
      throw new ApiError(
        'model_not_found',
        `The adapter names '${id.slice(0, 200)}' as its base, which the hub does not have. ` +
          'Say which one it is as base_model_id.',
      )
    const startingModel = await resolveStartingModel(
      this.options.db,
      this.options.hub,
      this.options.artifacts,
      account_id,
      id,
    )
    if (startingModel.adapter)
      throw new ApiError(
        'adapter_invalid',
        `'${id}' is itself an adapter; base_model_id must be a base or a model with whole weights.`,
      )
    return startingModel
  }

  private async convert(run_dir: string, spec: object, ended: AbortSignal): Promise<Artifact> {
    const run = { run_dir, module: 'trainer.cli.import_adapter', spec, python: this.options.python } as const
    const signal = AbortSignal.any([AbortSignal.timeout(timeout_ms), ended])
    const { result, malformed, failure } = await runToResult(
      (onEvent) => runTrainer({ ...run, signal, onEvent }),
      Artifact,
    )
    ended.throwIfAborted()
    if (result) return result
    if (failure && ['adapter_invalid', 'out_of_memory'].includes(failure.code))
      throw new ApiError('adapter_invalid', failure.message)
    this.options.log.error({ message: failure?.message ?? malformed, run_dir }, 'an adapter could not be converted')
    throw new ApiError('internal_error', 'The adapter could not be converted. The log of the service has the reason.')
  }
}
