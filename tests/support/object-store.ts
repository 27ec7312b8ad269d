// What every storage of objects must do, whichever it is.
import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pino from 'pino'
import { createArtifacts } from '../../server/platform/storage/objects/artifacts.ts'
import type { ObjectStore } from '../../server/platform/storage/objects/index.ts'
import { sweep } from '../../server/platform/storage/objects/sweep.ts'

const allOddNames = ['a b+c', 'ä漢字🙂', 'q\'uote"&<x>', 'percent%2Fslash', '#hash?query', 'new\nline', '..dots..']

interface Store {
  /** A folder for the test's files. */
  folder(): string
  open(): ObjectStore
  /** Changes the bytes of an object behind the storage's back. */
  corrupt(key: string): Promise<void>
  skip?: string | boolean
  /** moto's server does not route it. */
  newlines?: boolean
}

/** All that is listed. */
export async function collect<T>(listed: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = []
  for await (const each of listed) all.push(each)
  return all
}

const silent = pino({ level: 'silent' })

export function artifactsOn(store: ObjectStore, dataDir: string, options: Partial<{ cache_mb: number }> = {}) {
  mkdirSync(dataDir, { recursive: true })
  return createArtifacts({ dataDir, store, cache_mb: 1000, min_free_mb: 0, redirect: true, log: silent, ...options })
}

export function write(dataDir: string, key: string, content: string | Buffer): void {
  mkdirSync(path.dirname(path.join(dataDir, key)), { recursive: true })
  writeFileSync(path.join(dataDir, key), content)
}

