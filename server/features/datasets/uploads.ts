// Uploads: a file is received while it is checked, and becomes a dataset.
import { readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Dataset, UploadFields } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { FormFile } from '../../platform/http/multipart.ts'
import type { Queue } from '../../platform/queue/queue.ts'
import { removeUnlessCommitted, type StoredFile } from '../../platform/storage/durable-files.ts'
import { claimDisk, storeStream } from '../../platform/storage/incoming-files.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import { createLineCounter, formatOf, headBytes, isList, refuseUnreadable } from './format.ts'
import { queueKind } from './prepare.ts'
import type { DatasetReads } from './reads.ts'
import * as store from './store.ts'
import { filesOf, readFileOf, sourceKey, toResponse } from './store.ts'

/** An uploaded file that nothing names yet: `register` makes a dataset of it, or its receiver moves it elsewhere. */
export interface Received extends StoredFile {
  /** The id that its dataset gets. */
  id: string
  path: string
  /** Its first bytes, which tell the format. */
  head: Buffer
  counted: { rows: number; not_utf8_line?: number }
}

interface Options {
  db: Db
  queue: Queue
  artifacts: Artifacts
  dataDir: string
  max_mb: number
  max_rows: number
  min_free_mb: number
  quota: StorageQuota
  reads: DatasetReads
  /** Called when a dataset was uploaded. */
  onUploaded(): void
  now(): number
}

/** A form is at most this much larger than its file. */
const formBytes = 1e6
/** How long an upload waits for its file to be read. */
const uploadWait_ms = 12_000

export class DatasetUploads {
  private readonly options: Options
  private readonly hubTokens = new Map<string, string>()

  constructor(options: Options) {
    this.options = options
  }

  /** The Hugging Face token from an upload. Only in memory, until the dataset has been read. */
  hubToken(id: string): string | undefined {
    return this.hubTokens.get(id)
  }

  forgetHubToken(id: string): void {
    this.hubTokens.delete(id)
  }

  async upload(
    by: AccountActor,
    { file, filename, announced_bytes, fields }: FormFile<UploadFields>,
  ): Promise<Dataset> {
    const received = await this.receive(file, announced_bytes, by.account_id)
    const requested = await fields().catch(async (error) => {
      await this.discard(received)
      throw error
    })
    return await this.register(by, received, filename, requested)
  }

  /**
   * Stores the bytes of a file; `announced_bytes`: about as many come. `uploader`: the account that sends them, if they
   * count towards what it stores from now on. Throws file_too_large, storage_full, storage_quota_exceeded.
   */
  async receive(file: NodeJS.ReadableStream, announced_bytes: number, uploader?: string): Promise<Received> {
    const { db, dataDir, max_mb, min_free_mb, quota } = this.options
    const id = newId('ds')
    const target = path.join(dataDir, 'datasets', `${id}.upload`)
    const counter = createLineCounter()
    const max_bytes = max_mb * 1e6
    let bytes = 0
    let head: Buffer = Buffer.alloc(0)
    const tooLarge = () =>
      new ApiError('file_too_large', `The file is larger than ${max_mb} MB, the most this service takes.`, {
        details: { max_mb },
      })
    if (announced_bytes > max_bytes + formBytes) throw tooLarge()
    const account = uploader === undefined ? undefined : quota.uploader(db, uploader)
    const claim = await claimDisk(dataDir, min_free_mb, Math.min(announced_bytes, max_bytes), account)
    try {
      const stored = await storeStream(
        file,
        target,
        (chunk) => {
          bytes += chunk.length
          if (bytes > max_bytes) throw tooLarge()
          if (head.length < headBytes) head = Buffer.concat([head, chunk.subarray(0, headBytes - head.length)])
          counter.add(chunk)
        },
        claim,
      )
      return { id, path: target, ...stored, head, counted: counter.end() }
    } finally {
      claim.release()
    }
  }

  /** Makes a dataset of a received file. A failure leaves nothing behind. `also` writes in the same transaction. */
  async register(
    by: AccountActor,
    received: Received,
    filename: string,
    { name, description, format: requested, columns, hf_token }: UploadFields,
    also?: (trx: Trx, id: string) => Promise<void>,
  ): Promise<Dataset> {
    const { db, queue, artifacts, dataDir, max_rows, quota, reads, onUploaded, now } = this.options
    const { id, size_bytes, sha256, counted } = received
    let published: string | undefined
    try {
      const format = formatOf(requested, filename, received.head, columns)
      // How many rows a list has is known when it is read.
      const hasLines = format === 'jsonl' && !isList(received.head)
      refuseUnreadable(format, size_bytes, hasLines ? counted : { ...counted, rows: 1 }, max_rows)
      const stored = { id, format, source_name: null }
      await rename(received.path, filesOf(dataDir, stored).source)
      const source = sourceKey(stored)
      published = source
      await artifacts.publish(source)
      const dataset = {
        id,
        account_id: by.account_id,
        name: name ?? filename,
        description,
        format,
        rows: hasLines ? counted.rows : 0,
        size_bytes,
        sha256,
        rows_sha256: null,
        rows_bytes: 0,
        rows_form: 1,
        columns_json: columns ? JSON.stringify(columns) : null,
        earlier_rows_sha256: null,
        source_name: null,
        status: 'preparing' as const,
        check_json: '{}',
        hub_token_server: hf_token ? queue.server : null,
        created_at: now(),
      }
      if (hf_token) this.hubTokens.set(id, hf_token)
      await db.transaction().execute(async (trx) => {
        await store.insert(trx, dataset)
        await recordAuditEntry(
          trx,
          by,
          'dataset.created',
          id,
          { name: dataset.name, sha256: dataset.sha256 },
          dataset.created_at,
        )
        await queue.enqueue(trx, queueKind, id, dataset.account_id)
        await also?.(trx, id)
        await quota.require(trx, by.account_id, 0)
      })
      queue.wake()
      onUploaded()
      if (hasLines) return toResponse(dataset)
      const read = await reads.waitUntilRead(by.account_id, id, uploadWait_ms)
      const result = readFileOf(read)
      if (!('unreadable' in result)) return toResponse(read)
      await store.remove(db, id)
      await artifacts.remove(source)
      const { code, message, columns: names } = result.unreadable
      throw new ApiError(code, message, names && { details: { columns: names.slice(0, 200) } })
    } catch (error) {
      await removeUnlessCommitted(
        () => store.findUnscoped(db, id),
        async () => {
          await this.discard(received)
          if (published) await artifacts.remove(published)
        },
      )
      throw error
    }
  }

  /** Removes a received file that nothing became of. */
  async discard({ id, path: file }: Received): Promise<void> {
    const folder = path.dirname(file)
    for (const name of await readdir(folder))
      if (name.startsWith(`${id}.`)) await rm(path.join(folder, name), { recursive: true, force: true })
  }
}
