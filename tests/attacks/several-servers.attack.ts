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
