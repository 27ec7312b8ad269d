import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { newestFirst } from '../../platform/db/page.ts'
import type { NewRow, Row } from '../../platform/db/schema.ts'

export type SessionRow = Row<'sessions'>
export type TokenRow = Row<'sign_in_tokens'>
export type PasskeyRow = Row<'passkeys'>
export type UserRow = Row<'users'>
export type IdentityRow = Row<'oidc_identities'>

/** Runs a deletion and returns how many rows it removed. */
const deleted = async (query: { executeTakeFirst(): Promise<{ numDeletedRows: bigint }> }) =>
  Number((await query.executeTakeFirst()).numDeletedRows)

export const insertSession = (trx: Trx, row: NewRow<'sessions'>) => trx.insertInto('sessions').values(row).execute()
const withMember = (db: Queryable) =>
  db
    .selectFrom('sessions as session')
    .innerJoin('users as user', 'user.id', 'session.user_id')
    .innerJoin('accounts as account', 'account.id', 'session.account_id')
    .selectAll('session')
    .select(['user.role', 'user.operator', 'account.tier', 'account.suspended_at'])
    .where('user.removed_at', 'is', null)
/** A session with its member and account, unless the member was removed. */
export const findSessionByHash = (db: Queryable, hash: string) =>
  withMember(db).where('session.hash', '=', hash).executeTakeFirst()
export const sessionsByIds = (db: Queryable, ids: string[]) => withMember(db).where('session.id', 'in', ids).execute()
export const findSession = (db: Queryable, user_id: string, id: string) =>
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
export const endSession = (trx: Trx, user_id: string, id: string) =>
  deleted(trx.deleteFrom('sessions').where('user_id', '=', user_id).where('id', '=', id))
/** Ends the sessions that a provider began. */
export const endProviderSessions = (trx: Trx, user_id: string, except = '') =>
  deleted(
    trx.deleteFrom('sessions').where('user_id', '=', user_id).where('begun_by', '=', 'oidc').where('id', '!=', except),
  )
export const endSessions = (trx: Trx, user_id: string, except: string) =>
  deleted(trx.deleteFrom('sessions').where('user_id', '=', user_id).where('id', '!=', except))
export const keepNewestSessions = (trx: Trx, user_id: string, count: number) =>
  trx
    .deleteFrom('sessions')
    .where('user_id', '=', user_id)
    .where('id', 'not in', (e) =>
      e
        .selectFrom('sessions')
        .select('id')
        .where('user_id', '=', user_id)
        .orderBy('created_at', 'desc')
        .orderBy('id', 'desc')
        .limit(count),
    )
    .execute()
export const removeOldSessions = (db: Db, used_before: number, created_before: number) =>
  db
    .deleteFrom('sessions')
    .where((e) => e.or([e('last_used_at', '<', used_before), e('created_at', '<', created_before)]))
    .execute()
/** Whether anybody has a session, or a way to begin one besides a link. */
export async function anySignIn(db: Queryable): Promise<boolean> {
  for (const table of ['sessions', 'passwords', 'passkeys'] as const)
    if (await db.selectFrom(table).select('user_id').limit(1).executeTakeFirst()) return true
  const connected = db
    .selectFrom('oidc_identities')
    .innerJoin('users', 'users.id', 'oidc_identities.user_id')
    .select('users.id')
    .where('users.removed_at', 'is', null)
  return (await connected.limit(1).executeTakeFirst()) !== undefined
}

export const findUserUnscoped = (db: Queryable, id: string) =>
  db.selectFrom('users').selectAll().where('id', '=', id).where('removed_at', 'is', null).executeTakeFirst()
const byEmail = (db: Queryable, email: string) =>
  db.selectFrom('users').selectAll().where('email', '=', email).where('removed_at', 'is', null)
/**
 * The members with an email and a password: those whose email it is proven to be first, then of the operator's account,
 * then who used a session last, then the oldest.
 */
export const usersWithPassword = (db: Queryable, email: string) =>
  byEmail(db, email)
    .innerJoin('passwords', 'passwords.user_id', 'users.id')
    .select('passwords.hash')
    .orderBy((e) => e.case().when('email_accepted_at', 'is', null).then(1).else(0).end())
    .orderBy(
      (e) =>
        e
          .selectFrom('users as operator')
          .select((e) => e.fn.max('operator.operator').as('is'))
          .whereRef('operator.account_id', '=', 'users.account_id')
          .where('operator.removed_at', 'is', null),
      'desc',
    )
    .orderBy(
      (e) =>
        e
          .selectFrom('sessions')
          .select((e) => e.fn.coalesce(e.fn.max('last_used_at'), e.lit(0)).as('at'))
          .whereRef('sessions.user_id', '=', 'users.id'),
      'desc',
    )
    .orderBy('created_at')
    .limit(20)
    .execute()
/** The members with an email, the oldest first: anybody may have entered it. */
export const usersByEmail = (db: Queryable, email: string): Promise<UserRow[]> =>
  byEmail(db, email).orderBy('created_at').orderBy('id').limit(100).execute()
export const accountName = async (db: Queryable, id: string) =>
  (await db.selectFrom('accounts').select('name').where('id', '=', id).executeTakeFirst())!.name
export const makeOperator = (trx: Trx, user_id: string) =>
  trx.updateTable('users').set({ operator: 1 }).where('id', '=', user_id).execute()
/** Whether a member whose proven email this is was removed from the account. */
export const wasRemoved = async (db: Queryable, account_id: string, email: string) =>
  (await db
    .selectFrom('users')
    .select('id')
    .where('account_id', '=', account_id)
    .where('email', '=', email)
    .where('email_accepted_at', 'is not', null)
    .where('removed_at', 'is not', null)
    .limit(1)
    .executeTakeFirst()) !== undefined

