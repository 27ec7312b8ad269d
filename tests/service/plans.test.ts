// The operator's tiers and prices, and what happens to existing accounts and keys.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { sql } from 'kysely'
import pino from 'pino'
import { scopePresets } from '../../contract/scopes.ts'
import { readConfig } from '../../server/config.ts'
import { Accounts } from '../../server/features/accounts/service.ts'
import { createNotifications } from '../../server/platform/cluster/notifications.ts'
import { up as accounts } from '../../server/platform/db/migrations/0006-accounts.ts'
import { up as exports } from '../../server/platform/db/migrations/0010-exports.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { Limits } from '../../server/platform/limits/service.ts'
import { readPlans } from '../../server/platform/plans.ts'
import { createChanges } from '../../server/platform/redis/changes.ts'
import { startApp } from '../support/service.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-plans-'))
after(() => rmSync(folder, { recursive: true, force: true }))
let files = 0
function fileOf(content: unknown): string {
  const file = path.join(folder, `${++files}.json`)
  writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content))
  return file
}
const plansOf = (content: unknown) => readPlans({ ...readConfig({}), plans_file: fileOf(content) })
const team = { id: 'team', name: 'Team', requests_per_minute: 600, requests_per_day: null, max_concurrent: 8 }

test("tiers and prices of the file are those of the API; the file's omissions keep their defaults", async () => {
  const id = 'HuggingFaceTB/SmolLM2-135M-Instruct'
  const file = fileOf({
    tiers: [team],
    currency: 'EUR',
    default: { input_per_million_tokens: 1, output_per_million_tokens: 2 },
    models: { [id]: { output_per_million_tokens: 3 } },
  })
  const app = await startApp({ TUNERY_PLANS_FILE: file, TUNERY_DEFAULT_TIER: 'team' })
  try {
    assert.deepEqual((await app.api('GET', '/hub/tiers')).body.tiers, [
      { ...team, max_replicas: null, max_event_streams: null, max_storage_mb: null },
    ])
    assert.equal((await app.api('GET', '/user/profile')).body.tier.id, 'team')
    const pricing = async (model: string) => (await app.api('GET', `/hub/models/${model}`)).body.pricing
    const common = { currency: 'EUR', training_per_million_tokens: 0, input_per_million_tokens: 1 }
    assert.deepEqual(await pricing(id), { ...common, output_per_million_tokens: 3 })
    assert.deepEqual(await pricing('Qwen/Qwen2.5-0.5B-Instruct'), { ...common, output_per_million_tokens: 2 })
  } finally {
    await app.stop()
  }
})

test('an invalid file is refused with what is wrong', () => {
  for (const [content, pattern] of [
    ['{', /is not valid JSON/],
    [{ tiers: [] }, /tiers/],
    [{ tiers: [team, team] }, /'team' is in it twice/],
    [{ tiers: [{ ...team, max_concurrent: 0 }] }, /tiers\.0\.max_concurrent/],
    [{ tiers: [{ ...team, max_replicas: -1 }] }, /tiers\.0\.max_replicas/],
    [{ tierz: [team] }, /tierz/],
    [{ currency: 'euro' }, /currency/],
    [{ models: { a: { input_per_million_tokens: -1 } } }, /models\.a/],
  ] as const)
    assert.throws(() => plansOf(content), pattern)
})

test('a tier in use must stay, and the default tier must exist', async () => {
  const data = path.join(folder, 'tiers')
  await ensureOwner(data, {})
  const TUNERY_PLANS_FILE = fileOf({ tiers: [team] })
  await assert.rejects(
    ensureOwner(data, { TUNERY_PLANS_FILE, TUNERY_DEFAULT_TIER: 'team' }),
    /accounts have the tier 'enterprise'/,
  )
  await assert.rejects(
    ensureOwner(path.join(folder, 'other'), { TUNERY_PLANS_FILE }),
    /TUNERY_DEFAULT_TIER is 'enterprise'/,
  )
})

