// OpenAI's uploads: a large file that arrives in parts.
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'
import { asDisplayName } from '../../../contract/common.ts'
import { ApiError, undefinedIf } from '../../../contract/errors.ts'
import {
  type CreateUpload,
  type File,
  type FileFields,
  partBytesMax,
  partsMax,
  type Upload,
  type UploadPart,
} from '../../../contract/files.ts'
import { newId } from '../../../lib/ids.ts'
import { hour_ms, unixSeconds } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { assertBacklogLimit } from '../../platform/queue/queue.ts'
import { freeToClaim } from '../../platform/storage/free-disk.ts'
import { claimDisk, type DiskClaim, storeStream } from '../../platform/storage/incoming-files.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Orphans } from '../../platform/storage/orphans.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Datasets } from '../datasets/index.ts'
import { expiryRefused, type Files } from './service.ts'
import * as store from './store.ts'
import { partKey, partPath } from './store.ts'

interface Options {
  db: Db
  datasets: Pick<Datasets, 'uploads'>
  files: Files
  artifacts: Artifacts
  orphans: Orphans
  dataDir: string
  max_mb: number
  min_free_mb: number
  quota: StorageQuota
  now(): number
}

/** How long an upload may take. */
const lifetime_ms = hour_ms
/** Pending uploads of an account. */
const uploadsMax = 100
/** How long space is kept for an upload of which nothing comes. Later parts find their own, if there is any. */
const claim_ms = hour_ms / 6

export class Uploads {
  private readonly options: Options
  /** Uploads that a request is ending, so that a second one does not join the parts again. */
  private readonly ending = new Set<string>()
  /** The space that is kept for what was announced and has not come, by upload: of those that began at this process. */
  private readonly claims = new Map<string, { account_id: string; claim: DiskClaim; timer: NodeJS.Timeout }>()

  constructor(options: Options) {
    this.options = options
  }

