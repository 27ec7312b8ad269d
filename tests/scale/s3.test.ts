// Large artifacts on S3: memory, a SIGKILL in the middle of an upload, and a server on another machine.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { ListMultipartUploadsCommand, ListObjectsV2Command, ListPartsCommand } from '@aws-sdk/client-s3'
import { root } from '../../lib/root.ts'
import { hashFile } from '../../server/platform/storage/durable-files.ts'
import { client, until } from '../support/client.ts'
import { s3Credentials, s3Test, startS3 } from '../support/s3.ts'
import { dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-scale-s3-'))
const folder = (name: string) => path.join(scratch, name)
const worker = path.join(root, 'tests/scale/storage-worker.ts')
const env = { ...process.env, ...s3Credentials }
let s3: Awaited<ReturnType<typeof startS3>>
before(async () => {
  if (!s3Test.skip) s3 = await startS3()
})
after(async () => {
  await s3?.stop()
  rmSync(scratch, { recursive: true, force: true })
})

/** A file of this many MB, which no part repeats. */
function largeFile(dataDir: string, key: string, mb: number): string {
  const file = path.join(dataDir, key)
  mkdirSync(path.dirname(file), { recursive: true })
  const handle = openSync(file, 'w')
  for (let n = 0; n < mb; n++) writeSync(handle, randomBytes(1 << 20))
  closeSync(handle)
  return file
}
const run = (what: string, prefix: string, dataDir: string, key: string) =>
  JSON.parse(
    execFileSync(process.execPath, [worker, what, s3.url(prefix), dataDir, key], { env, encoding: 'utf8' }),
  ) as { before_mb: number; peak_mb: number }

test('1 GB goes up and comes down in less than 200 MB of memory', s3Test, async (context) => {
  const key = 'models/mdl_large/'
  const file = largeFile(folder('a'), `${key}model.gguf`, 1000)
  const up = run('publish', 'large', folder('a'), key)
  const sha256 = await hashFile(file)
  rmSync(file)
  mkdirSync(folder('b'))
  const down = run('fetch', 'large', folder('b'), key)
  assert.equal(await hashFile(path.join(folder('b'), key, 'model.gguf')), sha256)
  context.diagnostic(
    `peak memory of the process: ${up.peak_mb} MB up, ${down.peak_mb} MB down (${up.before_mb} before)`,
  )
  for (const { peak_mb } of [up, down]) assert.ok(peak_mb < 200, `${peak_mb} MB`)
  rmSync(folder('b'), { recursive: true })
})

test(
  'an upload killed in the middle leaves nothing that looks whole, and continues from its parts',
  s3Test,
  async () => {
    const key = 'models/mdl_killed/'
    const file = largeFile(folder('c'), `${key}model.gguf`, 200)
    const child = spawn(process.execPath, [worker, 'publish', s3.url('killed'), folder('c'), key], {
      env,
      stdio: 'ignore',
    })
    const parts = async () => {
      const { Uploads = [] } = await s3.client.send(new ListMultipartUploadsCommand({ Bucket: 'tunery' }))
      const [upload] = Uploads
      if (!upload) return 0
      const at = { Bucket: 'tunery', Key: upload.Key!, UploadId: upload.UploadId! }
      return (await s3.client.send(new ListPartsCommand(at))).Parts?.length ?? 0
    }
    await until('some parts to be there', async () => (await parts()) >= 3)
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
    const kept = await parts()
    assert.ok(kept >= 3 && kept < 25, `${kept} parts`)
    // Another machine finds nothing: no manifest, no object.
    mkdirSync(folder('d'))
    run('fetch', 'killed', folder('d'), key)
    assert.ok(!existsSync(path.join(folder('d'), key)))
    run('publish', 'killed', folder('c'), key)
    assert.equal(await parts(), 0)
    run('fetch', 'killed', folder('d'), key)
    assert.equal(await hashFile(path.join(folder('d'), key, 'model.gguf')), await hashFile(file))
  },
)

test('a machine with the database alone serves, exports and redirects to the bucket', s3Test, async () => {
  const settings = { ...s3Credentials, TUNERY_STORAGE_URL: s3.url('service') }
  const first = dataFolder('s3-first', settings)
  const second = dataFolder('s3-second', settings)
  try {
    const server = await first.start()
    const key = first.key()
    let api = client(server.url, key)
    const csv = ['prompt,completion', ...Array.from({ length: 16 }, (_, n) => `colour ${n}?,blue ${n}`)].join('\n')
    const dataset = (await api.upload(csv, { format: 'csv' })).body.id
    const request = { model_id: tiny, dataset_id: dataset, config: { training_config: { epochs: 2 } } }
    const job = await api.untilEnded((await api.api('POST', '/fine-tuning/jobs', request)).body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const exported = await api.exported({ model: job.model, format: 'gguf', quantization: 'q8_0' })
    await server.end('SIGTERM')
    copyFileSync(path.join(first.dataDir, 'tunery.db'), path.join(second.dataDir, 'tunery.db'))

    const other = await second.start()
    api = client(other.url, key)
    assert.equal((await api.api('GET', `/datasets/${dataset}/rows?limit=1`)).body.items.length, 1)
    const chat = { model: job.model, messages: [{ role: 'user', content: 'colour 1?' }], max_tokens: 2 }
    assert.equal((await api.api('POST', '/chat/completions', chat)).status, 200)
    const url = `${other.url}/exports/${exported.id}/download`
    const headers = { authorization: `Bearer ${key}` }
    const redirect = await fetch(url, { headers, redirect: 'manual' })
    assert.equal(redirect.status, 307)
    assert.ok(redirect.headers.get('location')!.startsWith(s3.endpoint))
    const [file] = exported.files
    const whole = await fetch(url, { headers })
    assert.equal(whole.status, 200)
    const hash = createHash('sha256')
      .update(Buffer.from(await whole.arrayBuffer()))
      .digest('hex')
    assert.equal(hash, file!.sha256)
    // A part of it; and with a condition, which only the service can answer.
    const rest = await fetch(url, { headers: { ...headers, range: 'bytes=100-' } })
    assert.deepEqual([rest.status, Number(rest.headers.get('content-length'))], [206, file!.size_bytes - 100])
    const unchanged = await fetch(url, { headers: { ...headers, 'if-none-match': `"${file!.sha256}"` } })
    assert.equal(unchanged.status, 304)
    // The command line resumes what it has, from the bucket.
    const target = folder('cli')
    const cli = (...words: string[]) =>
      execFileSync(path.join(root, 'tunery'), words, {
        env: { ...second.env, TUNERY_URL: other.url, TUNERY_KEY: key },
        encoding: 'utf8',
      })
    mkdirSync(target)
    const part = path.join(target, `${file!.name}.${file!.sha256.slice(0, 12)}.part`)
    const bytes = Buffer.from(await (await fetch(url, { headers })).arrayBuffer())
    const handle = openSync(part, 'w')
    writeSync(handle, bytes.subarray(0, 1000))
    closeSync(handle)
    cli('export', exported.id, '--output', target)
    assert.ok(readFileSync(path.join(target, file!.name)).equals(bytes))
    await api.api('DELETE', `/exports/${exported.id}`)
    const left = await s3.client.send(
      new ListObjectsV2Command({ Bucket: 'tunery', Prefix: `service/exports/${exported.id}` }),
    )
    assert.equal(left.KeyCount, 0)
    await other.end('SIGTERM')
  } finally {
    first.remove()
    second.remove()
  }
})
