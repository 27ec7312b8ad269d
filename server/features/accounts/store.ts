import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { countRows, newestFirst } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type AccountRow = Row<'accounts'>
export type UserRow = Row<'users'>
export type KeyRow = Row<'api_keys'>
type Any = Queryable

export const insertAccount = (trx: Trx, account: NewRow<'accounts'>) =>
  trx.insertInto('accounts').values(account).execute()
export const findAccount = (db: Any, account_id: string) =>
  db.selectFrom('accounts').selectAll().where('id', '=', account_id).executeTakeFirst()
export const anyAccount = async (db: Any) =>
  (await db.selectFrom('accounts').select('id').limit(1).executeTakeFirst()) !== undefined
export const updateAccount = (trx: Trx, id: string, values: Partial<AccountRow>) =>
  trx.updateTable('accounts').set(values).where('id', '=', id).execute()
export const accounts = (db: Db, limit: number, after: AccountRow | undefined): Promise<AccountRow[]> =>
  newestFirst(db.selectFrom('accounts').selectAll(), limit, after)
export const tiersInUse = async (db: Db) =>
  (await db.selectFrom('accounts').select('tier').distinct().execute()).map(({ tier }) => tier)

const members = (db: Any, account_id: string) =>
  db.selectFrom('users').selectAll().where('account_id', '=', account_id).where('removed_at', 'is', null)
export const insertUser = (trx: Trx, user: NewRow<'users'>) => trx.insertInto('users').values(user).execute()
export const updateUser = (trx: Trx, id: string, values: Partial<UserRow>) =>
  trx.updateTable('users').set(values).where('id', '=', id).execute()
export const findMember = (db: Any, account_id: string, id: string) =>
  members(db, account_id).where('id', '=', id).executeTakeFirst()
export const listMembers = (
  db: Db,
  account_id: string,
  limit: number,
  after: UserRow | undefined,
): Promise<UserRow[]> => newestFirst(members(db, account_id), limit, after)
export const otherOwner = async (db: Any, account_id: string, id: string) =>
  (await members(db, account_id).where('role', '=', 'owner').where('id', '!=', id).limit(1).executeTakeFirst()) !==
  undefined
export const emailTaken = async (db: Any, account_id: string, email: string, by_other_than: string) =>
  (await members(db, account_id).where('email', '=', email).where('id', '!=', by_other_than).executeTakeFirst()) !==
  undefined
/** Other members who have entered an email that is not proven to be theirs. */
export const unprovenHolders = (db: Any, account_id: string, email: string, except: string) =>
  members(db, account_id)
    .where('email', '=', email)
    .where('email_accepted_at', 'is', null)
    .where('id', '!=', except)
    .execute()
export const countMembers = (db: Any, account_id: string) => countRows(members(db, account_id))
const owners = (db: Any) =>
  db
    .selectFrom('users')
    .selectAll()
    .where('role', '=', 'owner')
    .where('removed_at', 'is', null)
    .orderBy('created_at')
    .limit(1)
/** The first owner of the installation, for whom the command line creates keys. */
export const firstOwner = (db: Any) => owners(db).executeTakeFirst()
/** The operator of the installation: none if they were removed, or are no owner any more. */
export const operatorUser = (db: Any) => owners(db).where('operator', '=', 1).executeTakeFirst()
export const findUserUnscoped = (db: Any, id: string) =>
  db.selectFrom('users').selectAll().where('id', '=', id).executeTakeFirst()

const keys = (db: Any, account_id: string) =>
  db.selectFrom('api_keys').selectAll().where('account_id', '=', account_id).where('revoked_at', 'is', null)
/** Keys that are neither revoked nor expired. */
export const countKeys = (db: Any, account_id: string, now: number) =>
  countRows(keys(db, account_id).where((e) => e.or([e('expires_at', 'is', null), e('expires_at', '>', now)])))
