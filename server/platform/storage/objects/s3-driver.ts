// Objects in a bucket. Loaded only where TUNERY_STORAGE_URL names one: the SDK would slow every other start.
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { open, rm } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import {
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  S3Client,
  type S3ClientConfig,
} from '@aws-sdk/client-s3'
import { getSignedUrl } from '@aws-sdk/s3-request-presigner'
import { ApiError } from '../../../../contract/errors.ts'
import type { StorageTarget } from '../../../../lib/storage-url.ts'
import { hashFile, storageAway, syncPath } from '../durable-files.ts'
import { type Bucket, isMissing, isSuperseded, removeUnfinished, upload } from './s3-upload.ts'
import { assertKey, awayError, hashError, missingError, type ObjectStore, type StoredObject } from './store.ts'

/** How long a presigned URL may be used to begin a download. */
const presigned_s = 3600
/** Most breaks of one download without a byte in between. */
const maxBreaks = 5

export class S3Store implements ObjectStore {
  readonly name: string
  private readonly bucket: Bucket
  // Clients may reach the storage by another address than the service; signatures hold the host.
  private readonly signer: S3Client

  constructor(target: Extract<StorageTarget, { kind: 's3' }>) {
    const { bucket, prefix, endpoint, public_endpoint } = target
    this.name = `s3://${bucket}/${prefix}`
    const client = new S3Client(clientConfig(target, endpoint))
    this.bucket = { client, bucket, prefix }
    this.signer = public_endpoint ? new S3Client(clientConfig(target, public_endpoint)) : client
  }

  put(file: string, key: string): Promise<StoredObject> {
    return this.using(async () => {
      const sha256 = await hashFile(file)
      const there = await this.head(key)
      const handle = await open(file, 'r')
      try {
        const { size } = await handle.stat()
        const stored = { size_bytes: size, sha256 }
        if (there?.sha256 === sha256 && there.size_bytes === size) return stored
        for (const resume of [true, false]) {
          // Another upload of the same bytes may end first. A new one has its parts for itself.
          await upload(this.bucket, key, handle, stored, resume).catch((error) => {
            if (!resume || !isSuperseded(error)) throw error
          })
          const result = await this.head(key)
          if (result?.size_bytes === size && result.sha256 === sha256) return stored
        }
        throw new Error(`${key} is not in the storage as it was sent`)
      } finally {
        await handle.close()
      }
    })
  }

  get(key: string, file: string): Promise<StoredObject> {
    return this.using(async () => {
      const state: Download = { bytes: 0, hash: createHash('sha256'), etag: undefined, sha256: '' }
      try {
        const { size_bytes: size } = (await this.head(key)) ?? { size_bytes: -1 }
        if (size < 0) throw missingError(key)
        for (let breaks = 0; ; ) {
          const before = state.bytes
          try {
            if (size > 0 || before === 0) await this.receive(key, file, state)
            if (state.bytes >= size) break
            throw new Error('the answer ended early')
          } catch (error) {
            if (isMissing(error)) throw missingError(key)
            if (isLocal(error)) throw error
            breaks = state.bytes > before ? 1 : breaks + 1
            if (breaks > maxBreaks) throw error
          }
        }
        const sha256 = state.hash.digest('hex')
        if (sha256 !== state.sha256) throw hashError(key, sha256, state.sha256 || '(not kept)')
        await syncPath(file)
        return { size_bytes: state.bytes, sha256 }
      } catch (error) {
        await rm(file, { force: true })
        throw error
      }
    })
  }

  head(key: string): Promise<StoredObject | undefined> {
    return this.using(async () => {
      try {
        const { ContentLength = 0, Metadata } = await this.bucket.client.send(new HeadObjectCommand(this.at(key)))
        return { size_bytes: ContentLength, sha256: Metadata?.sha256 ?? '' }
      } catch (error) {
        if (isMissing(error)) return undefined
        throw error
      }
    })
  }

  async *list(within: string): ReturnType<ObjectStore['list']> {
    for (let token: string | undefined; ; ) {
      const page = await this.using(() =>
        this.bucket.client.send(
          new ListObjectsV2Command({
            Bucket: this.bucket.bucket,
            Prefix: this.bucket.prefix + within,
            // Otherwise XML could not hold every character.
            EncodingType: 'url',
            ...(token !== undefined && { ContinuationToken: token }),
          }),
        ),
      )
      for (const { Key = '', Size = 0, LastModified } of page.Contents ?? [])
        yield {
          key: decodeKey(Key).slice(this.bucket.prefix.length),
          size_bytes: Size,
          modified_at: LastModified?.getTime() ?? Date.now(),
        }
      token = page.NextContinuationToken
      if (!page.IsTruncated || token === undefined) return
    }
  }

