import assert from 'node:assert/strict'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { parseStorageUrl } from '../../lib/storage-url.ts'
import type { Artifact } from '../../server/features/models/artifacts.ts'
import { moveToModels } from '../../server/features/models/artifacts.ts'
import { copyArtifacts } from '../../server/maintenance/migrate/files.ts'
import { hashTree, storageError } from '../../server/platform/storage/durable-files.ts'
import { FileStore } from '../../server/platform/storage/objects/file-driver.ts'
import { writeFolderManifest } from '../../server/platform/storage/objects/folder-manifest.ts'
import { artifactsOn, collect, testObjectStore, write } from '../support/object-store.ts'

const root = mkdtempSync(path.join(os.tmpdir(), 'tunery-objects-'))
after(() => rmSync(root, { recursive: true, force: true }))
const folder = () => mkdtempSync(path.join(root, 'f-'))
/** A folder on another volume than temporary files are. */
const otherVolume = {
  folder: '/dev/shm',
  skip:
    existsSync('/dev/shm') && statSync('/dev/shm').dev !== statSync(root).dev ? false : '/dev/shm is no other volume',
}
let shared = ''

testObjectStore('folder', {
  folder,
  open() {
    shared = folder()
    return new FileStore(shared)
  },
  corrupt: async (key) => writeFileSync(path.join(shared, 'objects', key), 'wrong bytes'),
})

test('a storage that is away is a 503, not an empty storage', async () => {
  const store = new FileStore(path.join(root, 'not-mounted'))
  const away = (error: unknown) => storageError(error)?.code === 'storage_unavailable'
  await assert.rejects(store.head('files/x'), away)
  await assert.rejects(store.check(), away)
  await assert.rejects(collect(store.list('files/')), away)
  const artifacts = artifactsOn(store, folder())
  write(artifacts.pathOf(''), 'files/x', 'x')
  await assert.rejects(artifacts.publish('files/x'), away)
  await assert.rejects(artifacts.ensureLocal('files/y'), away)
  assert.match((await artifacts.problem()) ?? '', /shared storage .* is away/)
  // What is here is served, and a deletion continues.
  assert.ok(await artifacts.ensureLocal('files/x'))
  await artifacts.remove('files/x')
})

test('a move to a disk that is too small keeps what it has moved', async () => {
  const [source, target] = [new FileStore(folder()), folder()]
  const file = path.join(folder(), 'x')
  writeFileSync(file, 'x')
  const { sha256 } = await source.put(file, 'files/first')
  await source.put(file, 'models/second/model.gguf')
  // More bytes than any disk has free.
  const manifest = path.join(folder(), 'manifest')
  await writeFolderManifest(manifest, [{ path: 'model.gguf', size_bytes: Number.MAX_SAFE_INTEGER, sha256 }])
  await source.put(manifest, 'models/second/.tunery-manifest.json')
  const artifacts = ['files/first', 'models/second/'].map((key) => ({
    key,
    owner: 'test',
    required: true,
    hashes: new Map<string, string>(),
  }))
  await copyArtifacts(artifacts, { dataDir: '', store: source }, { dataDir: target }, folder(), ({ key }) => {
    // Moved an hour ago.
    if (key === 'files/first') utimesSync(path.join(target, key), Date.now() / 1000 - 3600, Date.now() / 1000 - 3600)
  })
  assert.ok(existsSync(path.join(target, 'files/first')))
})

// The Helm chart mounts models/ from the claim that engines read.
test('models may be on another volume than the rest of the data folder', { skip: otherVolume.skip }, async () => {
  const volume = mkdtempSync(path.join(otherVolume.folder, 'tunery-volume-'))
  try {
    const [here, there] = [folder(), folder()]
    for (const store of [here, there]) {
      mkdirSync(path.join(volume, path.basename(store)))
      symlinkSync(path.join(volume, path.basename(store)), path.join(store, 'models'))
    }
    write(here, 'runs/job_1/1/adapter/adapter.safetensors', 'weights')
    write(here, 'runs/job_1/1/adapter.gguf', 'gguf')
    write(here, 'runs/job_1/1/probe.json', '{}')
    const trained = (name: string) => path.join(here, 'runs/job_1/1', name)
    const artifact = { kind: 'adapter', folder: trained('adapter'), gguf: trained('adapter.gguf') } as const
    const { id, size_bytes, folder_sha256 } = await moveToModels(here, {
      ...artifact,
      probe: trained('probe.json'),
    } as Artifact)
    assert.equal(size_bytes, 'weights'.length + 'gguf'.length + 2)
    assert.deepEqual([readdirSync(path.join(here, 'models')), readdirSync(trained(''))], [[id], []])
    const store = new FileStore(folder())
    await artifactsOn(store, here).publish(`models/${id}/`)
    await artifactsOn(store, there).ensureLocal(`models/${id}/`)
    assert.equal(readFileSync(path.join(there, 'models', id, 'adapter/adapter.safetensors'), 'utf8'), 'weights')
    assert.deepEqual(readdirSync(path.join(there, 'models')), [id])
    assert.equal((await hashTree(path.join(there, 'models', id, 'adapter'))).sha256, folder_sha256)
  } finally {
    rmSync(volume, { recursive: true })
  }
})

test('a URL says which storage; a wrong one says what is wrong', () => {
  assert.deepEqual(parseStorageUrl('s3://my-bucket/a/b/?endpoint=http://127.0.0.1:9000/&region=eu-west-1'), {
    kind: 's3',
    bucket: 'my-bucket',
    prefix: 'a/b/',
    endpoint: 'http://127.0.0.1:9000',
    region: 'eu-west-1',
  })
  assert.deepEqual(parseStorageUrl('file:///srv/a%20b/'), { kind: 'file', folder: '/srv/a b' })
  for (const [url, says] of [
    ['my-bucket', /is not a URL/],
    ['s3://x', /is not s3:/],
    ['s3://key:secret@bucket', /must not hold credentials/],
    ['s3://bucket?endpiont=http://x', /unknown option 'endpiont'/],
    ['s3://bucket?endpoint=x', /endpoint that is not http/],
    ['file:///', /is not a folder/],
    ['file://host/x', /is not a folder/],
    ['https://bucket.example.com', /is not s3/],
  ] as const)
    assert.throws(() => parseStorageUrl(url), says, url)
})
