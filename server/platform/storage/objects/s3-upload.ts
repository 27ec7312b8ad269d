// Uploads to a bucket, in parts where the file is large. The SDK's own uploader (lib-storage) cannot resume with the
// parts of a broken upload. Here a small object, the record, remembers each upload that has begun, under the hash of
// its key and its bytes: an upload resumes only with parts that were sent of the same bytes.
import { createHash, randomUUID } from 'node:crypto'
import type { FileHandle } from 'node:fs/promises'
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  ListPartsCommand,
  PutObjectCommand,
  paginateListObjectsV2,
  type S3Client,
  UploadPartCommand,
  type UploadPartCommandOutput,
} from '@aws-sdk/client-s3'
import { z } from 'zod'
import type { StoredObject } from './store.ts'

/** Parts in memory at once. */
const concurrency = 3
const minPart_bytes = 8 << 20
/** S3 takes 10,000 parts. */
const maxParts = 9000
/** Where the records are, within the prefix. */
const records = 'incoming/'

export interface Bucket {
  client: S3Client
  bucket: string
  prefix: string
}
type Part = { number: number; etag: string; size_bytes: number }
const UploadRecord = z.object({ key: z.string(), upload_id: z.string() })
/** An upload in parts that has begun: the key of its record, and what that says. */
type Begun = z.infer<typeof UploadRecord> & { record: string }

/**
 * Sends the file, with `resume` from the parts on that a broken upload of the same bytes left. Throws if the storage
 * has other bytes than were read, or if the file has changed meanwhile; see `isSuperseded` for uploads at once.
 */
export async function upload(
  to: Bucket,
  name: string,
  file: FileHandle,
  expected: StoredObject,
  resume: boolean,
): Promise<void> {
  const { client, bucket, prefix } = to
  const at = { Bucket: bucket, Key: prefix + name }
  const { size_bytes, sha256 } = expected
  const described = { ...at, Metadata: { sha256 }, ContentType: 'application/octet-stream' }
  if (size_bytes <= minPart_bytes) {
    const body = await readPart(file, 0, Buffer.allocUnsafe(size_bytes))
    assertUnchanged(createHash('sha256').update(body).digest('hex'), expected)
    return assertReceived(await client.send(new PutObjectCommand({ ...described, Body: body })), body)
  }
  const partBytes = Math.max(minPart_bytes, Math.ceil(size_bytes / maxParts / (1 << 20)) * (1 << 20))
  const folder = `${prefix}${records}${createHash('sha256').update(`${name}\n${sha256}`).digest('hex')}/`
  const upload = resume ? await findBegun(to, folder) : undefined
  const begun = upload ?? (await begin(to, folder, described))
  const { upload_id: UploadId } = begun
  const there = new Map(upload?.parts.map((part) => [part.number, part]))
  const hash = createHash('sha256')
  const done: Part[] = []
  /** Buffers that are not in use: as many as parts in memory, instead of what garbage collection leaves. */
  const free: Buffer[] = []
  const running = new Set<Promise<void>>()
  let failure: unknown
  const count = Math.ceil(size_bytes / partBytes)
  for (let number = 1; number <= count && failure === undefined; number++) {
    const start = (number - 1) * partBytes
    const buffer = free.pop() ?? Buffer.allocUnsafeSlow(partBytes)
    const body = await readPart(file, start, buffer.subarray(0, Math.min(partBytes, size_bytes - start)))
    hash.update(body)
    const uploaded = there.get(number)
    if (uploaded && uploaded.size_bytes === body.length && uploaded.etag === md5(body)) {
      done.push(uploaded)
      free.push(buffer)
      continue
    }
    const sent = client
      .send(new UploadPartCommand({ ...at, UploadId, PartNumber: number, Body: body }))
      .then((answer) => {
        assertReceived(answer, body)
        done.push({ number, etag: unquoted(answer.ETag), size_bytes: body.length })
        free.push(buffer)
      })
      .catch((error) => {
        failure ??= error
      })
      .finally(() => running.delete(sent))
    running.add(sent)
    if (running.size >= concurrency) await Promise.race(running)
  }
  await Promise.all(running)
  // The parts stay: the next attempt resumes from them.
  if (failure !== undefined) throw failure
  try {
    assertUnchanged(hash.digest('hex'), expected)
  } catch (error) {
    await abort(to, begun).catch(() => {})
    throw error
  }
  done.sort((a, b) => a.number - b.number)
  const Parts = done.map(({ number, etag }) => ({ PartNumber: number, ETag: `"${etag}"` }))
  await client.send(new CompleteMultipartUploadCommand({ ...at, UploadId, MultipartUpload: { Parts } }))
  // A record that stays is removed by the sweep.
  await client.send(new DeleteObjectCommand({ Bucket: bucket, Key: begun.record })).catch(() => {})
}

/** Ends the uploads that were begun before this time (unix milliseconds) and never ended, with their parts. */
export async function removeUnfinished(from: Bucket, before: number): Promise<void> {
  for await (const { record, begun_at } of listRecords(from, from.prefix + records))
    if (begun_at < before) {
      const begun = await readRecord(from, record)
      if (begun) await abort(from, begun)
    }
}

