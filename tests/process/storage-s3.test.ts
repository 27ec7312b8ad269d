import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { GetObjectCommand, ListMultipartUploadsCommand, PutObjectCommand, UploadPartCommand } from '@aws-sdk/client-s3'
import { storageError } from '../../server/platform/storage/durable-files.ts'
import { type ObjectStore, openObjectStore } from '../../server/platform/storage/objects/index.ts'
import { collect, testObjectStore } from '../support/object-store.ts'
import { s3Credentials, s3Test, startS3 } from '../support/s3.ts'

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

const { S3Store } = await import('../../server/platform/storage/objects/s3-driver.ts')
let opened = 0
testObjectStore('S3', {
  ...s3Test,
  newlines: false,
  folder,
  open() {
    prefix = `deep/${++opened}/`
    return new S3Store({ kind: 's3', bucket: 'tunery', prefix, endpoint: s3.endpoint, region: 'us-east-1' })
  },
  async corrupt(key) {
    const at = { Bucket: 'tunery', Key: prefix + key }
    const { Metadata } = await s3.client.send(new GetObjectCommand(at))
    await s3.client.send(new PutObjectCommand({ ...at, Body: 'wrong bytes', Metadata }))
  },
})

/** 20 MB in three parts, each of one byte's value. */
function largeFile(...values: number[]): string {
  const file = path.join(folder(), 'large')
  writeFileSync(file, Buffer.concat(values.map((value, n) => Buffer.alloc(n < 2 ? 8 << 20 : 4 << 20, value))))
  return file
}

/** Called with the number of each part that is about to be sent. It may throw; then the part is not. */
let onPart: ((number: string) => void) | undefined
const original = http.request
// Once for all: the SDK keeps the function that it finds first.
http.request = function request(...args: Parameters<typeof original>) {
  const [options] = args as unknown as [{ method?: string; path?: string }]
  const number = /partNumber=(\d+)/.exec(options.path ?? '')?.[1]
  if (options.method === 'PUT' && number) onPart?.(number)
  return original.apply(http, args)
} as typeof original

/** The numbers of the parts that are sent meanwhile. */
async function sendsOf(work: () => Promise<unknown>, fail: (number: string) => void = () => {}): Promise<string[]> {
  const sends: string[] = []
  onPart = (number) => {
    fail(number)
    sends.push(number)
  }
  await work().finally(() => {
    onPart = undefined
  })
  return sends.sort()
}

/** An upload that breaks before its third part. */
const breakUpload = (file: string, key: string) =>
  sendsOf(
    () => assert.rejects(store.put(file, key), /broken/),
    (number) => assert.notEqual(number, '3', 'broken'),
  )
const uploads = async () => (await s3.client.send(new ListMultipartUploadsCommand({ Bucket: 'tunery' }))).Uploads ?? []
const records = () => collect(store.list('incoming/'))

test('a broken upload continues with the parts that are there, and sends a damaged part again', s3Test, async () => {
  const file = largeFile(1, 2, 3)
  const key = 'models/mdl_1/model.gguf'
  assert.deepEqual(await breakUpload(file, key), ['1', '2'])
  const [{ UploadId, Key } = {}] = await uploads()
  const damaged = { UploadId, Key, Bucket: 'tunery', PartNumber: 2, Body: Buffer.alloc(8 << 20, 'damaged') }
  await s3.client.send(new UploadPartCommand(damaged))
  assert.deepEqual(await sendsOf(() => store.put(file, key)), ['2', '3'])
  assert.equal((await store.get(key, `${file}.back`)).sha256, hash('sha256', readFileSync(file)))
  assert.deepEqual([await uploads(), await records()], [[], []])
  // The same again sends nothing.
  assert.deepEqual(await sendsOf(() => store.put(file, key)), [])
})

