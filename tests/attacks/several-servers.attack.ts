// Several servers on one Postgres and one storage, while one of them is killed.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { readServerId } from '../../server/platform/cluster/servers.ts'
import { openDatabase } from '../../server/platform/db/open.ts'
import { type Client, client, colourRows, until } from '../support/client.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { type DataFolder, dataFolder } from '../support/server.ts'
import { endless, tiny } from '../support/tiny.ts'

/** Two servers on one Postgres and one storage, of a test. */
async function startBoth(more: Record<string, string> = {}) {
  const shared = mkdtempSync(path.join(os.tmpdir(), 'tunery-attack-shared-'))
  const postgres = await startPostgres()
  const settings = {
    TUNERY_DATABASE_URL: postgres.url,
    TUNERY_STORAGE_URL: `file://${shared}`,
    TUNERY_SECRET_KEY_FILE: path.join(shared, 'secret.key'),
    ...more,
  }
  const folders = ['one', 'two'].map((name) => dataFolder(`attack-${name}`, settings)) as [DataFolder, DataFolder]
  after(async () => {
    for (const folder of folders) folder.remove()
    await postgres.stop()
    rmSync(shared, { recursive: true, force: true })
  })
  return { postgres, folders, servers: [await folders[0].start(), await folders[1].start()] as const }
}

test('the counts of a batch never go back when the server that works on it is killed', postgresTest, async () => {
  const { postgres, folders, servers } = await startBoth()
  const [one] = folders
  const key = one.key()
  const ask = (url: string) => client(url, key).api
  const lines = Array.from({ length: 400 }, (_, index) => {
    const body = { model: tiny, messages: [{ role: 'user', content: `${index}` }], max_tokens: 40, ...endless }
    return JSON.stringify({ custom_id: `line-${index}`, method: 'POST', url: '/v1/chat/completions', body })
  })
  const form = new FormData()
  form.append('purpose', 'batch')
  form.append('file', new Blob([lines.join('\n')]), 'lines.jsonl')
  const headers = { authorization: `Bearer ${key}` }
  const file = await (await fetch(`${servers[0].url}/files`, { method: 'POST', headers, body: form })).json()
  const { body: batch } = await ask(servers[0].url)('POST', '/batches', {
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  const db = await openDatabase('', postgres.url)
  after(() => db.destroy())
  const counts: number[] = []
  const look = async () => {
    const { completed } = await db
      .selectFrom('batches')
      .select('completed')
      .where('id', '=', batch.id)
      .executeTakeFirstOrThrow()
    counts.push(completed)
    return completed
  }
  await until('some lines to be counted', async () => (await look()) > 20)
  const { worker } = await db
    .selectFrom('queue_entries')
    .select('worker')
    .where('ref', '=', batch.id)
    .executeTakeFirstOrThrow()
  // The worker's name begins with its server's id.
  const index = worker!.startsWith(`${readServerId(one.dataDir)}/`) ? 0 : 1
  const left = servers[1 - index]!
  await servers[index]!.end('SIGKILL')
  const ended = await until('the batch to end', async () => {
    await look()
    const { body } = await ask(left.url)('GET', `/batches/${batch.id}`)
    return body.status === 'completed' ? body : undefined
  })
  assert.deepEqual(
    counts,
    counts.toSorted((a, b) => a - b),
  )
  assert.deepEqual(ended.request_counts, { total: 400, completed: 400, failed: 0 })
})

test(
  'of two trainings of an account, one on each server, one gives way to the training of another account',
  postgresTest,
  async () => {
    const { folders, servers } = await startBoth({
      TUNERY_TRAINING_TURN_SECONDS: '4',
      TUNERY_CHECKPOINT_SECONDS: '1',
      TUNERY_DEFAULT_TIER: 'enterprise',
    })
    const [busy, other] = [folders[0].key(), folders[0].tunery('accounts', 'create', '--name', 'other').key!].map(
      (key, index) => client(servers[index]!.url, key),
    ) as [Client, Client]
    const train = async (by: Client, rows: number, epochs: number) => {
      const dataset_id = (await by.upload(colourRows(rows))).body.id
      const config = { training_config: { epochs, batch_size: 1 } }
      const { status, body } = await by.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
      assert.equal(status, 201, JSON.stringify(body))
      return body.id as string
    }
    const long = [await train(busy, 800, 50), await train(busy, 800, 50)]
    await Promise.all(long.map((id) => busy.untilEvent(id, ({ type }) => type === 'metrics')))
    // Both have had their turn.
    const mine = await train(other, 8, 1)
    assert.equal((await other.untilEnded(mine)).status, 'completed')
    for (const id of long) await busy.api('POST', `/fine-tuning/jobs/${id}/cancel`)
    const passed = await Promise.all(
      long.map(async (id) => {
        let count = 0
        for await (const { data } of busy.events(id)) if (data?.code === 'turn_passed') count++
        return count
      }),
    )
    assert.deepEqual(passed.toSorted(), [0, 1])
  },
)

test(
  'the events of a job have each step once and in order when the server that trains it is killed',
  postgresTest,
  async () => {
    const { postgres, folders, servers } = await startBoth({ TUNERY_CHECKPOINT_SECONDS: '1' })
    const key = folders[0].key()
    const by = client(servers[0].url, key)
    const dataset_id = (await by.upload(colourRows(400))).body.id
    const config = { training_config: { epochs: 20, batch_size: 1 } }
    const { body: job } = await by.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
    const db = await openDatabase('', postgres.url)
    after(() => db.destroy())
    const trainingServer = async () => {
      const { worker } = await db
        .selectFrom('queue_entries')
        .select('worker')
        .where('ref', '=', job.id)
        .executeTakeFirstOrThrow()
      return worker!.startsWith(`${readServerId(folders[0].dataDir)}/`) ? 0 : 1
    }
    /** Resolves once the job has reported steps after a checkpoint, which the next server trains again. */
    const untilBeyondCheckpoint = async (url: string, from_seq = 0) => {
      let saved = 0
      for await (const { type, data, seq } of client(url, key).events(job.id, from_seq)) {
        const step = Number(data?.step)
        if (type === 'checkpoint') saved = step
        if (type === 'metrics' && saved > 0 && step > saved) return seq
      }
      throw new Error('the job ended too early')
    }
    await untilBeyondCheckpoint(servers[0].url)
    const killed = await trainingServer()
    const left = servers[1 - killed]!
    await servers[killed]!.end('SIGKILL')
    const one = client(left.url, key)
    const resumed = await one.untilEvent(job.id, ({ data }) => typeof data?.resumed_from_step === 'number')
    await untilBeyondCheckpoint(left.url, resumed.seq)
    await one.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
    const steps: number[] = []
    const losses: number[] = []
    const progress: number[] = []
    for await (const { type, data } of one.events(job.id)) {
      if (type === 'metrics') steps.push(Number(data?.step))
      if (type === 'progress') progress.push(Number(data?.progress))
      for (const [step] of (data?.losses ?? []) as [number, number][]) losses.push(step)
    }
    const isAscending = (values: number[]) => values.every((value, index) => index === 0 || value > values[index - 1]!)
    assert.ok(isAscending(steps), `steps: ${steps}`)
    assert.ok(isAscending(progress), `progress: ${progress}`)
    const expected = Array.from({ length: losses.at(-1)! }, (_, index) => index + 1)
    assert.deepEqual(losses, expected, 'the loss of each step, once')
    assert.ok(steps.at(-1)! > Number(resumed.data!.resumed_from_step))
  },
)
