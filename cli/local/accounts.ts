import pino from 'pino'
import { readConfig } from '../../server/config.ts'
import { Accounts } from '../../server/features/accounts/index.ts'
import { openNotifications } from '../../server/platform/cluster/notifications.ts'
import { type Db, openDatabase } from '../../server/platform/db/open.ts'
import { commandLineActor } from '../../server/platform/events/audit.ts'
import { Limits } from '../../server/platform/limits/index.ts'
import { readPlans } from '../../server/platform/plans.ts'
import { type Changes, createChanges } from '../../server/platform/redis/changes.ts'
import { admission } from '../../server/platform/storage/installation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show } from '../support/output.ts'
import { readName } from './names.ts'

/** Runs `work` on the accounts in the data folder's database. Safe while a server runs. */
export async function withAccounts<T>(work: (accounts: Accounts, db: Db, changes: Changes) => Promise<T>): Promise<T> {
  const config = readConfig(process.env)
  const log = pino({ level: 'silent' })
  const db = await openDatabase(config.data_dir, config.database_url, admission(config))
  const notifications = await openNotifications(db, log, config.database_url)
  const changes = createChanges(notifications)
  try {
    const plans = readPlans(config)
    const accounts = new Accounts({
      db,
      changes,
      plans,
      limits: new Limits({ db, plans, log }),
      defaultTier: config.default_tier,
      log,
    })
    await accounts.ensureOwner()
    return await work(accounts, db, changes)
  } finally {
    await notifications.close()
    await db.destroy()
  }
}

interface Options extends GlobalOptions {
  name?: string
  tier?: string
  email?: string
}

const line = ({ id, status, tier, name }: { id: string; status: string; tier: string; name: string }) =>
  `${id}  ${status}  ${tier}  ${name}`

export async function createAccount(options: Options): Promise<void> {
  const { tier, email } = options
  const name = readName(
    options.name,
    'Give the account a name: ./tunery accounts create --name NAME [--tier TIER] [--email OWNER]',
  )
  const created = await withAccounts(({ operator }) =>
    operator.create(commandLineActor, { name, tier, owner: { name, email: email ?? null } }),
  )
  show(
    options,
    created,
    `${created.account.id}  ${created.account.tier}  ${created.account.name}\n\n` +
      `${created.key}\n\nThis key of its owner is shown once.`,
  )
}

export async function listAccounts(options: Options): Promise<void> {
  const all = await withAccounts(async ({ operator }) => {
    const rows = []
    for (let after: string | undefined, more = true; more; ) {
      const page = await operator.list({ limit: 100, after })
      rows.push(...page.items)
      more = page.has_more
      after = page.items.at(-1)?.id
    }
    return rows
  })
  show(options, all, () =>
    all
      .map((account) => line({ ...account, status: account.status.padEnd(9), tier: account.tier.padEnd(12) }))
      .join('\n'),
  )
}

/** `set`, `suspend` and `reinstate`. */
export async function changeAccount(
  id: string,
  options: Options,
  action: 'set' | 'suspend' | 'reinstate',
): Promise<void> {
  const { name, tier } = options
  const change = {
    set: { name: name === undefined ? name : readName(name, 'Give the account a name that is not empty.'), tier },
    suspend: { status: 'suspended' as const },
    reinstate: { status: 'active' as const },
  }[action]
  const changed = await withAccounts(({ operator }) => operator.change(commandLineActor, id, change))
  show(options, changed, line(changed))
}
