// The whole service on a really full disk: a small tmpfs in the server's own mount namespace.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, rmSync, statSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { colourRows, until } from '../support/client.ts'
import { smallDiskTest, startOnSmallDisk as startServer } from '../support/small-disk.ts'
import { tiny } from '../support/tiny.ts'

/** Starts a server on its own small filesystem. */
async function startOnSmallDisk(size_mb: number) {
  const started = await startServer(size_mb, { TUNERY_CHECKPOINT_SECONDS: '1' })
  const { data } = started
  const filler = path.join(data, 'filler')
  return {
    ...started,
    trainers: () =>
      spawnSync('pgrep', ['-P', String(started.server.pid), '-f', 'trainer.(cli.train|export)'], {
        encoding: 'utf8',
      }).stdout.trim(),
    fill: () => assert.throws(() => writeFileSync(filler, Buffer.alloc(size_mb * 2e6)), /ENOSPC/),
    makeRoom: () => rmSync(filler),
    untilReserved: () =>
      until(
        'the reserve for deletions to be filled',
        () => existsSync(path.join(data, 'reserve')) && statSync(path.join(data, 'reserve')).size === 8 << 20,
      ),
  }
}

const { skip } = smallDiskTest

test('on a full disk writes are refused, nothing is lost, deletions work; with space again writes work', {
  skip,
}, async () => {
  const { api, upload, fill, makeRoom, blocksFree, untilReserved, stop } = await startOnSmallDisk(48)
  try {
    await untilReserved()
    const datasetId = (await upload(colourRows(8))).body.id
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
    assert.equal((await api('GET', `/datasets/${datasetId}`)).status, 200)
    for (const key of createdKeys
      .splice(0, 2)
      .map((id) => `/keys/${id}`)
      .concat(`/webhooks/${webhook}`, `/members/${member}`, `/datasets/${doomed}`)) {
      assert.ok(blocksFree() < 16, 'the disk is full')
      const deleted = await api('DELETE', key)
      assert.equal(deleted.status, 200, `${key}: ${JSON.stringify(deleted.body)}`)
      assert.equal((await api('DELETE', key)).status, 404)
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
    const exported = (await api('POST', '/exports', { model, format: 'gguf' })).body
    await untilEvent(exported.id, ({ data }) => data?.status === 'running')
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
    for await (const { data } of events(exported.id)) attempts = Number(data?.attempt ?? attempts)
    const { status, error } = (await api('GET', `/exports/${exported.id}`)).body
    assert.equal(status, 'ready', JSON.stringify(error))
    assert.ok(attempts > 1)
    await untilReserved()
    const next = (await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id
    fill()
    for (const [method, route] of [
      ['POST', `/fine-tuning/jobs/${next}/cancel`],
      ['DELETE', `/datasets/${dataset_id}`],
      ['DELETE', `/exports/${exported.id}`],
      ['DELETE', `/fine-tuning/models/${model}`],
    ] as const) {
      const { status, body } = await api(method, route)
      assert.equal(status, 200, `${route}: ${JSON.stringify(body)}`)
    }
  } finally {
    await stop()
  }
})