test('an upload never continues with the parts of other bytes, nor ends with their hash', s3Test, async () => {
  const [first, second] = [largeFile(1, 2, 3), largeFile(1, 5, 6)]
  const key = 'models/mdl_2/model.gguf'
  await breakUpload(first, key)
  assert.deepEqual(await sendsOf(() => store.put(second, key)), ['1', '2', '3'])
  assert.equal((await store.get(key, `${second}.back`)).sha256, hash('sha256', readFileSync(second)))
  assert.deepEqual(await sendsOf(() => store.put(first, key)), ['3'])
  assert.equal((await store.get(key, `${first}.back`)).sha256, hash('sha256', readFileSync(first)))
})

test('of two uploads of the same bytes at once, the one that ends later succeeds too', s3Test, async () => {
  const file = largeFile(1, 2, 4)
  const key = 'models/mdl_3/model.gguf'
  await breakUpload(file, key)
  // S3 answers 404 where an upload has ended; moto's server fails.
  const front = http.createServer((request, response) => {
    const onward = http.request(s3.endpoint + request.url, { method: request.method, headers: request.headers })
    onward.on('response', (answer) => {
      if (answer.statusCode === 500 && /uploadId=/.test(request.url!)) {
        answer.resume()
        response.writeHead(404).end('<Error><Code>NoSuchUpload</Code><Message>ended</Message></Error>')
        return
      }
      response.writeHead(answer.statusCode!, answer.headers)
      answer.pipe(response)
    })
    // The other one ends when this one has found its parts.
    const isLast = /partNumber=3/.test(request.url!)
    if (isLast) other ??= store.put(file, key)
    void (isLast ? other! : Promise.resolve()).then(() => request.pipe(onward))
  })
  let other: Promise<unknown> | undefined
  await once(front.listen(0, '127.0.0.1'), 'listening')
  const { port } = front.address() as AddressInfo
  const late = new S3Store({ kind: 's3', bucket: 'tunery', prefix: 'own/', endpoint: `http://127.0.0.1:${port}` })
  try {
    assert.equal((await late.put(file, key)).sha256, hash('sha256', readFileSync(file)))
    assert.ok(other)
  } finally {
    late.close()
    front.close()
  }
})

test('uploads that never ended are removed, and those begun since stay', s3Test, async () => {
  await breakUpload(largeFile(7, 8, 9), 'models/mdl_4/model.gguf')
  const ofThis = async () => (await uploads()).filter(({ Key }) => Key === 'own/models/mdl_4/model.gguf').length
  await store.removeUnfinished(Date.now() - 60_000)
  assert.equal(await ofThis(), 1)
  await store.removeUnfinished(Date.now() + 60_000)
  assert.deepEqual([await ofThis(), await records()], [0, []])
})

/** A storage that answers each request so. */
async function answering(
  head: (response: http.ServerResponse) => http.ServerResponse,
  work: (store: ObjectStore) => Promise<void>,
) {
  const server = http.createServer((_request, response) => void head(response).end('<ListBucketResult/>'))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  Object.assign(process.env, s3Credentials)
  const there = new S3Store({ kind: 's3', bucket: 'tunery', prefix: '', endpoint: `http://127.0.0.1:${port}` })
  try {
    await work(there)
  } finally {
    there.close()
    server.close()
  }
}

test("presigned URLs begin by the storage's clock", async () => {
  const hourAhead = new Date(Date.now() + 3_600_000)
  await answering(
    (response) => response.setHeader('date', hourAhead.toUTCString()),
    async (there) => {
      await there.check()
      const signed = new URL((await there.presign('exports/exp_1/x', 'x'))!).searchParams.get('X-Amz-Date')!
      const at = Date.parse(signed.replace(/(....)(..)(..T..)(..)(..Z)/, '$1-$2-$3:$4:$5'))
      assert.ok(Math.abs(at - hourAhead.getTime()) < 60_000, signed)
    },
  )
})

test('a storage that refuses the service is an error that says so', () =>
  answering(
    (response) => response.writeHead(403),
    (there) => assert.rejects(there.check(), /refuses .* its rights/),
  ))

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
  const wrong = new S3Store({ kind: 's3', bucket: 'no-such-bucket', prefix: '', endpoint: s3.endpoint })
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
