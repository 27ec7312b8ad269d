import type { Db, Trx } from '../db/open.ts'
import { newestFirst } from '../db/page.ts'
import type { NewRow, Row } from '../db/schema.ts'

export type SessionRow = Row<'sessions'>
export type TokenRow = Row<'sign_in_tokens'>
export type PasskeyRow = Row<'passkeys'>
export type UserRow = Row<'users'>
type Any = Db | Trx

export const insertSession = (trx: Trx, row: NewRow<'sessions'>) => trx.insertInto('sessions').values(row).execute()
/** A session with its member and account, unless the member was removed. */
export const sessionByHash = (db: Any, hash: string) =>
  db
    .selectFrom('sessions as session')
    .innerJoin('users as user', 'user.id', 'session.user_id')
    .innerJoin('accounts as account', 'account.id', 'session.account_id')
    .selectAll('session')
    .select(['user.role', 'user.operator', 'account.tier', 'account.suspended_at'])
    .where('session.hash', '=', hash)
    .where('user.removed_at', 'is', null)
    .executeTakeFirst()
export const session = (db: Any, user_id: string, id: string) =>
  db.selectFrom('sessions').selectAll().where('user_id', '=', user_id).where('id', '=', id).executeTakeFirst()
export const sessions = (
  db: Db,
  user_id: string,
  limit: number,
  after: SessionRow | undefined,
): Promise<SessionRow[]> =>
  newestFirst(db.selectFrom('sessions').selectAll().where('user_id', '=', user_id), limit, after)
export const touchSession = (trx: Trx, id: string, last_used_at: number) =>
  trx.updateTable('sessions').set({ last_used_at }).where('id', '=', id).execute()
export const endSession = async (trx: Trx, user_id: string, id: string) =>
  Number(
    (await trx.deleteFrom('sessions').where('user_id', '=', user_id).where('id', '=', id).executeTakeFirst())
      .numDeletedRows,
  )
export const endSessions = async (trx: Trx, user_id: string, except: string) =>
  Number(
    (await trx.deleteFrom('sessions').where('user_id', '=', user_id).where('id', '!=', except).executeTakeFirst())
      .numDeletedRows,
  )
export const removeOldSessions = (db: Db, used_before: number, created_before: number) =>
  db
    .deleteFrom('sessions')
    .where((e) => e.or([e('last_used_at', '<', used_before), e('created_at', '<', created_before)]))
    .execute()
export const anySession = async (db: Any) =>
  (await db.selectFrom('sessions').select('id').limit(1).executeTakeFirst()) !== undefined

export const user = (db: Any, id: string) =>
  db.selectFrom('users').selectAll().where('id', '=', id).where('removed_at', 'is', null).executeTakeFirst()
/** The members with an email, of all accounts. */
export const usersByEmail = (db: Any, email: string) =>
  db
    .selectFrom('users')
    .selectAll()
    .where('email', '=', email)
    .where('removed_at', 'is', null)
    .orderBy('created_at')
    .limit(20)
    .execute()
export const accountName = async (db: Any, id: string) =>
  (await db.selectFrom('accounts').select('name').where('id', '=', id).executeTakeFirst())!.name
/** The first operator of the installation. */
export const operatorUser = (db: Any) =>
  db
    .selectFrom('users')
    .selectAll()
    .where('operator', '=', 1)
    .where('removed_at', 'is', null)
    .orderBy('created_at')
    .limit(1)
    .executeTakeFirst()

export const password = async (db: Any, user_id: string) =>
  (await db.selectFrom('passwords').select('hash').where('user_id', '=', user_id).executeTakeFirst())?.hash
export const anyPassword = async (db: Any) =>
  (await db.selectFrom('passwords').select('user_id').limit(1).executeTakeFirst()) !== undefined
export const setPassword = (trx: Trx, row: NewRow<'passwords'>) =>
  trx
    .insertInto('passwords')
    .values(row)
    .onConflict((conflict) => conflict.column('user_id').doUpdateSet({ hash: row.hash, set_at: row.set_at }))
    .execute()

export const insertToken = (trx: Any, row: NewRow<'sign_in_tokens'>) =>
  trx.insertInto('sign_in_tokens').values(row).execute()
export const token = (db: Any, kind: TokenRow['kind'], hash: string, now: number) =>
  db
    .selectFrom('sign_in_tokens')
    .selectAll()
    .where('kind', '=', kind)
    .where('hash', '=', hash)
    .where('expires_at', '>', now)
    .executeTakeFirst()
/** Removes a token; false if another request was first. */
export const takeToken = async (trx: Any, id: string) =>
  Number((await trx.deleteFrom('sign_in_tokens').where('id', '=', id).executeTakeFirst()).numDeletedRows) > 0
export const removeTokensOf = (trx: Trx, user_id: string) =>
  trx.deleteFrom('sign_in_tokens').where('user_id', '=', user_id).execute()
export const removeOldTokens = (db: Db, now: number) =>
  db.deleteFrom('sign_in_tokens').where('expires_at', '<=', now).execute()
export const invitation = (db: Any, account_id: string, id: string) =>
  db
    .selectFrom('sign_in_tokens')
    .selectAll()
    .where('kind', '=', 'invitation')
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .executeTakeFirst()
export const invitations = (
  db: Db,
  account_id: string,
  now: number,
  limit: number,
  after: TokenRow | undefined,
): Promise<TokenRow[]> =>
  newestFirst(
    db
      .selectFrom('sign_in_tokens')
      .selectAll()
      .where('kind', '=', 'invitation')
      .where('account_id', '=', account_id)
      .where('expires_at', '>', now),
    limit,
    after,
  )

export const insertPasskey = (trx: Trx, row: NewRow<'passkeys'>) => trx.insertInto('passkeys').values(row).execute()
export const passkeys = (db: Any, user_id: string) =>
  db.selectFrom('passkeys').selectAll().where('user_id', '=', user_id).orderBy('created_at').execute()
export const passkeyByCredential = (db: Any, credential_id: string) =>
  db.selectFrom('passkeys').selectAll().where('credential_id', '=', credential_id).executeTakeFirst()
export const updatePasskey = (trx: Trx, id: string, values: Partial<PasskeyRow>) =>
  trx.updateTable('passkeys').set(values).where('id', '=', id).execute()
export const removePasskey = async (trx: Trx, user_id: string, id: string) =>
  Number(
    (await trx.deleteFrom('passkeys').where('user_id', '=', user_id).where('id', '=', id).executeTakeFirst())
      .numDeletedRows,
  )

export const identity = (db: Any, issuer: string, subject: string) =>
  db
    .selectFrom('oidc_identities')
    .selectAll()
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .executeTakeFirst()
export const insertIdentity = (trx: Trx, row: NewRow<'oidc_identities'>) =>
  trx.insertInto('oidc_identities').values(row).execute()
