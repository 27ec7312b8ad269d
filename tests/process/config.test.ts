import assert from 'node:assert/strict'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { ConfigError, describeConfig, readConfig } from '../../server/config.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { readPlans } from '../../server/platform/plans.ts'

const tunery = path.join(root, 'tunery')

test('every setting that scripts rely on is accepted, and each has a default', () => {
  const settings = {
    port: ['1', 1, 8000],
    host: ['0.0.0.0', '0.0.0.0', '127.0.0.1'],
    data_dir: ['/x', '/x', path.join(root, 'data')],
    database_url: ['postgres://x', 'postgres://x', undefined],
    redis_url: ['redis://x', 'redis://x', undefined],
    storage_url: ['s3://tunery', 's3://tunery', undefined],
    ray_address: ['http://x', 'http://x', undefined],
    default_tier: ['free', 'free', 'enterprise'],
    webhook_allow: ['127.0.0.0/8:80,[::1]/128:80', '127.0.0.0/8:80,[::1]/128:80', undefined],
    secret_key_file: ['/x/key', '/x/key', undefined],
  } as const
  const environment = Object.fromEntries(
    Object.entries(settings).map(([name, [text]]) => [`TUNERY_${name.toUpperCase()}`, text]),
  )
  const [set, unset] = [readConfig(environment), readConfig({})]
  for (const [name, [, value, standard]] of Object.entries(settings))
    assert.deepEqual([set[name as keyof typeof set], unset[name as keyof typeof set]], [value, standard], name)
  assert.equal(readConfig({}).parse_control_tokens, false)
  assert.equal(readConfig({ TUNERY_PARSE_CONTROL_TOKENS: 'true' }).parse_control_tokens, true)
  assert.throws(() => readConfig({ TUNERY_PARSE_CONTROL_TOKENS: '1' }), /must be true or false/)
})

test('unknown settings and invalid values are reported together', () => {
  assert.throws(
    () => readConfig({ TUNERY_PROT: '1', TUNERY_PORT: 'x', TUNERY_GPU: 'gold' }),
    (error: Error) =>
      error instanceof ConfigError &&
      /TUNERY_PROT/.test(error.message) &&
      /TUNERY_PORT is 'x'/.test(error.message) &&
      /gold/.test(error.message),
  )
})

test('an invalid secret is refused without printing it', () => {
  assert.throws(
    () => readConfig({ TUNERY_HUGGINGFACE_TOKEN: 'sk-secret' }),
    (error: Error) => /HUGGINGFACE_TOKEN .*hf_/.test(error.message) && !error.message.includes('secret'),
  )
})

test('files that settings name are refused by what they are', () => {
  const missing = path.join(os.tmpdir(), 'tunery-no-such-file')
  for (const [file, problem] of [
    [missing, 'does not exist'],
    [root, 'is a folder, not a file'],
  ] as const) {
    const TUNERY_DATABASE_URL = `postgres://h/d?sslmode=verify-full&sslrootcert=${file}`
    assert.throws(() => readConfig({ TUNERY_DATABASE_URL }), {
      message: `TUNERY_DATABASE_URL: the file ${file} of its sslrootcert ${problem}.`,
    })
    assert.throws(() => readPlans(readConfig({ TUNERY_PLANS_FILE: file })), {
      message: `TUNERY_PLANS_FILE: ${file} ${problem}. Set it to a JSON file, or unset it.`,
    })
    assert.throws(() => readUpstreams(file, {}), {
      message: `TUNERY_UPSTREAMS names the file ${file}, which ${problem}. Give a path, or a JSON list.`,
    })
  }
})

test('passwords of their own setting are escaped in their URL, shown nowhere, and set once', () => {
  const password = 'p@ss/w:o#r%d'
  const config = readConfig({
    TUNERY_DATABASE_URL: 'postgres://tunery@db:5432/tunery?sslmode=require',
    TUNERY_DATABASE_PASSWORD: password,
    TUNERY_REDIS_URL: 'redis://redis',
    TUNERY_REDIS_PASSWORD: password,
  })
  assert.equal(config.database_url, 'postgres://tunery:p%40ss%2Fw%3Ao%23r%25d@db:5432/tunery?sslmode=require')
  assert.equal(config.redis_url, 'redis://:p%40ss%2Fw%3Ao%23r%25d@redis')
  assert.doesNotMatch(JSON.stringify(describeConfig(config)), /p@ss|p%40ss/)
  for (const url of ['postgres://u:secret@h/d', 'postgres:///d?host=/run'])
    assert.throws(
      () => readConfig({ TUNERY_DATABASE_URL: url, TUNERY_DATABASE_PASSWORD: password }),
      (error: Error) => /one of them/.test(error.message) && !/secret|p@ss/.test(error.message),
    )
})