export const findPassword = async (db: Queryable, user_id: string) =>
  (await db.selectFrom('passwords').select('hash').where('user_id', '=', user_id).executeTakeFirst())?.hash
export const anyPassword = async (db: Queryable) =>
  (await db.selectFrom('passwords').select('user_id').limit(1).executeTakeFirst()) !== undefined
export const setPassword = (trx: Trx, row: NewRow<'passwords'>) =>
  trx
    .insertInto('passwords')
    .values(row)
    .onConflict((conflict) => conflict.column('user_id').doUpdateSet({ hash: row.hash, set_at: row.set_at }))
    .execute()

export const insertToken = (trx: Queryable, row: NewRow<'sign_in_tokens'>) =>
  trx.insertInto('sign_in_tokens').values(row).execute()
export const findToken = (db: Queryable, kind: TokenRow['kind'], hash: string, now: number) =>
  db
    .selectFrom('sign_in_tokens')
    .selectAll()
    .where('kind', '=', kind)
    .where('hash', '=', hash)
    .where('expires_at', '>', now)
    .executeTakeFirst()
/** Removes a token; false if another request was first. */
export const takeToken = async (trx: Queryable, id: string) =>
  (await deleted(trx.deleteFrom('sign_in_tokens').where('id', '=', id))) > 0
export const removeTokensOf = (trx: Trx, user_id: string) =>
  trx.deleteFrom('sign_in_tokens').where('user_id', '=', user_id).execute()
/** Removes these members unless they have a way in, or had one: they were invited and never came. Returns how many. */
export async function removeUnjoined(db: Queryable, ids: readonly string[], removed_at: number): Promise<number> {
  if (ids.length === 0) return 0
  let query = db.updateTable('users').set({ removed_at }).where('id', 'in', ids).where('removed_at', 'is', null)
  for (const table of ['sessions', 'passwords', 'passkeys', 'oidc_identities', 'api_keys'] as const)
    query = query.where(({ not, exists, selectFrom }) =>
      not(exists(selectFrom(table).select('user_id').whereRef(`${table}.user_id`, '=', 'users.id'))),
    )
  return Number((await query.executeTakeFirst()).numUpdatedRows)
}
/** Removes tokens that have expired, and the members whose invitation that ends. */
export async function removeOldTokens(db: Db, now: number): Promise<void> {
  const old = await db.selectFrom('sign_in_tokens').selectAll().where('expires_at', '<=', now).execute()
  const invited = old.flatMap(({ kind, user_id }) => (kind === 'invitation' && user_id ? [user_id] : []))
  await db.transaction().execute(async (trx) => {
    await trx.deleteFrom('sign_in_tokens').where('expires_at', '<=', now).execute()
    await removeUnjoined(trx, invited, now)
  })
}
export const findInvitation = (db: Queryable, account_id: string, id: string) =>
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
export const passkeys = (db: Queryable, user_id: string) =>
  db.selectFrom('passkeys').selectAll().where('user_id', '=', user_id).orderBy('created_at').execute()
export const findPasskeyByCredential = (db: Queryable, credential_id: string) =>
  db.selectFrom('passkeys').selectAll().where('credential_id', '=', credential_id).executeTakeFirst()
export const updatePasskey = (trx: Trx, id: string, values: Partial<PasskeyRow>) =>
  trx.updateTable('passkeys').set(values).where('id', '=', id).execute()
export const removePasskey = (trx: Trx, user_id: string, id: string) =>
  deleted(trx.deleteFrom('passkeys').where('user_id', '=', user_id).where('id', '=', id))

export const findIdentity = (db: Queryable, issuer: string, subject: string) =>
  db
    .selectFrom('oidc_identities')
    .selectAll()
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .executeTakeFirst()
/** The account of the member, also of one who was removed, whom a person is connected to. */
export const accountOfIdentity = async (db: Queryable, issuer: string, subject: string) =>
  (
    await db
      .selectFrom('oidc_identities')
      .innerJoin('users', 'users.id', 'oidc_identities.user_id')
      .select('users.account_id')
      .where('issuer', '=', issuer)
      .where('subject', '=', subject)
      .executeTakeFirst()
  )?.account_id
export const bindIdentity = (trx: Trx, row: NewRow<'oidc_identities'>) =>
  trx
    .insertInto('oidc_identities')
    .values(row)
    .onConflict((conflict) =>
      conflict
        .columns(['issuer', 'subject'])
        .doUpdateSet({ user_id: row.user_id, email: row.email, created_at: row.created_at }),
    )
    .execute()
export const identities = (db: Queryable, user_id: string): Promise<IdentityRow[]> =>
  db.selectFrom('oidc_identities').selectAll().where('user_id', '=', user_id).orderBy('created_at').execute()
export const removeIdentity = (trx: Trx, issuer: string, subject: string) =>
  trx.deleteFrom('oidc_identities').where('issuer', '=', issuer).where('subject', '=', subject).execute()
export const unproveEmail = (trx: Trx, user_id: string) =>
  trx.updateTable('users').set({ email_accepted_at: null }).where('id', '=', user_id).execute()
/** The key of an invitation: undefined once it was revoked or has expired. */
export const usableKey = (db: Queryable, account_id: string, id: string, now: number) =>
  db
    .selectFrom('api_keys')
    .select('scopes_json')
    .where('account_id', '=', account_id)
    .where('id', '=', id)
    .where('revoked_at', 'is', null)
    .where((e) => e.or([e('expires_at', 'is', null), e('expires_at', '>', now)]))
    .executeTakeFirst()
