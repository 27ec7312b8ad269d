// The whole service on a really full disk: a small tmpfs in the server's own mount namespace.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { client, colourRows, until } from '../support/client.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const unshare = process.getuid?.() === 0 ? ['-m'] : ['-Urm']
const possible = spawnSync('unshare', [...unshare, 'sh', '-c', 'mount -t tmpfs tmpfs /mnt']).status === 0

/** Starts a server on its own small filesystem. */
async function startOnSmallDisk(size_mb: number) {
  const mount = mkdtempSync(path.join(os.tmpdir(), 'tunery-full-'))
  const env = {
    ...process.env,
    TUNERY_DATA_DIR: mount,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'silent',
    TUNERY_MIN_FREE_DISK_MB: '0',
    TUNERY_CHECKPOINT_SECONDS: '1',
  }
  const script = `mount -t tmpfs -o size=${size_mb}m tmpfs "$1" && exec "$2" server/main.ts`
  const server = spawn('unshare', [...unshare, 'sh', '-c', script, 'sh', mount, process.execPath], {
    cwd: root,
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  // The server's data folder as this process sees it.
  const data = `/proc/${server.pid}/root${mount}`
  const file = path.join(data, 'server.json')
  const filler = path.join(data, 'filler')
  await until('the server to listen', () => existsSync(file))
  return {
    ...client(
      JSON.parse(readFileSync(file, 'utf8')).url,
      readFileSync(path.join(data, 'first-key.txt'), 'utf8').trim(),
    ),
    trainers: () =>
      spawnSync('pgrep', ['-P', String(server.pid), '-f', 'trainer.(cli.train|export)'], {
        encoding: 'utf8',
      }).stdout.trim(),
    fill: () => assert.throws(() => writeFileSync(filler, Buffer.alloc(size_mb * 2e6)), /ENOSPC/),
    makeRoom: () => rmSync(filler),
    blocksFree: () => Number(spawnSync('stat', ['-f', '-c', '%a', data], { encoding: 'utf8' }).stdout),
    untilReserved: () =>
      until(
        'the reserve for deletions to be filled',
        () => existsSync(path.join(data, 'reserve')) && statSync(path.join(data, 'reserve')).size === 8 << 20,
      ),
    async stop() {
      server.kill('SIGTERM')
      if (server.exitCode === null) await once(server, 'exit')
      rmSync(mount, { recursive: true, force: true })
    },
  }
}

const skip = !possible && 'this machine does not allow mounting a filesystem'

test('on a full disk writes are refused, nothing is lost, deletions work; with space again writes work', {
  skip,
}, async () => {
  const { api, upload, fill, makeRoom, blocksFree, untilReserved, stop } = await startOnSmallDisk(48)
  try {
    await untilReserved()
    const known = (await upload(colourRows(8))).body.id
    const doomed = (await upload(colourRows(8))).body.id
    const webhook = (await api('POST', '/webhooks', { url: 'https://example.com/', events: ['training.completed'] }))
      .body.id
    const member = (await api('POST', '/members', { name: 'leaving' })).body.id
    fill()
    const createdKeys: string[] = []
    const refused = await until('the database to take no more', async () => {
      const answer = await api('POST', '/keys', { name: `k${createdKeys.length}` })
      if (answer.status !== 201) return answer
      createdKeys.push(answer.body.id)
      return undefined
    })
    assert.deepEqual([refused.status, refused.body.error.code], [503, 'storage_full'])
    const large = await upload(colourRows(2000))
    assert.deepEqual([large.status, large.body.error.code], [503, 'storage_full'])
    assert.equal((await api('GET', `/datasets/${known}`)).status, 200)
    for (const made of createdKeys
      .splice(0, 2)
      .map((id) => `/keys/${id}`)
      .concat(`/webhooks/${webhook}`, `/members/${member}`, `/datasets/${doomed}`)) {
      assert.ok(blocksFree() < 16, 'the disk is full')
      const deleted = await api('DELETE', made)
      assert.equal(deleted.status, 200, `${made}: ${JSON.stringify(deleted.body)}`)
      assert.equal((await api('DELETE', made)).status, 404)
    }
    makeRoom()
    assert.equal((await upload(colourRows(2000))).status, 201)
    assert.equal((await api('POST', '/keys', { name: 'room' })).status, 201)
    const ids: string[] = (await api('GET', '/keys?limit=100')).body.items.map(({ id }: { id: string }) => id)
    for (const id of createdKeys) assert.ok(ids.includes(id), id)
    assert.equal((await api('GET', '/datasets/')).body.items.length, 2)
  } finally {
    await stop()
  }
})

test('a job on a full disk waits and resumes from its checkpoint, an export too; cancel and delete still work', {
  skip,
}, async () => {
  const {
    api,
    upload,
    untilEvent,
    untilEnded,
    events,
    trainColourModel,
    trainers,
    fill,
    makeRoom,
    untilReserved,
    stop,
  } = await startOnSmallDisk(150)
  try {
    const model = await trainColourModel()
    const { id: dataset_id } = (await upload(colourRows(16))).body
    const config = { training_config: { epochs: 50, batch_size: 1 } }
    const { id } = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body
    await untilEvent(id, (event) => event.type === 'checkpoint')
    const made = (await api('POST', '/exports', { model, format: 'gguf' })).body
    await untilEvent(made.id, ({ data }) => data?.status === 'running')
    fill()
    await until('the trainer and the export to give up', () => trainers() === '')
    makeRoom()
    const job = await untilEnded(id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    let resumed: unknown
    for await (const { data } of events(id)) {
      assert.notEqual(data?.code, 'trainer_crashed')
      resumed ??= data?.resumed_from_step
    }
    assert.ok(Number(resumed) > 0)
    let attempts = 0
    for await (const { data } of events(made.id)) attempts = Number(data?.attempt ?? attempts)
    const { status, error } = (await api('GET', `/exports/${made.id}`)).body
    assert.equal(status, 'ready', JSON.stringify(error))
    assert.ok(attempts > 1)
    await untilReserved()
    const next = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id
    fill()
    for (const [method, route] of [
      ['POST', `/fine-tuning/jobs/${next}/cancel`],
      ['DELETE', `/datasets/${dataset_id}`],
      ['DELETE', `/exports/${made.id}`],
      ['DELETE', `/fine-tuning/models/${model}`],
    ] as const) {
      const { status, body } = await api(method, route)
      assert.equal(status, 200, `${route}: ${JSON.stringify(body)}`)
    }
  } finally {
    await stop()
  }
})