  async create(by: AccountActor, { filename, purpose, bytes, expires_after }: CreateUpload): Promise<Upload> {
    const { db, max_mb, quota, now } = this.options
    if (bytes > max_mb * 1e6)
      throw new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, {
        details: { max_mb },
        param: 'bytes',
      })
    if (purpose === 'fine-tune' && expires_after != null) throw expiryRefused()
    await quota.require(db, by.account_id, bytes)
    const id = newId('upl')
    await this.keepSpace(by.account_id, id, bytes)
    const created_at = now()
    const row: store.UploadRow = {
      id,
      account_id: by.account_id,
      filename: asDisplayName(filename) || 'file',
      purpose,
      size_bytes: bytes,
      file_seconds: expires_after?.seconds ?? null,
      status: 'pending',
      file_id: null,
      expires_at: created_at + lifetime_ms,
      created_at,
    }
    await db
      .transaction()
      .execute(async (trx) => {
        assertBacklogLimit(await store.countPendingUploads(trx, by.account_id), 'uploads', uploadsMax)
        await store.insertUpload(trx, row)
        await quota.require(trx, by.account_id, 0)
        await recordAuditEntry(trx, by, 'upload.created', id, { filename, purpose, bytes }, created_at)
      })
      .catch((error) => {
        this.releaseClaim(id)
        throw error
      })
    return this.toResponse(row)
  }

  /** `fields` reads the rest of the form after the bytes. */
  async addPart(
    account_id: string,
    upload_id: string,
    {
      file: bytes,
      announced_bytes,
      fields,
    }: { file: NodeJS.ReadableStream; announced_bytes: number; fields(): Promise<unknown> },
  ): Promise<UploadPart> {
    const { db, artifacts, dataDir, min_free_mb, quota, now } = this.options
    const upload = await this.requirePending(account_id, upload_id)
    const kept = this.claims.get(upload_id)
    kept?.timer.refresh()
    const claim = kept?.claim ?? (await claimDisk(dataDir, min_free_mb, Math.min(announced_bytes, partBytesMax)))
    const id = newId('part')
    const file = partPath(dataDir, upload_id, id)
    let size = 0
    const { size_bytes } = await storeStream(
      bytes,
      file,
      (chunk) => {
        size += chunk.length
        if (size > partBytesMax)
          throw new ApiError('file_too_large', 'The part is larger than 64 MiB. Send the file in more parts.', {
            details: { max_bytes: partBytesMax },
            param: 'data',
          })
      },
      claim,
    )
      .catch(async (error) => {
        kept?.claim.giveBack(size)
        // Its folder is removed when the upload ends.
        await this.requirePending(account_id, upload_id)
        throw error
      })
      .finally(() => {
        if (!kept) claim.release()
      })
    const created_at = now()
    try {
      if (size_bytes === 0) throw new ApiError('file_empty', 'The part is empty.', { param: 'data' })
      await fields()
      // Another machine may complete the upload.
      await artifacts.publish(partKey(upload_id, id))
      await db.transaction().execute(async (trx) => {
        const { sent, count } = await store.partsSent(trx, upload_id)
        if (count >= partsMax)
          throw new ApiError('invalid_request', `The upload has ${partsMax} parts, the most that it may.`, {
            param: 'data',
          })
        // A part may be sent again after a failure, but a client cannot fill the disk.
        if (sent + size_bytes > 2 * upload.size_bytes + partBytesMax)
          throw new ApiError('file_too_large', 'The parts are more than twice as large as was announced.', {
            param: 'data',
          })
        if ((await store.findUpload(trx, account_id, upload_id))?.status !== 'pending') throw notPending('ended')
        await store.insertPart(trx, { id, upload_id, size_bytes, created_at })
        await quota.require(trx, account_id, 0)
      })
    } catch (error) {
      await artifacts.remove(partKey(upload_id, id))
      kept?.claim.giveBack(size_bytes)
      throw error
    }
    return { id, object: 'upload.part', created_at: unixSeconds(created_at), upload_id }
  }

  complete(
    by: AccountActor,
    id: string,
    { part_ids, md5 }: { part_ids: string[]; md5?: string | null | undefined },
  ): Promise<Upload> {
    return this.endOnce(id, async () => {
      const pending = await this.requireUpload(by.account_id, id)
      // A client that lost the answer asks again.
      if (pending.status === 'completed' && pending.file_id !== null) return this.toResponse(pending)
      const upload = await this.requirePending(by.account_id, id)
      await this.join(by, upload, part_ids, md5 ?? undefined).catch(async (error) => {
        // A dataset that turns out to be unreadable is removed again.
        await store.reopenUpload(this.options.db, id)
        throw error
      })
      await this.removeParts(id)
      return this.toResponse(await this.requireUpload(by.account_id, id))
    })
  }

  cancel(by: AccountActor, id: string): Promise<Upload> {
    const { db, now } = this.options
    return this.endOnce(id, async () => {
      await this.requirePending(by.account_id, id)
      await db.transaction().execute(async (trx) => {
        if (!(await store.endUpload(trx, id, { status: 'cancelled' }))) throw notPending('ended')
        await recordAuditEntry(trx, by, 'upload.cancelled', id, {}, now())
      })
      await this.removeParts(id)
      return this.toResponse(await this.requireUpload(by.account_id, id))
    })
  }

  /** Ends uploads that were not completed in time. */
  async removeExpired(time: number): Promise<void> {
    const { db } = this.options
    for (const { id } of await store.overdueUploads(db, time)) {
      if (this.ending.has(id)) continue
      if (await store.endUpload(db, id, { status: 'expired' })) await this.removeParts(id)
    }
  }

  /** Removes the parts of uploads that have ended, left by a crash. */
  sweep(): Promise<void> {
    const { db, orphans } = this.options
    return orphans.removeEnded('uploads', async (id) => {
      const upload = await store.findUploadUnscoped(db, id)
      return upload !== undefined && upload.status !== 'pending'
    })
  }

  /** Runs the end of an upload, unless another request is at it. */
  private async endOnce<T>(id: string, work: () => Promise<T>): Promise<T> {
    if (this.ending.has(id)) throw notPending('being completed')
    this.ending.add(id)
    try {
      return await work()
    } finally {
      this.ending.delete(id)
    }
  }

  private async requireUpload(account_id: string, id: string): Promise<store.UploadRow> {
    const upload = await store.findUpload(this.options.db, account_id, id)
    if (!upload) throw new ApiError('upload_not_found', `There is no upload '${id}'.`, { param: 'upload_id' })
    return upload
  }

  private async requirePending(account_id: string, id: string): Promise<store.UploadRow> {
    const upload = await this.requireUpload(account_id, id)
    const status = upload.status === 'pending' && upload.expires_at <= this.options.now() ? 'expired' : upload.status
    if (status !== 'pending') throw notPending(status)
    return upload
  }

  private async removeParts(id: string): Promise<void> {
    this.releaseClaim(id)
    await this.options.artifacts.remove(`uploads/${id}/`)
  }

  private releaseClaim(id: string): void {
    const claim = this.claims.get(id)
    if (!claim) return
    clearTimeout(claim.timer)
    claim.claim.release()
    this.claims.delete(id)
  }

  /**
   * Keeps space for an announced file. Who only announces gets at most half of what is free, all uploads of the account
   * together, so that others find some; the rest is claimed as it comes. Throws storage_full if it does not fit.
   */
  private async keepSpace(account_id: string, id: string, bytes: number): Promise<void> {
    const { dataDir, min_free_mb } = this.options
    const free = await freeToClaim(dataDir, min_free_mb)
    const claims = [...this.claims.values()].filter((claim) => claim.account_id === account_id)
    const kept = claims.reduce((sum, { claim }) => sum + claim.left(), 0)
    const share = Math.max(0, Math.floor((free + kept) / 2) - kept)
    const claim = await claimDisk(dataDir, min_free_mb, bytes)
    claim.shrinkTo(share)
    const timer = setTimeout(() => this.releaseClaim(id), claim_ms).unref()
    this.claims.set(id, { account_id, claim, timer })
  }

  /** Null if it was deleted. */
  private async fileOf(account_id: string, id: string) {
    return (await this.options.files.get(account_id, id).catch(undefinedIf('file_not_found'))) ?? null
  }

  private async toResponse(upload: store.UploadRow): Promise<Upload> {
    return {
      id: upload.id,
      object: 'upload',
      bytes: upload.size_bytes,
      created_at: unixSeconds(upload.created_at),
      expires_at: unixSeconds(upload.expires_at),
      filename: upload.filename,
      purpose: upload.purpose,
      status: upload.status,
      file: upload.file_id === null ? null : await this.fileOf(upload.account_id, upload.file_id),
    }
  }

  /**
   * Joins the parts to a file and completes the upload. Throws upload_incomplete if they are not what was announced.
   */
  private async join(
    by: AccountActor,
    upload: store.UploadRow,
    part_ids: string[],
    md5: string | undefined,
  ): Promise<File> {
    const { db, datasets, files, artifacts } = this.options
    const sizes = new Map((await store.parts(db, upload.id)).map((part) => [part.id, part.size_bytes]))
    const unknown = part_ids.find((id) => !sizes.has(id))
    if (unknown !== undefined) throw incomplete(`The upload has no part '${unknown.slice(0, 100)}'.`, 'part_ids')
    const twice = part_ids.find((id, index) => part_ids.indexOf(id) < index)
    if (twice !== undefined) throw incomplete(`The part '${twice.slice(0, 100)}' is named twice.`, 'part_ids')
    const bytes = part_ids.reduce((sum, id) => sum + sizes.get(id)!, 0)
    if (bytes !== upload.size_bytes)
      throw incomplete(
        `The parts have ${bytes} bytes together; ${upload.size_bytes} were announced. Add what is missing, then ` +
          'complete.',
        'part_ids',
      )
    const hash = createHash('md5')
    async function* hashed() {
      for (const id of part_ids)
        for await (const chunk of createReadStream(await artifacts.ensureLocal(partKey(upload.id, id)), {
          highWaterMark: 1 << 20,
        })) {
          hash.update(chunk)
          yield chunk
        }
    }
    const received = await datasets.uploads.receive(Readable.from(hashed(), { objectMode: false }), upload.size_bytes)
    const digest = hash.digest()
    if (md5 !== undefined && md5.toLowerCase() !== digest.toString('hex') && md5 !== digest.toString('base64')) {
      await datasets.uploads.discard(received)
      throw incomplete(`The file's MD5 is ${digest.toString('hex')}, not '${md5}'. A part is damaged.`, 'md5')
    }
    const fields: FileFields = {
      purpose: upload.purpose,
      ...(upload.file_seconds !== null && {
        'expires_after[anchor]': 'created_at',
        'expires_after[seconds]': upload.file_seconds,
      }),
    }
    return files.adopt(by, received, upload.filename, fields, async (trx, file_id) => {
      if (!(await store.endUpload(trx, upload.id, { status: 'completed', file_id }))) throw notPending('ended')
    })
  }
}

const notPending = (status: string) =>
  new ApiError('upload_not_pending', `The upload is ${status}. Begin another one with POST /v1/uploads.`, {
    details: { status },
    param: 'upload_id',
  })

const incomplete = (message: string, param: string) => new ApiError('upload_incomplete', message, { param })
