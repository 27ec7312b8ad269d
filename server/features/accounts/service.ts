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

export class Accounts {
  readonly keys: Keys
  readonly members: Members
  readonly operator: Operator
  private readonly options: Options
  private readonly callers: Callers
  /** The caller of a key. See Callers.find. */
  readonly findKey: Callers['find']
  readonly findCallerAgain: Callers['findAgain']
  readonly currentCallers: Callers['current']
  /** Writes the last-used times of keys. */
  readonly flush: Callers['flush']

  constructor(options: Options) {
    this.options = options
    const { db, plans, defaultTier, keysMax = Number.POSITIVE_INFINITY, changes, log, now = Date.now } = options
    const { announce } = changes
    this.callers = createCallers(db, changes, log, now)
    this.keys = new Keys({ db, announce, keysMax, now })
    this.members = new Members({ db, announce, now })
    this.operator = createOperator({ db, plans, defaultTier, keys: this.keys, announce, now })
    this.findKey = this.callers.find
    this.findCallerAgain = this.callers.findAgain
    this.currentCallers = this.callers.current
    this.flush = this.callers.flush
  }

  /**
   * Creates the owner's account and user if there is no account yet. Throws a ConfigError if an account has a tier that
   * no longer exists.
   */
  async ensureOwner(): Promise<void> {
    const unknownTier = (await store.tiersInUse(this.options.db)).find((id) => !this.options.plans.tier(id))
    if (unknownTier)
      throw new ConfigError(
        `Some accounts have the tier '${unknownTier}', which no longer exists. Put it back into TUNERY_PLANS_FILE.`,
      )
    if (!this.options.plans.tier(this.options.defaultTier))
      throw new ConfigError(`TUNERY_DEFAULT_TIER is '${this.options.defaultTier}', but there is no such tier.`)
    if (await store.anyAccount(this.options.db)) return
    const created = { name: firstAccountName, owner: { name: 'Owner', email: null } }
    await this.options.db.transaction().execute(async (trx) => {
      // Another server may have been faster.
      if (await store.anyAccount(trx)) return
      const { owner } = await this.operator.insertAccount(trx, commandLineActor, created)
      // Who installs the service operates it.
      await store.updateUser(trx, owner.id, { operator: 1 })
    })
  }

  /**
   * Creates the owner's first key and passes it to `show`; false if any key was ever created. If `show` throws there is
   * no key, and the next start makes it: one that nobody has seen would be the first for good.
   */
  async createFirstKey(show: (key: NewApiKey) => void): Promise<boolean> {
    if (await store.anyKey(this.options.db)) return false
    return this.options.db.transaction().execute(async (trx) => {
      if (await store.anyKey(trx)) return false
      show(await this.issueKey(trx, 'first key', 'full'))
      return true
    })
  }

  /** Creates a key from the command line for a member, by default the installation's owner. */
  createKey(name: string, preset: ScopePreset, user_id?: string): Promise<NewApiKey> {
    return this.options.db.transaction().execute((trx) => this.issueKey(trx, name, preset, user_id))
  }

  /**
   * Acquires a concurrency slot of the account for background work and returns its release function. Undefined if no
   * slot is free.
   */
  async acquireSlotForWork(account_id: string): Promise<(() => void) | undefined> {
    return this.options.limits.acquireSlot({ account_id, tier: await this.tierOf(account_id) })
  }

  async tierOf(account_id: string): Promise<string> {
    return (await store.findAccount(this.options.db, account_id))!.tier
  }

  async profile(caller: Caller): Promise<z.input<typeof Profile>> {
    const { minute, day, concurrent } = await this.options.limits.state(caller)
    const window = ({ used, resets_at }: typeof minute) => ({ used, resets_at: isoTime(resets_at) })
    const { account_id, user_id, key_id, scopes } = caller
    const [user, account, key] = [
      await store.findUserUnscoped(this.options.db, user_id),
      await store.findAccount(this.options.db, account_id),
      await store.findKeyEver(this.options.db, account_id, key_id),
    ]
    return {
      id: user!.id,
      name: user!.name,
      email: user!.email,
      role: user!.role,
      account: { id: account!.id, name: account!.name },
      tier: this.options.plans.tierOrTightest(account!.tier),
      limits: { requests_per_minute: minute.limit, requests_per_day: day.limit, max_concurrent: concurrent.limit },
      usage: { minute: window(minute), day: window(day), concurrent: concurrent.used },
      key: key
        ? { id: key.id, name: key.name, prefix: key.prefix, scopes: [...scopes], created_at: isoTime(key.created_at) }
        : null,
      session: caller.session
        ? { id: key_id, created_at: isoTime(caller.session.created_at), expires_at: isoTime(caller.session.expires_at) }
        : null,
    }
  }

  async audit({ account_id }: Caller, { limit, after }: ListQuery): Promise<Page<AuditEntry>> {
    const last = after ? await store.findAuditEntry(this.options.db, account_id, after) : undefined
    if (after && !last) throw new ApiError('not_found', `There is no entry '${after}' to continue after.`)
    const rows = await store.listAudit(this.options.db, account_id, limit, last)
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
  }

  /** Flushes periodically. `close()` flushes once more. */
  start(): { close(): Promise<void> } {
    const flushing = runPeriodically(flush_ms, this.callers.flush)
    return {
      close: async () => {
        await flushing.close()
        await this.flush()
      },
    }
  }

  private async issueKey(trx: Trx, name: string, preset: ScopePreset, user_id?: string): Promise<NewApiKey> {
    const member = user_id ? await store.findUserUnscoped(trx, user_id) : await store.firstOwner(trx)
    if (!member) throw new Error('there is no account yet: start the service once with `npm start`')
    return this.keys.issue(trx, commandLineActor, member, { name, scopes: preset })
  }
}