/** The tests of a driver, and of artifacts on it. */
export function testObjectStore(name: string, { folder, open, corrupt, skip = false, newlines = true }: Store): void {
  const oddNames = allOddNames.filter((odd) => newlines || !odd.includes('\n'))
  const it = (title: string, work: () => Promise<void>) => test(`${name}: ${title}`, { skip }, work)
  const damaged = (pattern: RegExp) => (error: unknown) =>
    (error as { code?: string }).code === 'stored_object_damaged' && pattern.test((error as Error).message)

  it('what is put comes back, whatever its name and size', async () => {
    const store = open()
    const dir = folder()
    for (const [index, odd] of oddNames.entries()) {
      const file = path.join(dir, 'source')
      const bytes = index === 0 ? Buffer.alloc(0) : Buffer.from(`bytes of ${odd}`)
      writeFileSync(file, bytes)
      const stored = await store.put(file, `files/${odd}`)
      assert.deepEqual(await store.head(`files/${odd}`), stored)
      const target = path.join(dir, `target-${index}`)
      assert.deepEqual(await store.get(`files/${odd}`, target), stored)
      assert.ok(readFileSync(target).equals(bytes))
    }
    const listed = (await collect(store.list('files/'))).map(({ key }) => key).sort()
    assert.deepEqual(listed, oddNames.map((odd) => `files/${odd}`).sort())
    await store.remove('files/a b+c')
    await store.remove('files/a b+c')
    assert.equal(await store.head('files/a b+c'), undefined)
    store.close()
  })

  it('a key cannot leave the storage', async () => {
    const store = open()
    for (const key of ['', '/x', 'a//b', '../x', 'a/../../x', 'a/.', 'a\0b'])
      await assert.rejects(
        Promise.resolve().then(() => store.head(key)),
        /is no key/,
      )
    store.close()
  })

  it('a corrupted or missing object is an error that says so, and leaves no file', async () => {
    const store = open()
    const dir = folder()
    write(dir, 'datasets/ds_c.jsonl', 'right bytes')
    await store.put(path.join(dir, 'datasets/ds_c.jsonl'), 'datasets/ds_c.jsonl')
    await corrupt('datasets/ds_c.jsonl')
    const target = path.join(dir, 'fetched')
    await assert.rejects(store.get('datasets/ds_c.jsonl', target), damaged(/ds_c\.jsonl .* damaged: its SHA-256/))
    await assert.rejects(store.get('datasets/ds_none.jsonl', target), damaged(/ds_none\.jsonl .* is missing/))
    assert.ok(!existsSync(target))
    const other = artifactsOn(store, folder())
    await assert.rejects(other.ensureLocal('datasets/ds_c.jsonl'), damaged(/damaged/))
    assert.ok(!existsSync(other.pathOf('datasets/ds_c.jsonl')))
    store.close()
  })

  it('another machine gets a published folder whole, or not at all', async () => {
    const store = open()
    const here = folder()
    const there = folder()
    for (const [index, odd] of oddNames.entries()) write(here, `models/mdl_1/sub/${odd}`, 'x'.repeat(index))
    write(here, 'models/mdl_1/adapter.gguf', 'weights')
    await artifactsOn(store, here).publish('models/mdl_1/')
    const other = artifactsOn(store, there)
    const [first, second] = await Promise.all([other.ensureLocal('models/mdl_1/'), other.ensureLocal('models/mdl_1/')])
    assert.equal(first, second)
    assert.equal(readFileSync(path.join(first, 'adapter.gguf'), 'utf8'), 'weights')
    for (const [index, odd] of oddNames.entries())
      assert.equal(readFileSync(path.join(first, 'sub', odd), 'utf8').length, index)
    // Without its manifest a folder is not there; with a file lost it is damaged.
    write(here, 'models/mdl_2/a', 'a')
    write(here, 'models/mdl_2/b', 'b')
    await artifactsOn(store, here).publish('models/mdl_2/')
    await store.remove('models/mdl_2/b')
    await assert.rejects(other.ensureLocal('models/mdl_2/'), damaged(/mdl_2\/b .* is missing/))
    assert.ok(!existsSync(other.pathOf('models/mdl_2/')))
    await other.remove('models/mdl_1/')
    assert.deepEqual(await collect(store.list('models/mdl_1/')), [])
    assert.ok(!existsSync(first))
    store.close()
  })

  it('two servers that publish and read the same key at once agree', async () => {
    const store = open()
    const folders = [folder(), folder()]
    const content = Buffer.alloc(300_000, 'same')
    for (const each of folders) write(each, 'files/file_two', content)
    await Promise.all(folders.map((each) => artifactsOn(store, each).publish('files/file_two')))
    const readers = Array.from({ length: 4 }, () => artifactsOn(store, folder()))
    for (const file of await Promise.all(readers.map((each) => each.ensureLocal('files/file_two'))))
      assert.ok(readFileSync(file).equals(content))
    store.close()
  })

  it('the sweep removes orphans alone, and none that a server is publishing now', async () => {
    const store = open()
    const dir = folder()
    const live = ['datasets/ds_live.jsonl', 'drafts/mdl_live.bin', 'models/mdl_live/']
    const keys = [...live, ...live.map((key) => key.replace('live', 'orphan'))]
    for (const key of keys) write(dir, key.endsWith('/') ? `${key}f` : key, key)
    const artifacts = artifactsOn(store, dir)
    await artifacts.publish(...keys)
    const options = {
      store,
      staging: path.join(dir, 'fetching'),
      owner: 'installation 1',
      formerOwner: 'acc_1',
      live: async () => new Set(live),
      log: silent,
    }
    assert.deepEqual(await sweep(options), [], 'a young object may get its row in a moment')
    const later = Date.now() + 25 * 3_600_000
    const week = 7 * 24 * 3_600_000
    for (const time of [later, later + week])
      assert.deepEqual(
        await sweep({ ...options, owner: 'other', formerOwner: 'acc_2' }, time),
        [],
        "another installation's are left alone",
      )
    assert.deepEqual(await sweep(options, later), [], 'they are noted first')
    // A database that was behind the storage is restored: its rows name them again.
    const restored = { ...options, live: async () => new Set(keys) }
    assert.deepEqual(await sweep(restored, later + week), [])
    assert.deepEqual(await sweep(options, later + week), [], 'the week begins again')
    assert.deepEqual(await sweep(options, later + week + week / 2), [])
    const removed = await sweep(options, later + 2 * week)
    const mine = removed.filter((key) => /_orphan/.test(key)).sort()
    assert.deepEqual(mine, [
      'datasets/ds_orphan.jsonl',
      'drafts/mdl_orphan.bin',
      'models/mdl_orphan/.tunery-manifest.json',
      'models/mdl_orphan/f',
    ])
    for (const key of ['models/mdl_live/f', 'drafts/mdl_live.bin']) assert.ok(await store.head(key))
    store.close()
  })

  it('the cache keeps its bound, and what is in use or not published stays', async () => {
    const store = open()
    const dir = folder()
    const artifacts = artifactsOn(store, dir, { cache_mb: 1 })
    const names = ['held', 'old', 'older', 'recent', 'unpublished']
    for (const name of names) write(dir, `files/${name}`, Buffer.alloc(400_000, name))
    await artifacts.publish(...names.slice(0, 4).map((name) => `files/${name}`))
    const hold = await artifacts.hold(['files/held'])
    const { utimesSync } = await import('node:fs')
    const age = (name: string, hours: number) => {
      const time = new Date(Date.now() - hours * 3_600_000)
      utimesSync(path.join(dir, 'files', name), time, time)
    }
    for (const [name, hours] of [
      ['held', 9],
      ['older', 8],
      ['old', 7],
      ['unpublished', 10],
    ] as const)
      age(name, hours)
    // What a server that was killed had begun to remove.
    write(dir, 'models/mdl_1.evicted/sub/model.gguf', 'half')
    const running = artifacts.start({
      owner: 'installation 1',
      live: async () => new Set(names.map((name) => `files/${name}`)),
    })
    const here = () => names.filter((name) => existsSync(path.join(dir, 'files', name)))
    const leftover = path.join(dir, 'models/mdl_1.evicted')
    for (let tries = 0; (here().length > 3 || existsSync(leftover)) && tries < 500; tries++) await sleep(10)
    assert.ok(!existsSync(leftover))
    assert.deepEqual(here(), ['held', 'recent', 'unpublished'])
    assert.equal(readFileSync(await artifacts.ensureLocal('files/old'))[0], 'o'.charCodeAt(0), 'it comes back')
    hold.release()
    await running.close()
    store.close()
  })
}
