import type { Logger } from 'pino'
import type { z } from 'zod'
import type { Profile } from '../../../contract/accounts.ts'
import type { AuditEntry } from '../../../contract/audit.ts'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { NewApiKey } from '../../../contract/keys.ts'
import type { ScopePreset } from '../../../contract/scopes.ts'
import { runPeriodically } from '../../../lib/periodic.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { ConfigError } from '../../config.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { commandLineActor } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Limits } from '../../platform/limits/index.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { type Callers, createCallers } from './callers.ts'
import { Keys } from './keys.ts'
import { Members } from './members.ts'
import { createOperator, type Operator } from './operator.ts'
import * as store from './store.ts'

export interface Accounts {
  keys: Keys
  members: Members
  operator: Operator
  /**
   * Creates the owner's account and user if there is no account yet. Throws a ConfigError if an account has a tier that
   * no longer exists.
   */
  ensureOwner(): Promise<void>
  /**
   * Creates the owner's first key and passes it to `show`; false if any key was ever created. If `show` throws there is
   * no key, and the next start makes it: one that nobody has seen would be the first for good.
   */
  createFirstKey(show: (key: NewApiKey) => void): Promise<boolean>
  createAccount(name: string): Promise<{ account_id: string; user_id: string }>
  /** Creates a key from the command line for a member, by default the installation's owner. */
  createKey(name: string, preset: ScopePreset, user_id?: string): Promise<NewApiKey>
  /** The caller of a key. See Callers.find. */
  findKey: Callers['find']
  findCallerAgain: Callers['findAgain']
  currentCallers: Callers['current']
  /**
   * Acquires a concurrency slot of the account for background work and returns its release function. Undefined if no
   * slot is free.
   */
  acquireSlotForWork(account_id: string): Promise<(() => void) | undefined>
  tierOf(account_id: string): Promise<string>
  profile(caller: Caller): Promise<z.input<typeof Profile>>
  audit(caller: Caller, query: ListQuery): Promise<Page<AuditEntry>>
  /** Writes the last-used times of keys. */
  flush(): Promise<void>
  /** Flushes periodically. `close()` flushes once more. */
  start(): { close(): Promise<void> }
}

interface Options {
  db: Db
  plans: Plans
  limits: Limits
  defaultTier: string
  /** Active keys of an account. Default: no bound, as on the command line. */
  keysMax?: number
  changes: Changes
  log: Logger
  now?: () => number
}

const flush_ms = 15_000
/** Names the account that the first start creates: not its owner, nor a role. */
const firstAccountName = 'Main account'

export function createAccounts({
  db,
  plans,
  limits,
  defaultTier,
  keysMax,
  changes,
  log,
  now = Date.now,
}: Options): Accounts {
  const callers = createCallers(db, changes, log, now)
  const { announce } = changes
  const keys = new Keys({ db, announce, keysMax: keysMax ?? Number.POSITIVE_INFINITY, now })
  const members = new Members({ db, announce, now })
  const operator = createOperator({ db, plans, defaultTier, keys, announce, now })

  async function createAccount(name: string, ownerName = name) {
    const { account, owner } = await db
      .transaction()
      .execute((trx) =>
        operator.insertAccount(trx, commandLineActor, { name, owner: { name: ownerName, email: null } }),
      )
    return { account_id: account.id, user_id: owner.id }
  }

  async function issueKey(trx: Trx, name: string, preset: ScopePreset, user_id?: string): Promise<NewApiKey> {
    const member = user_id ? await store.findUserUnscoped(trx, user_id) : await store.firstOwner(trx)
    if (!member) throw new Error('there is no account yet: start the service once with `npm start`')
    return keys.issue(trx, commandLineActor, member, { name, scopes: preset })
  }

  const tierOf = async (account_id: string) => (await store.findAccount(db, account_id))!.tier

  return {
    keys,
    members,
    operator,
    findKey: callers.find,
    findCallerAgain: callers.findAgain,
    currentCallers: callers.current,
    flush: callers.flush,

    createAccount: (name) => createAccount(name),

    async ensureOwner() {
      const unknownTier = (await store.tiersInUse(db)).find((id) => !plans.tier(id))
      if (unknownTier)
        throw new ConfigError(
          `Some accounts have the tier '${unknownTier}', which no longer exists. Put it back into TUNERY_PLANS_FILE.`,
        )
      if (!plans.tier(defaultTier))
        throw new ConfigError(`TUNERY_DEFAULT_TIER is '${defaultTier}', but there is no such tier.`)
      if (await store.anyAccount(db)) return
      // Who installs the service operates it.
      const { user_id } = await createAccount(firstAccountName, 'Owner')
      await db.transaction().execute((trx) => store.updateUser(trx, user_id, { operator: 1 }))
    },

    async createFirstKey(show) {
      if (await store.anyKey(db)) return false
      return db.transaction().execute(async (trx) => {
        if (await store.anyKey(trx)) return false
        show(await issueKey(trx, 'first key', 'full'))
        return true
      })
    },

    createKey: (name, preset, user_id) => db.transaction().execute((trx) => issueKey(trx, name, preset, user_id)),

    acquireSlotForWork: async (account_id) => limits.acquireSlot({ account_id, tier: await tierOf(account_id) }),
    tierOf,

    async profile(caller) {
      const { minute, day, concurrent } = await limits.state(caller)
      const window = ({ used, resets_at }: typeof minute) => ({ used, resets_at: isoTime(resets_at) })
      const { account_id, user_id, key_id, scopes } = caller
      const [user, account, key] = [
        await store.findUserUnscoped(db, user_id),
        await store.findAccount(db, account_id),
        await store.findKeyEver(db, account_id, key_id),
      ]
      return {
        id: user!.id,
        name: user!.name,
        email: user!.email,
        role: user!.role,
        account: { id: account!.id, name: account!.name },
        tier: plans.tierOrTightest(account!.tier),
        limits: { requests_per_minute: minute.limit, requests_per_day: day.limit, max_concurrent: concurrent.limit },
        usage: { minute: window(minute), day: window(day), concurrent: concurrent.used },
        key: key
          ? { id: key.id, name: key.name, prefix: key.prefix, scopes: [...scopes], created_at: isoTime(key.created_at) }
          : null,
        session: caller.session
          ? {
              id: key_id,
              created_at: isoTime(caller.session.created_at),
              expires_at: isoTime(caller.session.expires_at),
            }
          : null,
      }
    },

    async audit({ account_id }, { limit, after }) {
      const last = after ? await store.findAuditEntry(db, account_id, after) : undefined
      if (after && !last) throw new ApiError('not_found', `There is no entry '${after}' to continue after.`)
      const rows = await store.listAudit(db, account_id, limit, last)
      return pageOf(
        rows.map(({ id, created_at, action, target, details_json, kind, user_id, key_id }) => ({
          id,
          created_at: isoTime(created_at),
          action,
          target,
          details: fromJson(details_json),
          by: kind === 'operator' ? { kind, user_id: null, key_id: null } : { kind, user_id, key_id },
        })),
        limit,
      )
    },

    start() {
      const flushing = runPeriodically(flush_ms, callers.flush)
      return {
        async close() {
          await flushing.close()
          await callers.flush()
        },
      }
    },
  }
}
