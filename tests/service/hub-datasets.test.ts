// Datasets of the Hugging Face Hub, downloaded from a fake hub: a real HTTP server with the hub's routes.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { after, before, mock, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const rows = (count: number, word: string) =>
  Array.from(
    { length: count },
    (_, i) => `${JSON.stringify({ prompt: `${word} ${i}`, completion: `answer ${i}` })}\n`,
  ).join('')
const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures', name))
const secret = 'hf_of_the_account'

/** repository → revision → file → content */
const repositories: Record<string, Record<string, Record<string, string | Buffer>>> = {
  'team/rows': {
    main: { 'README.md': '#', 'data/train.jsonl': rows(3, 'main'), 'data/test.jsonl': rows(2, 'test') },
    v2: { 'data/train.jsonl': rows(5, 'v2') },
  },
  'team/table': {
    main: {
      'data/train-00000-of-00002.parquet': fixture('messages.parquet'),
      'data/train-00001-of-00002.parquet': fixture('messages.parquet'),
    },
  },
  'team/script': {
    main: { 'load.py': 'import os' },
    'refs/convert/parquet': { 'default/train/0000.parquet': fixture('instruction.parquet') },
  },
  'team/many': { main: { 'en/train.csv': 'prompt,completion\na,b\n', 'de/train.csv': 'prompt,completion\nc,d\n' } },
  'team/private': { main: { 'train.jsonl': rows(4, 'private') } },
  'team/slow': { main: { 'train.jsonl': rows(2, 'slow') } },
  'team/other': { main: { 'train.jsonl': '{"text":"no columns of ours"}\n' } },
}
let seenTokens: string[] = []
let slowAsked = false

const hub = http.createServer((request, response) => {
  const url = new URL(request.url!, 'http://hub')
  const [, api, name, revision, file] =
    /^\/(api\/)?datasets\/(team\/\w+)\/(?:tree|resolve)\/((?:refs\/convert\/parquet)|[^/]+)\/?(.*)$/.exec(
      decodeURIComponent(url.pathname),
    ) ?? []
  const token = request.headers.authorization?.replace('Bearer ', '')
  if (token) seenTokens.push(token)
  const files = repositories[name ?? '']?.[revision ?? '']
  const say = (status: number, body: unknown): void => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
  }
  if (name === 'team/private' && token !== secret) return say(401, { error: 'Unauthorized' })
  if (!files) return say(404, { error: 'Not found' })
  if (api)
    return say(
      200,
      Object.entries(files).map(([path, content]) => ({ type: 'file', path, size: content.length, oid: 'x' })),
    )
  // Never answers: the client must give up.
  if (name === 'team/slow') {
    slowAsked = true
    return
  }
  const content = files[file!]
  if (content === undefined) return say(404, { error: 'Entry not found' })
  const bytes = Buffer.from(content)
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
  const [from, to] = range ? [Number(range[1]), range[2] ? Number(range[2]) : bytes.length - 1] : [0, bytes.length - 1]
  const headers = {
    etag: '"x"',
    'content-length': to - from + 1,
    ...(range && { 'content-range': `bytes ${from}-${to}/${bytes.length}` }),
  }
  response.writeHead(range ? 206 : 200, headers).end(bytes.subarray(from, to + 1))
})

let app: TestApp
before(async () => {
  await new Promise<void>((resolve) => hub.listen(0, '127.0.0.1', resolve))
  app = await startApp({ TUNERY_HUGGINGFACE_URL: `http://127.0.0.1:${(hub.address() as AddressInfo).port}` })
})
after(async () => {
  await app.stop()
  hub.close()
})

const ask = (source: object, fields: Record<string, string> = {}) =>
  app.upload(JSON.stringify(source), { format: 'huggingface', ...fields })
async function fetched(source: object, fields: Record<string, string> = {}) {
  const { status, body } = await ask(source, fields)
  assert.equal(status, 201, JSON.stringify(body))
  assert.equal(body.status, 'ready')
  const lines = readFileSync(path.join(app.dataDir, 'datasets', `${body.id}.rows.jsonl`), 'utf8')
  return lines
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line).messages[0].content as string)
}

