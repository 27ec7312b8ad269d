// OpenAI's files: datasets under that API's names, and files that are no datasets.
import { mkdir, rename } from 'node:fs/promises'
import path from 'node:path'
import { Readable } from 'node:stream'
import { ApiError, undefinedIf } from '../../../contract/errors.ts'
import type { File, FileFields, FileQuery } from '../../../contract/files.ts'
import { newId } from '../../../lib/ids.ts'
import { assertNotNeeded, type NeededBy } from '../../platform/db/needed-by.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { openaiPageOf, timedPage } from '../../platform/db/page.ts'
import type { Row } from '../../platform/db/schema.ts'
import { type AccountActor, creationTime, recordAuditEntry } from '../../platform/events/audit.ts'
import type { FormFile } from '../../platform/http/multipart.ts'
import type { SendableFile } from '../../platform/http/send-file.ts'
import { removeUnlessCommitted, type StoredFile, syncPath } from '../../platform/storage/durable-files.ts'
import { storeStream } from '../../platform/storage/incoming-files.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Datasets, FileEntry, Received } from '../datasets/index.ts'
import * as store from './store.ts'
import { fileKey, filePath, filesDir, toEntry } from './store.ts'

/** A file that the service itself writes: its bytes are on disk, its row is not inserted yet. */
export interface NewFile extends StoredFile {
  id: string
}

interface Options {
  db: Db
  datasets: Pick<Datasets, 'uploads' | 'asFiles' | 'delete'>
  artifacts: Artifacts
  dataDir: string
  quota: StorageQuota
  /** What may still need a file that is to be removed. */
  neededBy: readonly NeededBy[]
  now(): number
}

export class Files {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  async upload(by: AccountActor, { file, filename, announced_bytes, fields }: FormFile<FileFields>): Promise<File> {
    const { datasets } = this.options
    const received = await datasets.uploads.receive(file, announced_bytes, by.account_id).catch(namingFile)
    const requested = await fields().catch(async (error) => {
      await datasets.uploads.discard(received)
      throw error
    })
    return this.adopt(by, received, filename, requested)
  }

  async list(
    account_id: string,
    { limit, order, after: last, purpose }: FileQuery,
  ): Promise<ReturnType<typeof openaiPageOf<File>>> {
    const { db, datasets, now } = this.options
    const after = last === undefined ? undefined : await this.cursorOf(account_id, last)
    const page = { limit, order }
    const query = store.readable(db, account_id, now())
    const rows =
      purpose === 'fine-tune'
        ? []
        : await timedPage(purpose === undefined ? query : query.where('purpose', '=', purpose), page, after)
    const entries = rows.map(toEntry)
    if (purpose === undefined || purpose === 'fine-tune')
      entries.push(...(await datasets.asFiles.list(account_id, page, after)))
    const sign = order === 'asc' ? 1 : -1
    entries.sort((a, b) => sign * (a.created_at - b.created_at || (a.id < b.id ? -1 : 1)))
    return openaiPageOf(
      entries.slice(0, limit + 1).map(({ file }) => file),
      limit,
    )
  }

  async get(account_id: string, id: string): Promise<File> {
    return (await this.requireEntry(account_id, id)).file
  }

  async content(account_id: string, id: string): Promise<SendableFile> {
    const { db, datasets, artifacts, dataDir, now } = this.options
    const missing = new ApiError('file_not_found', `The bytes of '${id}' are no longer there.`, { param: 'file_id' })
    const stored = await store.find(db, account_id, id, now())
    if (stored) {
      const { filename, size_bytes, sha256 } = stored
      await artifacts.ensureLocal(fileKey(id))
      return { folder: filesDir(dataDir), name: id, filename, size_bytes, sha256, missing }
    }
    const dataset = await datasets.asFiles.find(account_id, id)
    if (!dataset) throw notFound(id)
    const { path: source, sha256, file } = dataset
    await artifacts.ensureLocal(source)
    return {
      folder: path.dirname(source),
      name: path.basename(source),
      filename: file.filename,
      size_bytes: file.bytes,
      sha256,
      missing,
    }
  }

  async delete(by: AccountActor, id: string): Promise<{ id: string; object: 'file'; deleted: true }> {
    const { db, datasets, artifacts, neededBy, now } = this.options
    const { account_id } = by
    const stored = await store.find(db, account_id, id, now())
    if (!stored) {
      if (!(await datasets.asFiles.find(account_id, id))) throw notFound(id)
      await datasets.delete(by, id).catch(namingParam('file_id'))
      return { id, object: 'file', deleted: true }
    }
    await db.transaction().execute(async (trx) => {
      if (!(await store.find(trx, account_id, id, now()))) throw notFound(id)
      await assertNotNeeded(
        neededBy,
        trx,
        account_id,
        id,
        (user) => `The file is needed by ${user}. Cancel it or wait for its end, then delete.`,
      ).catch(namingParam('file_id'))
      await store.remove(trx, id)
      await recordAuditEntry(trx, by, 'file.deleted', id, { filename: stored.filename }, now())
    })
    await artifacts.remove(fileKey(id))
    return { id, object: 'file', deleted: true }
  }

  /** A file that is no dataset, with its path on this machine; undefined if there is none. */
  async pathOf(account_id: string, id: string): Promise<(store.FileRow & { path: string }) | undefined> {
    const { db, artifacts } = this.options
    const row = await store.find(db, account_id, id)
    return row && { ...row, path: await artifacts.ensureLocal(fileKey(id)) }
  }

  /** Throws file_not_found unless the file, which is no dataset, exists in this transaction. */
  async requireIn(trx: Trx, account_id: string, id: string): Promise<void> {
    if (!(await store.find(trx, account_id, id, this.options.now()))) throw notFound(id)
  }