const mistakes: [args: string[], says: RegExp][] = [
  [['keys', 'create', '--name', 'x', '--scopes', 'all'], /full, inference, read_only/],
  [['accounts', 'set', 'acc_none', '--tier', 'pro'], /no account 'acc_none'/],
  [['keys', 'create'], /--name/],
  [['accounts', 'create'], /--name/],
  [['accounts', 'suspend'], /its account is missing/],
  [['frobnicate'], /not a command/],
  [['keys', 'create', '--name', 'a\u202eb'], /^--name: has the character U\+202E/],
  [['models', 'add', '../x'], /OWNER\/NAME/],
]

test('the command line lists settings, creates keys and explains mistakes', () => {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-cli-'))
  const env = { ...process.env, TUNERY_DATA_DIR: dataDir }
  try {
    assert.match(execFileSync(tunery, ['config'], { env, encoding: 'utf8' }), /TUNERY_PORT=8000/)
    const key = JSON.parse(
      execFileSync(tunery, ['keys', 'create', '--name', 'ci', '--scopes', 'inference', '--json'], {
        env,
        encoding: 'utf8',
      }),
    )
    assert.match(key.key, /^tny_[0-9A-Za-z]{36}$/)
    assert.match(key.id, /^key_/)
    const run = (...args: string[]) =>
      JSON.parse(execFileSync(tunery, ['accounts', ...args, '--json'], { env, encoding: 'utf8' }))
    const created = run('create', '--name', 'Acme', '--tier', 'free')
    assert.deepEqual([created.account.tier, created.owner.role, created.key.slice(0, 4)], ['free', 'owner', 'tny_'])
    assert.equal(run('set', created.account.id, '--tier', 'pro').tier, 'pro')
    assert.equal(run('suspend', created.account.id).status, 'suspended')
    assert.equal(run('reinstate', created.account.id).status, 'active')
    assert.deepEqual(
      run('list').map(({ name }: { name: string }) => name),
      ['Acme', 'Main account'],
    )
    for (const [args, says] of mistakes.slice(0, process.env.TEST_FULL ? undefined : 2)) {
      const { status, stderr } = spawnSync(tunery, args, { env, encoding: 'utf8' })
      assert.equal(status, 2)
      assert.match(stderr, says)
    }
  } finally {
    rmSync(dataDir, { recursive: true })
  }
})

test('a base model that cannot be added is explained in one sentence and leaves nothing', async () => {
  const models = mkdtempSync(path.join(os.tmpdir(), 'tunery-models-'))
  const answers: Record<string, number> = { none: 404, gated: 403, broken: 500 }
  const hub = http.createServer((request, response) => {
    response.writeHead(answers[/team\/(\w+)/.exec(request.url!)?.[1] ?? 'broken']!).end('{}')
  })
  hub.listen(0, '127.0.0.1')
  await once(hub, 'listening')
  const here = `http://127.0.0.1:${(hub.address() as AddressInfo).port}`
  const add = async (id: string, HF_ENDPOINT: string) => {
    const child = spawn(tunery, ['models', 'add', id], {
      env: { ...process.env, TUNERY_MODELS_DIR: models, HF_ENDPOINT },
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let stderr = ''
    child.stderr.on('data', (text) => (stderr += text))
    const [status] = await once(child, 'close')
    return [status, stderr.trim()] as const
  }
  try {
    const all = await Promise.all([
      add('team/any', 'http://127.0.0.1:59999'),
      add('team/none', here),
      add('team/gated', here),
      add('team/broken', here),
    ])
    for (const [index, says] of [
      /cannot be reached from this machine \(.*REFUSED.*\); .*--from FOLDER\.$/,
      /has no model team\/none/,
      /accept the model's license/,
      /answered 500; try again later, .*--from FOLDER\.$/,
    ].entries()) {
      const [status, said] = all[index]!
      assert.equal(status, 2, said)
      assert.match(said, says)
      assert.match(said, /^team\/\w+ could not be added: .*\.$/)
    }
    assert.deepEqual(readdirSync(models), [])
  } finally {
    hub.close()
    rmSync(models, { recursive: true })
  }
})
