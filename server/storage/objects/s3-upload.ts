// Uploads to a bucket, in parts where the file is large. The SDK's own uploader (lib-storage) cannot go on with the
// parts of a broken upload, so this lists them and sends what is missing.
import { createHash } from 'node:crypto'
import type { FileHandle } from 'node:fs/promises'
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  ListPartsCommand,
  PutObjectCommand,
  type S3Client,
  UploadPartCommand,
  type UploadPartCommandOutput,
} from '@aws-sdk/client-s3'
import type { StoredObject } from './store.ts'

/** Parts in memory at once. */
const concurrency = 3
const minPart_bytes = 8 << 20
/** S3 takes 10,000 parts. */
const maxParts = 9000

interface Place {
  Bucket: string
  Key: string
}
type Part = { number: number; etag: string; size_bytes: number }

/** Sends the file. Throws if the storage has other bytes than were read, or if the file has changed meanwhile. */
export async function upload(client: S3Client, at: Place, file: FileHandle, expected: StoredObject): Promise<void> {
  const { size_bytes, sha256 } = expected
  const described = { ...at, Metadata: { sha256 }, ContentType: 'application/octet-stream' }
  if (size_bytes <= minPart_bytes) {
    const body = await readPart(file, 0, Buffer.allocUnsafe(size_bytes))
    assertUnchanged(createHash('sha256').update(body).digest('hex'), expected)
    return assertReceived(await client.send(new PutObjectCommand({ ...described, Body: body })), body)
  }
  const partBytes = Math.max(minPart_bytes, Math.ceil(size_bytes / maxParts / (1 << 20)) * (1 << 20))
  const found = await findUnfinished(client, at)
  const uploadId = found?.id ?? (await client.send(new CreateMultipartUploadCommand(described))).UploadId!
  const there = new Map(found?.parts.map((each) => [each.number, each]))
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
    const known = there.get(number)
    if (known && known.size_bytes === body.length && known.etag === md5(body)) {
      done.push(known)
      free.push(buffer)
      continue
    }
    const sent = client
      .send(new UploadPartCommand({ ...at, UploadId: uploadId, PartNumber: number, Body: body }))
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
  // The parts stay: the next attempt goes on from them.
  if (failure !== undefined) throw failure
  try {
    assertUnchanged(hash.digest('hex'), expected)
  } catch (error) {
    await client.send(new AbortMultipartUploadCommand({ ...at, UploadId: uploadId })).catch(() => {})
    throw error
  }
  done.sort((a, b) => a.number - b.number)
  const Parts = done.map(({ number, etag }) => ({ PartNumber: number, ETag: `"${etag}"` }))
  await client.send(new CompleteMultipartUploadCommand({ ...at, UploadId: uploadId, MultipartUpload: { Parts } }))
}

/** The newest unfinished upload of this key, with its parts. */
async function findUnfinished(client: S3Client, at: Place): Promise<{ id: string; parts: Part[] } | undefined> {
  const { Uploads = [] } = await client.send(
    new ListMultipartUploadsCommand({ Bucket: at.Bucket, Prefix: at.Key, EncodingType: 'url' }),
  )
  const [newest] = Uploads.filter(({ Key = '' }) => decodeURIComponent(Key.replaceAll('+', ' ')) === at.Key).sort(
    (a, b) => (b.Initiated?.getTime() ?? 0) - (a.Initiated?.getTime() ?? 0),
  )
  if (!newest?.UploadId) return undefined
  const parts: Part[] = []
  for (let marker: string | undefined; ; ) {
    const page = await client.send(
      new ListPartsCommand({ ...at, UploadId: newest.UploadId, ...(marker && { PartNumberMarker: marker }) }),
    )
    for (const { PartNumber = 0, ETag, Size = -1 } of page.Parts ?? [])
      parts.push({ number: PartNumber, etag: unquoted(ETag), size_bytes: Size })
    marker = page.NextPartNumberMarker
    if (!page.IsTruncated || !marker) return { id: newest.UploadId, parts }
  }
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

/** The ETag is the MD5 of what was received, unless it is encrypted by a managed key. (The SDK's CRC is checked there.) */
function assertReceived({ ETag, ServerSideEncryption }: UploadPartCommandOutput, body: Buffer): void {
  const received = unquoted(ETag)
  if (!ServerSideEncryption?.startsWith('aws:') && /^[0-9a-f]{32}$/.test(received) && received !== md5(body))
    throw new Error('the storage has received other bytes than were sent')
}

function assertUnchanged(sha256: string, expected: StoredObject): void {
  if (sha256 !== expected.sha256) throw new Error('the file has changed while it was sent')
}