/**
 * Whether an upload in parts failed because another of the same bytes, which shared its parts, has ended. Then the
 * object is there.
 */
export const isSuperseded = (error: unknown) =>
  ['NoSuchUpload', 'InvalidPart'].includes((error as { name?: string }).name ?? '')

async function begin({ client, bucket, prefix }: Bucket, folder: string, described: { Key: string }): Promise<Begun> {
  const { UploadId } = await client.send(new CreateMultipartUploadCommand({ Bucket: bucket, ...described }))
  const begun = { key: described.Key.slice(prefix.length), upload_id: UploadId! }
  const record = folder + randomUUID()
  await client.send(new PutObjectCommand({ Bucket: bucket, Key: record, Body: JSON.stringify(begun) }))
  return { ...begun, record }
}

/** The newest unfinished upload with a record in this folder, and its parts. */
async function findBegun(to: Bucket, folder: string): Promise<(Begun & { parts: Part[] }) | undefined> {
  const uploads: { record: string; begun_at: number }[] = []
  for await (const record of listRecords(to, folder)) uploads.push(record)
  for (const { record } of uploads.sort((a, b) => b.begun_at - a.begun_at)) {
    const begun = await readRecord(to, record)
    const parts = begun && (await partsOf(to, begun))
    if (parts) return { ...begun, parts }
  }
  return undefined
}

/** Undefined if the upload has ended. */
async function partsOf({ client, bucket, prefix }: Bucket, { key, upload_id }: Begun): Promise<Part[] | undefined> {
  const at = { Bucket: bucket, Key: prefix + key, UploadId: upload_id }
  const parts: Part[] = []
  for (let marker: string | undefined; ; ) {
    const page = await client
      .send(new ListPartsCommand({ ...at, ...(marker && { PartNumberMarker: marker }) }))
      .catch(ignoreMissing)
    if (!page) return undefined
    for (const { PartNumber = 0, ETag, Size = -1 } of page.Parts ?? [])
      parts.push({ number: PartNumber, etag: unquoted(ETag), size_bytes: Size })
    marker = page.NextPartNumberMarker
    if (!page.IsTruncated || !marker) return parts
  }
}

async function* listRecords({ client, bucket }: Bucket, within: string) {
  for await (const { Contents = [] } of paginateListObjectsV2({ client }, { Bucket: bucket, Prefix: within }))
    for (const { Key = '', LastModified } of Contents) yield { record: Key, begun_at: LastModified?.getTime() ?? 0 }
}

/** Undefined if the upload has just ended, or for what is no record. */
async function readRecord({ client, bucket }: Bucket, record: string): Promise<Begun | undefined> {
  const response = await client.send(new GetObjectCommand({ Bucket: bucket, Key: record })).catch(ignoreMissing)
  const text = await response?.Body?.transformToString()
  try {
    return { ...UploadRecord.parse(JSON.parse(text ?? '')), record }
  } catch {
    return undefined
  }
}

async function abort({ client, bucket, prefix }: Bucket, { key, upload_id, record }: Begun): Promise<void> {
  const at = { Bucket: bucket, Key: prefix + key, UploadId: upload_id }
  await client.send(new AbortMultipartUploadCommand(at)).catch(ignoreMissing)
  await client.send(new DeleteObjectCommand({ Bucket: bucket, Key: record }))
}

/** Resolves with nothing for what is not there; throws any other error again. */
const ignoreMissing = (error: unknown): undefined => {
  if (!isMissing(error)) throw error
}

/** Whether the object or upload is not there. */
export const isMissing = (error: unknown) => {
  const { name, $metadata } = error as { name?: string; $metadata?: { httpStatusCode?: number } }
  return name !== 'NoSuchBucket' && $metadata?.httpStatusCode === 404
}

/** Fills `body` from this place in the file on. */
async function readPart(file: FileHandle, start: number, body: Buffer): Promise<Buffer> {
  for (let bytes = 0; bytes < body.length; ) {
    const { bytesRead } = await file.read(body, bytes, body.length - bytes, start + bytes)
    if (bytesRead === 0) throw new Error('the file has become shorter while it was sent')
    bytes += bytesRead
  }
  return body
}

const md5 = (body: Buffer) => createHash('md5').update(body).digest('hex')
const unquoted = (etag = '') => etag.replaceAll('"', '')

/**
 * The ETag is the MD5 of what was received, unless it is encrypted by a managed key. (The SDK's CRC is checked there.)
 */
function assertReceived({ ETag, ServerSideEncryption }: UploadPartCommandOutput, body: Buffer): void {
  const received = unquoted(ETag)
  if (!ServerSideEncryption?.startsWith('aws:') && /^[0-9a-f]{32}$/.test(received) && received !== md5(body))
    throw new Error('the storage has received other bytes than were sent')
}

function assertUnchanged(sha256: string, expected: StoredObject): void {
  if (sha256 !== expected.sha256) throw new Error('the file has changed while it was sent')
}