test('a split is downloaded in its format, at a revision, from several files in order', async () => {
  assert.deepEqual(await fetched({ repo_id: 'team/rows', split: 'train' }), ['main 0', 'main 1', 'main 2'])
  assert.deepEqual(await fetched({ repo_id: 'team/rows', split: 'test' }), ['test 0', 'test 1'])
  assert.equal((await fetched({ repo_id: 'team/rows', split: 'train', revision: 'v2' })).length, 5)
  const twice = await fetched({ repo_id: 'team/table', split: 'train' })
  assert.equal(twice.length, 4)
  assert.deepEqual(twice.slice(0, 2), twice.slice(2))
  assert.deepEqual(await fetched({ repo_id: 'team/many', split: 'train', config: 'de' }), ['c'])
})

test("for a dataset made by code the hub's parquet conversion is used; its code is never run", async () => {
  assert.equal((await fetched({ repo_id: 'team/script', split: 'train' })).length, 2)
})

test("the account's token is sent to the hub and never stored", async () => {
  const refused = await ask({ repo_id: 'team/private', split: 'train' })
  assert.equal(refused.body.error.code, 'file_not_readable')
  assert.match(refused.body.error.message, /hf_token/)
  seenTokens = []
  assert.equal((await fetched({ repo_id: 'team/private', split: 'train' }, { hf_token: secret })).length, 4)
  assert.ok(seenTokens.length > 0 && seenTokens.every((token) => token === secret))
  assert.equal((await ask({ repo_id: 'team/private', split: 'train' })).status, 400, 'it is not remembered for others')
  const files = readdirSync(app.dataDir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  for (const file of files)
    assert.ok(!readFileSync(path.join(file.parentPath, file.name)).includes(secret), `${file.name} holds the token`)
})

test('deleting a dataset while it is read ends waiting requests, leaves nothing and logs no error', async () => {
  const errors = mock.method(app.services.log, 'error')
  const files = () =>
    readdirSync(app.dataDir, { recursive: true }).filter((name) => String(name).startsWith('datasets/'))
  const before = files()
  const upload = ask({ repo_id: 'team/slow', split: 'train' })
  const slow = await until('the dataset to be there', async () =>
    (await app.api('GET', '/datasets/')).body.items.find(({ status }: { status: string }) => status === 'preparing'),
  )
  await until('its file to be requested', () => slowAsked)
  const waiting = [
    upload,
    app.api('POST', `/datasets/${slow.id}/validate`),
    app.api('GET', `/datasets/${slow.id}/preview`),
    app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: slow.id }),
  ]
  const started = performance.now()
  assert.equal((await app.api('DELETE', `/datasets/${slow.id}`)).status, 200)
  for (const { body } of await Promise.all(waiting))
    assert.equal(body.error?.code, 'dataset_not_found', JSON.stringify(body))
  assert.ok(performance.now() - started < allowed(5000))
  await until('its files to be gone', () => files().length === before.length)
  assert.equal((await fetched({ repo_id: 'team/rows', split: 'train' })).length, 3, 'the same worker continues')
  assert.equal(errors.mock.callCount(), 0)
})

test('a failed download gives the reason and leaves nothing', async () => {
  const expected: [object, RegExp][] = [
    [{ repo_id: 'team/none', split: 'train' }, /has no dataset team\/none/],
    [{ repo_id: 'team/rows', split: 'train', revision: 'v9' }, /revision 'v9'/],
    [{ repo_id: 'team/rows', split: 'dev' }, /no parquet, jsonl or csv file of a split 'dev'/],
    [{ repo_id: 'team/many', split: 'train' }, /several folders/],
    [{ repo_id: 'team/other', split: 'train' }, /must have a column/],
    [{ repo_id: '../../etc/passwd', split: 'train' }, /repo_id/],
    [{ repo_id: 'team/rows', split: 'train', trust_remote_code: true }, /trust_remote_code/],
    [{}, /repo_id/],
  ]
  const before = readdirSync(path.join(app.dataDir, 'datasets')).length
  for (const [source, pattern] of expected) {
    const { status, body } = await ask(source)
    assert.equal(status, 400, JSON.stringify(source))
    assert.match(body.error.message, pattern)
  }
  assert.match((await app.upload('{"repo_id":', { format: 'huggingface' })).body.error.message, /must be JSON/)
  assert.equal(readdirSync(path.join(app.dataDir, 'datasets')).length, before)
})

test('an unreachable hub is reported with a remedy', async () => {
  const alone = await startApp({ TUNERY_HUGGINGFACE_URL: 'http://127.0.0.1:9' })
  const { status, body } = await alone.upload('{"repo_id":"team/rows","split":"train"}', { format: 'huggingface' })
  assert.equal(status, 400)
  assert.match(body.error.message, /could not be fetched .*upload the rows as a file/)
  await alone.stop()
})
