import { ApiError } from '../../../contract/errors.ts'
import type { CreateExport, Export, ExportEvent, ExportQuery } from '../../../contract/exports.ts'
import { newId } from '../../../lib/ids.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import type { Notifications } from '../../platform/cluster/notifications.ts'
import type { Servers } from '../../platform/cluster/servers.ts'
import type { Db, Queryable } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { type ChangeNotifier, createChangeNotifier, follow, statusEvent } from '../../platform/events/event-streams.ts'
import type { SendableFile } from '../../platform/http/send-file.ts'
import { assertBacklogLimit, type Queue } from '../../platform/queue/queue.ts'
import { type AbortSignals, createAbortSignals } from '../../platform/queue/worker.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'
import type { Reserve } from '../../platform/storage/disk-reserve.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Deployments } from '../deployments/index.ts'
import type { TunedModels } from '../models/index.ts'
import { resolveOptions } from './choice.ts'
import * as store from './store.ts'
import { exportDir, exportKey, filesOf, toResponse } from './store.ts'

export const queueKind = 'export'

interface Options {
  db: Db
  queue: Queue
  notifications: Notifications
  servers: Servers
  models: TunedModels
  deployments: Deployments
  trainingSetup: TrainingSetup
  reserve: Reserve
  artifacts: Artifacts
  orphans: Orphans
  dataDir: string
  min_free_mb: number
  quota: StorageQuota
  /** The backlog limit: queued exports per account. */
  max_waiting: number
  /** True if the operator has set a hub token for uploads. */
  canPush: boolean
  keepalive_ms?: number
  now?: () => number
  onExpiryFailure(error: unknown): void
}

const expiry_ms = 60_000

export class Exports {
  private readonly options: Required<Pick<Options, 'keepalive_ms' | 'now'>> & Options
  private readonly notifier: ChangeNotifier
  private readonly running: AbortSignals

  constructor(options: Options) {
    this.options = { ...options, keepalive_ms: options.keepalive_ms ?? 15_000, now: options.now ?? Date.now }
    const { notifications } = this.options
    this.notifier = createChangeNotifier(notifications)
    this.running = createAbortSignals(notifications)
  }

  async create(by: AccountActor, request: CreateExport): Promise<Export> {
    const { db, queue, models, trainingSetup, dataDir, min_free_mb, quota, max_waiting, canPush, now } = this.options
    const { account_id } = by
    const model = await this.resolveModel(account_id, request.model)
    const exportOptions = resolveOptions(request, model)
    if (request.push_to && !canPush)
      throw new ApiError(
        'invalid_request',
        "'push_to': this service has no token for the hub. The operator sets one with " +
          'TUNERY_HUGGINGFACE_TOKEN; until then, download the files.',
        { details: { field: 'push_to' } },
      )
    await requireFreeDisk(dataDir, min_free_mb)
    const id = newId('exp')
    const created_at = now()
    const details = {
      format: exportOptions.format,
      quantization: exportOptions.quantization,
      merge: exportOptions.merge,
    }
    const message = trainingSetup.ready() ? 'The export is queued.' : `The export waits. ${trainingSetup.describe()}`
    await db.transaction().execute(async (trx) => {
      // In the transaction, so that the model cannot be deleted before the insert.
      await models.require(trx, account_id, model.id)
      assertBacklogLimit(await store.countQueued(trx, account_id), 'exports', max_waiting)
      await quota.require(trx, account_id, 1)
      await store.insert(trx, {
        ...exportOptions,
        id,
        account_id,
        model_id: model.id,
        merge: exportOptions.merge ? 1 : 0,
        push_to: request.push_to ?? null,
        status: 'queued',
        stage: null,
        progress: 0,
        files_json: '[]',
        check_json: null,
        push_json: null,
        error_json: null,
        crashes: 0,
        interruptions: 0,
        created_at,
        started_at: null,
        finished_at: null,
        expires_at: null,
      })
      await store.events.append(trx, id, [statusEvent('queued', message)], created_at)
      await queue.enqueue(trx, queueKind, id, by.account_id)
      await recordAuditEntry(
        trx,
        by,
        'export.created',
        id,
        { model_id: model.id, ...details, ...(request.push_to && { push_to: request.push_to }) },
        created_at,
      )
    })
    queue.wake()
    return toResponse(await this.requireExport(account_id, id))
  }

  async list(account_id: string, query: ExportQuery): Promise<Page<Export>> {
    const last = query.after ? await this.requireExport(account_id, query.after) : undefined
    return pageOf((await store.list(this.options.db, account_id, query, last)).map(toResponse), query.limit)
  }

  async get(account_id: string, id: string): Promise<Export> {
    return toResponse(await this.requireExport(account_id, id))
  }

  /** Deletes an export; cancels it if it is queued or running. */
  async delete(by: AccountActor, id: string): Promise<{ id: string; deleted: true }> {
    const { db, queue, artifacts, now } = this.options
    const { account_id } = by
    await db.transaction().execute(async (trx) => {
      await this.requireExport(account_id, id, trx)
      await queue.cancel(trx, queueKind, id)
      await store.remove(trx, id)
      await recordAuditEntry(trx, by, 'export.deleted', id, {}, now())
    })
    // A running worker removes its partial folder itself.
    this.running.abort(id)
    this.notifier.notify(id)
    await artifacts.remove(exportKey(id))
    return { id, deleted: true }
  }

