import type { Db, Trx } from '../db/open.ts'
import type { NewRow } from '../db/schema.ts'

export const countAccounts = async (db: Db | Trx) =>
  Number(
    (
      await db
        .selectFrom('accounts')
        .select((eb) => eb.fn.countAll().as('count'))
        .executeTakeFirstOrThrow()
    ).count,
  )

export async function insertAccount(trx: Trx, account: NewRow<'accounts'>, user: NewRow<'users'>): Promise<void> {
  await trx.insertInto('accounts').values(account).execute()
  await trx.insertInto('users').values(user).execute()
}

export const insertKey = (db: Db | Trx, key: NewRow<'api_keys'>) => db.insertInto('api_keys').values(key).execute()

export const keysByPrefix = (db: Db, prefix: string) => db.selectFrom('api_keys').selectAll().where('prefix', '=', prefix).execute()

export const keyById = (db: Db, id: string) => db.selectFrom('api_keys').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

export const userById = (db: Db, id: string) => db.selectFrom('users').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

export const accountById = (db: Db, id: string) => db.selectFrom('accounts').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

/** The first owner of the installation, in whose name the command line makes keys. */
export const firstOwner = (db: Db | Trx) => db.selectFrom('users').selectAll().where('role', '=', 'owner').orderBy('created_at').limit(1).executeTakeFirst()

export const anyKey = async (db: Db) => (await db.selectFrom('api_keys').select('id').limit(1).executeTakeFirst()) !== undefined