  /** Stores bytes that will become a file of the service: call `insert` in the transaction that names it. */
  async write(bytes: Readable | string): Promise<NewFile> {
    const { artifacts, dataDir } = this.options
    const id = newId('file')
    const stored = await storeStream(
      typeof bytes === 'string' ? Readable.from([Buffer.from(bytes)]) : bytes,
      filePath(dataDir, id),
      () => {},
    )
    await artifacts.publish(fileKey(id)).catch(async (error) => {
      await artifacts.remove(fileKey(id))
      throw error
    })
    return { id, ...stored }
  }

  async insert(
    trx: Trx,
    { id, size_bytes, sha256 }: NewFile,
    row: Pick<Row<'files'>, 'account_id' | 'filename' | 'purpose' | 'created_at'> & { expires_at?: number | null },
  ): Promise<void> {
    await store.insert(trx, { expires_at: null, ...row, id, size_bytes, sha256 })
  }

  /** Removes a written file, unless it was inserted. */
  drop({ id }: Pick<NewFile, 'id'>): Promise<void> {
    const { db, artifacts } = this.options
    return removeUnlessCommitted(
      () => store.findUnscoped(db, id),
      () => artifacts.remove(fileKey(id)),
    )
  }

  /** Removes files whose time is over, and their rows. */
  async removeExpired(time: number): Promise<void> {
    const { db, artifacts, neededBy } = this.options
    for (const { id, account_id } of await store.expired(db, time)) {
      const removed = await db.transaction().execute(async (trx) => {
        for (const check of neededBy) if (await check(trx, account_id, id)) return false
        await store.remove(trx, id)
        return true
      })
      if (removed) await artifacts.remove(fileKey(id))
    }
  }

  /** Makes a file, or a dataset, of received bytes. A failure leaves nothing behind. */
  async adopt(
    by: AccountActor,
    received: Received,
    filename: string,
    fields: FileFields,
    /** Writes in the transaction that stores the file, with its id. */
    also?: (trx: Trx, id: string) => Promise<void>,
  ): Promise<File> {
    const { db, datasets, artifacts, dataDir, quota, now } = this.options
    const { purpose } = fields
    // `register` discards what it does not take over.
    if (purpose === 'fine-tune' && !hasExpiry(fields)) {
      const { id } = await datasets.uploads
        .register(by, received, filename, { description: '' }, also)
        .catch(namingFile)
      return (await this.requireEntry(by.account_id, id)).file
    }
    try {
      if (purpose === 'fine-tune') throw expiryRefused()
      if (received.size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.', { param: 'file' })
      const id = newId('file')
      const created_at = now()
      await mkdir(filesDir(dataDir), { recursive: true })
      await rename(received.path, filePath(dataDir, id))
      await syncPath(filesDir(dataDir))
      const row = {
        id,
        account_id: by.account_id,
        filename,
        purpose,
        size_bytes: received.size_bytes,
        sha256: received.sha256,
        expires_at: expiryOf(fields, created_at),
        created_at,
      }
      try {
        await artifacts.publish(fileKey(id))
        await db.transaction().execute(async (trx) => {
          await store.insert(trx, row)
          await recordAuditEntry(trx, by, 'file.created', id, { filename, purpose, sha256: row.sha256 }, created_at)
          await also?.(trx, id)
          await quota.require(trx, by.account_id, 0)
        })
      } catch (error) {
        await this.drop({ id })
        throw error
      }
      return toEntry(row).file
    } catch (error) {
      await datasets.uploads.discard(received)
      throw error
    }
  }

  private async requireEntry(account_id: string, id: string): Promise<FileEntry> {
    const { db, datasets, now } = this.options
    const stored = await store.find(db, account_id, id, now())
    const entry = stored ? toEntry(stored) : await datasets.asFiles.find(account_id, id)
    if (!entry) throw notFound(id)
    return entry
  }

  /** Where a page begins: after a file, which may have been deleted since. */
  private async cursorOf(account_id: string, id: string): Promise<{ created_at: number; id: string }> {
    const entry = await this.requireEntry(account_id, id).catch(undefinedIf('file_not_found'))
    const created_at =
      entry?.created_at ?? (await creationTime(this.options.db, account_id, ['file.created', 'dataset.created'], id))
    if (created_at === undefined)
      throw new ApiError('file_not_found', `'after': there was never a file '${id}'.`, { param: 'after' })
    return { created_at, id }
  }
}

function notFound(id: string) {
  return new ApiError('file_not_found', `There is no file '${id}'.`, { param: 'file_id' })
}

const hasExpiry = (fields: FileFields) =>
  fields['expires_after[seconds]'] !== undefined || fields['expires_after[anchor]'] !== undefined

export const expiryRefused = () =>
  new ApiError(
    'parameter_not_supported',
    "'expires_after' is not for files to fine-tune on: they are kept until you delete them. Leave it out.",
    { param: 'expires_after' },
  )

/** Names the parameter in an error that names none. */
const namingParam =
  (param: string) =>
  (error: unknown): never => {
    if (!(error instanceof ApiError) || error.param !== undefined) throw error
    throw error.with({ param })
  }
const namingFile = namingParam('file')

/** When the file is deleted, in unix milliseconds. */
function expiryOf(fields: FileFields, created_at: number): number | null {
  const seconds = fields['expires_after[seconds]']
  if ((seconds === undefined) !== (fields['expires_after[anchor]'] === undefined))
    throw new ApiError(
      'invalid_request',
      "'expires_after' needs both fields: 'expires_after[anchor]' (created_at) and 'expires_after[seconds]'.",
      { param: 'expires_after' },
    )
  return seconds === undefined ? null : created_at + seconds * 1000
}