  /** Yields the events after number `after`, then new ones until the export or the signal ends. Null is a keepalive. */
  async events(
    account_id: string,
    id: string,
    after: number,
    signal: AbortSignal,
  ): Promise<AsyncGenerator<ExportEvent | null>> {
    const { db, keepalive_ms } = this.options
    await this.requireExport(account_id, id)
    const live = ['queued', 'running']
    const ended = async () => !live.includes((await store.findUnscoped(db, id))?.status ?? 'gone')
    return follow<ExportEvent['type']>(
      { db, events: store.events, notifier: this.notifier, keepalive_ms, ended },
      id,
      after,
      signal,
    )
  }

  /** A file of a ready export, by default the first. Throws export_not_found, export_not_ready. */
  async file(account_id: string, id: string, name: string | undefined): Promise<SendableFile> {
    const { dataDir, now } = this.options
    const exported = await this.requireExport(account_id, id)
    const expired = exported.expires_at !== null && exported.expires_at <= now()
    if (exported.status !== 'ready' || expired) {
      const status = expired ? 'expired' : exported.status
      const todo =
        { queued: 'Wait for its end.', running: 'Wait for its end.', failed: 'Its error says why.' }[
          status as 'queued'
        ] ?? 'Make another.'
      throw new ApiError('export_not_ready', `The export is ${status} and has no files to download. ${todo}`, {
        details: { status },
      })
    }
    const files = filesOf(exported)
    const file = name === undefined ? files[0] : files.find((candidate) => candidate.name === name)
    if (!file)
      throw new ApiError(
        'export_not_found',
        `The export has no such file; it has ${files.map((entry) => entry.name).join(', ')}.`,
      )
    return {
      ...file,
      folder: exportDir(dataDir, id),
      missing: new ApiError('export_not_found', `The file ${file.name} no longer exists. Make another export.`),
    }
  }

  /**
   * A presigned URL of the file in the storage; undefined where downloads go through the service. Throws
   * export_not_found, storage_unavailable.
   */
  async downloadUrl(id: string, { name, missing }: SendableFile): Promise<string | undefined> {
    const { artifacts } = this.options
    const key = exportKey(id) + name
    const url = await artifacts.downloadUrl(key, name)
    if (url !== undefined && !(await artifacts.store?.head(key))) throw missing
    return url
  }

  /** Fetches the files of an export that are not on this machine. */
  async ensureLocal(id: string): Promise<void> {
    await this.options.artifacts.ensureLocal(exportKey(id))
  }

  notifyEvents(id: string): void {
    this.notifier.notify(id)
  }

  /** Removes the files of expired exports; their rows stay for a while. */
  async expire(): Promise<void> {
    const { db, reserve, artifacts, now, onExpiryFailure } = this.options
    for (const { id } of await store.listExpired(db, now())) {
      await reserve.use(() =>
        db.transaction().execute(async (trx) => {
          if ((await store.findUnscoped(trx, id))?.status !== 'ready') return
          await store.update(trx, id, { status: 'expired' })
          await store.events.append(
            trx,
            id,
            [statusEvent('expired', 'The export has expired; its files are removed.')],
            now(),
          )
        }),
      )
      // A folder that cannot be removed must not block the other exports.
      await artifacts.remove(exportKey(id)).catch(onExpiryFailure)
    }
  }

  /** Runs `expire` periodically. `close()` waits for the current run. */
  start(): { close(): Promise<void> } {
    const { servers, onExpiryFailure } = this.options
    return runPeriodically(expiry_ms, () =>
      servers.oncePer('exports.expire', expiry_ms, () => this.expire()).catch(onExpiryFailure),
    )
  }

  /** Removes the folders of exports that are not ready: each is made again. */
  sweep(): Promise<void> {
    const { db, orphans } = this.options
    return orphans.removeEnded('exports', async (id, name) => {
      const row = await store.findUnscoped(db, id)
      return row !== undefined && (name !== id || row.status !== 'ready')
    })
  }

  /** Aborts when a running export is deleted; valid until `finished`. */
  deletionSignal(id: string): AbortSignal {
    return this.running.get(id)
  }

  finished(id: string): void {
    this.running.clear(id)
  }

  private async requireExport(
    account_id: string,
    id: string,
    from: Queryable = this.options.db,
  ): Promise<store.ExportRow> {
    const exported = await store.find(from, account_id, id)
    if (!exported) throw new ApiError('export_not_found', `There is no export '${id}'.`)
    return exported
  }

  /** The tuned model with this id, or served by the deployment with this name. */
  private async resolveModel(account_id: string, name: string) {
    const { models, deployments } = this.options
    const source = await models.exportSource(account_id, name)
    if (source) return source
    const deployment = await deployments.get(account_id, name).catch((error) => {
      if (error instanceof ApiError) return undefined
      throw error
    })
    const deployed = deployment && (await models.exportSource(account_id, deployment.model))
    if (deployed) return deployed
    if (deployment)
      throw new ApiError(
        'invalid_request',
        `'${name}' serves the base '${deployment.model}', which was not trained here; take it from where it came.`,
        { details: { field: 'model' } },
      )
    throw new ApiError(
      'model_not_found',
      `There is no tuned model or deployment '${name}'. GET /v1/fine-tuning/models lists the models.`,
    )
  }
}