test('the first account and its operator are made together, and once; so is the key that is shown', async () => {
  const data = path.join(folder, 'together')
  const db = await openDatabase(data)
  const [first, second] = [accountsOf(db, data), accountsOf(db, data)]
  const owners = () =>
    db
      .selectFrom('accounts')
      .innerJoin('users', 'users.account_id', 'accounts.id')
      .select(['users.role', 'users.operator'])
      .execute()
  await sql`create trigger refuse before update on users begin select raise(abort, 'refused'); end`.execute(db)
  await assert.rejects(first.ensureOwner(), /refused/)
  assert.deepEqual(await owners(), [])
  await sql`drop trigger refuse`.execute(db)
  await Promise.all([first.ensureOwner(), second.ensureOwner()])
  assert.deepEqual(await owners(), [{ role: 'owner', operator: 1 }])
  // A key that was not shown is none.
  const unseen = () => {
    throw new Error('nowhere to show it')
  }
  await assert.rejects(first.createFirstKey(unseen), /nowhere/)
  const shown: string[] = []
  const show = ({ key }: { key: string }) => shown.push(key)
  assert.deepEqual(await Promise.all([first.createFirstKey(show), second.createFirstKey(show)]), [true, false])
  assert.equal(shown.length, 1)
  await db.destroy()
})

async function ensureOwner(data: string, settings: Record<string, string>): Promise<void> {
  const db = await openDatabase(data)
  try {
    await accountsOf(db, data, settings).ensureOwner()
  } finally {
    await db.destroy()
  }
}

function accountsOf(db: Db, data: string, settings: Record<string, string> = {}): Accounts {
  const config = readConfig({ TUNERY_DATA_DIR: data, ...settings })
  const plans = readPlans(config)
  const log = pino({ level: 'silent' })
  return new Accounts({
    db,
    changes: createChanges(createNotifications(log)),
    plans,
    limits: new Limits({ db, plans, log }),
    defaultTier: config.default_tier,
    log,
  })
}

test('a migration gives full keys the new scopes, and leaves other keys alone', async () => {
  const db = await openDatabase(path.join(folder, 'before'))
  const before = scopePresets.full.filter((scope) => !/^(keys|members|audit|usage|webhooks|exports):/.test(scope))
  // The tables before these migrations.
  await sql`drop table export_events`.execute(db)
  await sql`drop table exports`.execute(db)
  await sql`drop table export_repositories`.execute(db)
  await sql`drop table audit`.execute(db)
  await sql`drop index users_account`.execute(db)
  await sql`drop index api_keys_account`.execute(db)
  for (const [table, column] of [
    ['accounts', 'suspended_at'],
    ['users', 'removed_at'],
    ['api_keys', 'expires_at'],
    ['api_keys', 'revoked_at'],
    ['api_keys', 'last_used_at'],
  ] as const)
    await sql`alter table ${sql.table(table)} drop column ${sql.ref(column)}`.execute(db)
  await sql`insert into accounts (id, name, tier, created_at) values ('acc_1', 'a', 'free', 1)`.execute(db)
  await sql`insert into users (id, account_id, name, role, created_at)
    values ('usr_1', 'acc_1', 'u', 'owner', 1)`.execute(db)
  const insert = (id: string, scopes: readonly string[]) =>
    sql`insert into api_keys (id, account_id, user_id, name, prefix, hash, scopes_json, created_at)
        values (${id}, 'acc_1', 'usr_1', 'k', 'p', 'h', ${JSON.stringify(scopes)}, 1)`.execute(db)
  await insert('key_full', before)
  await insert('key_some', ['inference'])
  await accounts(db as never)
  await exports(db as never)
  const rows = await db.selectFrom('api_keys').select(['id', 'scopes_json']).orderBy('id').execute()
  assert.deepEqual(
    rows.map(({ scopes_json }) => JSON.parse(scopes_json).sort()),
    [[...scopePresets.full].sort(), ['inference']],
  )
  await db.destroy()
})
