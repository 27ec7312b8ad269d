import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import {
  CreateMultipartUploadCommand,
  GetObjectCommand,
  ListMultipartUploadsCommand,
  PutObjectCommand,
  UploadPartCommand,
} from '@aws-sdk/client-s3'
import { storageError } from '../../server/storage/durable-files.ts'
import { type ObjectStore, openObjectStore } from '../../server/storage/objects/index.ts'
import { testObjectStore } from '../support/object-store.ts'
import { s3Test, startS3 } from '../support/s3.ts'

const root = mkdtempSync(path.join(os.tmpdir(), 'tunery-s3-'))
const folder = () => mkdtempSync(path.join(root, 'f-'))
let s3: Awaited<ReturnType<typeof startS3>>
let store: ObjectStore
let prefix = ''
before(async () => {
  if (s3Test.skip) return
  s3 = await startS3()
  store = await openObjectStore(s3.url('own'))
})
after(async () => {
  store?.close()
  await s3?.stop()
  rmSync(root, { recursive: true, force: true })
})

const { createS3Store } = await import('../../server/storage/objects/s3-driver.ts')
let opened = 0
testObjectStore('S3', {
  ...s3Test,
  newlines: false,
  folder,
  open() {
    prefix = `deep/${++opened}/`
    return createS3Store({ kind: 's3', bucket: 'tunery', prefix, endpoint: s3.endpoint, region: 'us-east-1' })
  },
  async corrupt(key) {
    const at = { Bucket: 'tunery', Key: prefix + key }
    const { Metadata } = await s3.client.send(new GetObjectCommand(at))
    await s3.client.send(new PutObjectCommand({ ...at, Body: 'wrong bytes', Metadata }))
  },
})

/** 20 MB in three parts, of which each differs. */
function largeFile(): string {
  const file = path.join(folder(), 'large')
  writeFileSync(file, Buffer.concat([1, 2, 3].map((each) => Buffer.alloc(each < 3 ? 8 << 20 : 4 << 20, each))))
  return file
}
const at = { Bucket: 'tunery', Key: 'own/models/mdl_1/model.gguf' }

test('a broken upload goes on with the parts that are there, and sends a damaged part again', s3Test, async () => {
  const file = largeFile()
  const bytes = readFileSync(file)
  const metadata = { Metadata: { sha256: (await import('node:crypto')).hash('sha256', bytes) } }
  const { UploadId } = await s3.client.send(new CreateMultipartUploadCommand({ ...at, ...metadata }))
  const part = (PartNumber: number, Body: Buffer) =>
    s3.client.send(new UploadPartCommand({ ...at, UploadId, PartNumber, Body }))
  await part(1, bytes.subarray(0, 8 << 20))
  await part(2, Buffer.alloc(8 << 20, 'damaged'))
  const { sends } = await countingParts(() => store.put(file, 'models/mdl_1/model.gguf'))
  assert.deepEqual(sends, ['2', '3'])
  assert.equal((await store.get('models/mdl_1/model.gguf', `${file}.back`)).sha256, metadata.Metadata.sha256)
  const { Uploads = [] } = await s3.client.send(new ListMultipartUploadsCommand({ Bucket: 'tunery' }))
  assert.deepEqual(Uploads, [])
  // The same again sends nothing.
  assert.deepEqual((await countingParts(() => store.put(file, 'models/mdl_1/model.gguf'))).sends, [])
})

/** The numbers of the parts that were sent meanwhile. */
async function countingParts(work: () => Promise<unknown>): Promise<{ sends: string[] }> {
  const http = await import('node:http')
  const sends: string[] = []
  const original = http.default.request
  http.default.request = function request(...args: Parameters<typeof original>) {
    const [options] = args as unknown as [{ method?: string; path?: string }]
    const number = /partNumber=(\d+)/.exec(options.path ?? '')?.[1]
    if (options.method === 'PUT' && number) sends.push(number)
    return original.apply(http.default, args)
  } as typeof original
  try {
    await work()
  } finally {
    http.default.request = original
  }
  return { sends: sends.sort() }
}

test('a presigned URL downloads a range, under the name that it gives', s3Test, async () => {
  const file = path.join(folder(), 'x')
  writeFileSync(file, '0123456789')
  await store.put(file, 'exports/exp_1/ä model.gguf')
  const url = await store.presign('exports/exp_1/ä model.gguf', 'ä model.gguf')
  const answer = await fetch(url!, { headers: { range: 'bytes=4-' } })
  assert.equal(answer.status, 206)
  assert.equal(await answer.text(), '456789')
  assert.match(answer.headers.get('content-disposition') ?? '', /filename\*=UTF-8''%C3%A4%20model\.gguf/)
})

test('a storage that is away is a 503, and used again when it is back', s3Test, async () => {
  const away = (error: unknown) => storageError(error)?.code === 'storage_unavailable'
  const wrong = createS3Store({ kind: 's3', bucket: 'no-such-bucket', prefix: '', endpoint: s3.endpoint })
  await assert.rejects(wrong.check(), away)
  const file = path.join(folder(), 'x')
  writeFileSync(file, 'x')
  await assert.rejects(wrong.put(file, 'files/x'), away)
  wrong.close()
  await s3.kill()
  await assert.rejects(store.head('files/x'), away)
  await assert.rejects(store.put(file, 'files/x'), away)
  await assert.rejects(store.get('files/x', `${file}.back`), away)
  await s3.restart()
  await store.put(file, 'files/x')
  assert.equal((await store.head('files/x'))?.size_bytes, 1)
})