  remove(key: string): Promise<void> {
    return this.using(async () => void (await this.bucket.client.send(new DeleteObjectCommand(this.at(key)))))
  }

  presign(key: string, filename: string): Promise<string> {
    return this.using(() =>
      getSignedUrl(
        this.signer,
        new GetObjectCommand({
          ...this.at(key),
          ResponseContentDisposition: `attachment; filename*=UTF-8''${encodeName(filename)}`,
          ResponseContentType: 'application/octet-stream',
          ResponseCacheControl: 'private, no-cache',
        }),
        // By the storage's clock, which the client knows from the answers that it got.
        { expiresIn: presigned_s, signingDate: new Date(Date.now() + this.bucket.client.config.systemClockOffset) },
      ),
    )
  }

  removeUnfinished(before: number): Promise<void> {
    return this.using(() => removeUnfinished(this.bucket, before))
  }

  check(): Promise<void> {
    return this.using(
      async () =>
        void (await this.bucket.client.send(
          new ListObjectsV2Command({ Bucket: this.bucket.bucket, Prefix: this.bucket.prefix, MaxKeys: 1 }),
        )),
    )
  }

  close(): void {
    this.bucket.client.destroy()
    if (this.signer !== this.bucket.client) this.signer.destroy()
  }

  private at(key: string) {
    assertKey(key)
    return { Bucket: this.bucket.bucket, Key: this.bucket.prefix + key }
  }

  /** Errors of the storage under one code; those of the API and of local files as they are. */
  private async using<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      // Errors of local files name their path.
      if (error instanceof ApiError || (error as { path?: unknown }).path !== undefined) throw error
      if ((error as { code?: unknown }).code === storageAway) throw error
      throw isRefused(error) ? refusedError(this.name, error) : awayError(this.name, error)
    }
  }

  /** Downloads from `state.bytes` on. Resolves when the object has ended. */
  private async receive(key: string, file: string, state: Download): Promise<void> {
    const { Body, ETag, Metadata } = await this.bucket.client.send(
      new GetObjectCommand({
        ...this.at(key),
        ...(state.bytes > 0 && { Range: `bytes=${state.bytes}-`, IfMatch: state.etag }),
      }),
    )
    state.etag = ETag
    state.sha256 = Metadata?.sha256 ?? ''
    async function* metered(chunks: AsyncIterable<Buffer>) {
      for await (const chunk of chunks) {
        yield chunk
        state.hash.update(chunk)
        state.bytes += chunk.length
      }
    }
    // What the last attempt wrote beyond the hashed bytes is overwritten.
    const output = createWriteStream(file, { flags: state.bytes > 0 ? 'r+' : 'w', start: state.bytes, mode: 0o600 })
    await pipeline(Body as Readable, metered, output)
  }
}

interface Download {
  bytes: number
  hash: ReturnType<typeof createHash>
  etag: string | undefined
  sha256: string
}

function clientConfig({ region }: { region?: string }, endpoint: string | undefined): S3ClientConfig {
  const fallback = process.env.AWS_REGION ?? process.env.AWS_DEFAULT_REGION ?? 'us-east-1'
  return {
    region: region ?? fallback,
    ...(endpoint !== undefined && { endpoint, forcePathStyle: true }),
    maxAttempts: 3,
    requestHandler: { connectionTimeout: 5000, socketTimeout: 30_000 },
  }
}

/** Keys come as in a form: a plus is a space. */
const decodeKey = (key: string) => decodeURIComponent(key.replaceAll('+', ' '))

const encodeName = (name: string) =>
  encodeURIComponent(name).replace(/['()*]/g, (character) => `%${character.charCodeAt(0).toString(16)}`)

/** Whether the local disk failed, not the storage. */
const isLocal = (error: unknown) =>
  ['ENOSPC', 'EDQUOT', 'EIO', 'EROFS'].includes((error as { code?: string }).code ?? '')

const isRefused = (error: unknown) =>
  [401, 403].includes((error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode ?? 0)

/** A storage that refuses is as useless as one that is away, but the operator can mend it. */
const refusedError = (storage: string, cause: unknown): Error => {
  const { name, message } = cause as Error
  return Object.assign(
    new Error(
      `the storage ${storage} refuses a request of the service (${name}: ${message}): its credentials, its rights ` +
        "(docs/postgres-redis-s3.md, S3) or this machine's clock are wrong",
      { cause },
    ),
    { code: storageAway },
  )
}