export const insertKey = (trx: Trx, key: NewRow<'api_keys'>) => trx.insertInto('api_keys').values(key).execute()
export const updateKey = (trx: Trx, id: string, values: Partial<KeyRow>) =>
  trx.updateTable('api_keys').set(values).where('id', '=', id).execute()
export const findKey = (db: Any, account_id: string, id: string) =>
  keys(db, account_id).where('id', '=', id).executeTakeFirst()
/** Includes revoked keys: a list can continue after a key that was revoked in the meantime. */
export const findKeyEver = (db: Any, account_id: string, id: string) =>
  db.selectFrom('api_keys').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()
/** The keys of an account, or of one of its members. */
export const listKeys = (
  db: Db,
  account_id: string,
  user_id: string | undefined,
  limit: number,
  after: KeyRow | undefined,
): Promise<KeyRow[]> => {
  const all = keys(db, account_id)
  return newestFirst(user_id ? all.where('user_id', '=', user_id) : all, limit, after)
}
export const anyKey = async (db: Any) =>
  (await db.selectFrom('api_keys').select('id').limit(1).executeTakeFirst()) !== undefined
export const revokeKeysOf = (trx: Trx, user_id: string, revoked_at: number) =>
  trx
    .updateTable('api_keys')
    .set({ revoked_at })
    .where('user_id', '=', user_id)
    .where('revoked_at', 'is', null)
    .execute()

/**
 * Removes the sessions of a member and all ways to begin another. Who they are at a provider stays, which does not sign
 * in a removed member: by another email they would seem to be somebody new.
 */
export async function removeSignInOf(trx: Trx, user_id: string): Promise<void> {
  for (const table of ['sessions', 'sign_in_tokens', 'passwords', 'passkeys'] as const)
    await trx.deleteFrom(table).where('user_id', '=', user_id).execute()
}

/** Whether a key is neither revoked nor expired. */
export const isGoodKey = async (trx: Trx, id: string, now: number) =>
  (await trx
    .selectFrom('api_keys')
    .select('id')
    .where('id', '=', id)
    .where('revoked_at', 'is', null)
    .where((e) => e.or([e('expires_at', 'is', null), e('expires_at', '>', now)]))
    .executeTakeFirst()) !== undefined
export const isSession = async (trx: Trx, id: string) =>
  (await trx.selectFrom('sessions').select('id').where('id', '=', id).executeTakeFirst()) !== undefined

const usableKeys = (db: Db) =>
  db
    .selectFrom('api_keys as key')
    .innerJoin('users as user', 'user.id', 'key.user_id')
    .innerJoin('accounts as account', 'account.id', 'key.account_id')
    .select([
      'key.id',
      'key.account_id',
      'key.user_id',
      'key.hash',
      'key.scopes_json',
      'key.expires_at',
      'key.last_used_at',
    ])
    .select(['user.role', 'account.tier', 'account.suspended_at'])
    .where('key.revoked_at', 'is', null)
    .where('user.removed_at', 'is', null)
export type UsableKey = Awaited<ReturnType<typeof usable>>[number]
/** The usable keys with this prefix, with their member's role and account. */
export const usable = (db: Db, prefix: string) => usableKeys(db).where('key.prefix', '=', prefix).execute()
export const usableByIds = (db: Db, ids: string[]) => usableKeys(db).where('key.id', 'in', ids).execute()

/** Newest first, from behind `after`; has `limit` + 1 rows if there are more. */
export const listAudit = (
  db: Db,
  account_id: string,
  limit: number,
  after: Row<'audit'> | undefined,
): Promise<Row<'audit'>[]> => {
  const all = db.selectFrom('audit').selectAll().where('account_id', '=', account_id)
  return (after ? all.where('seq', '<', after.seq) : all)
    .orderBy('seq', 'desc')
    .limit(limit + 1)
    .execute()
}
export const findAuditEntry = (db: Db, account_id: string, id: string) =>
  db.selectFrom('audit').selectAll().where('account_id', '=', account_id).where('id', '=', id).executeTakeFirst()
