import pino from 'pino'
import { type Accounts, createAccounts } from '../server/accounts/index.ts'
import { readConfig } from '../server/config.ts'
import { openDatabase } from '../server/db/open.ts'
import { commandLineActor } from '../server/events/audit.ts'
import { createLimits } from '../server/limits/index.ts'
import { readPlans } from '../server/plans.ts'
import { readName, UsageError } from './usage.ts'

/** Runs `work` on the accounts in the data folder's database. Safe while a server runs. */
export async function withAccounts<T>(work: (accounts: Accounts) => Promise<T>): Promise<T> {
  const config = readConfig(process.env)
  const db = await openDatabase(config.data_dir)
  try {
    const plans = readPlans(config)
    const log = pino({ level: 'silent' })
    const accounts = createAccounts({
      db,
      plans,
      limits: createLimits({ db, plans, log }),
      defaultTier: config.default_tier,
      log,
    })
    await accounts.ensureOwner()
    return await work(accounts)
  } finally {
    await db.destroy()
  }
}

interface Options {
  name?: string
  tier?: string
  email?: string
  json: boolean
}

/** The operator's commands on accounts: `create`, `list`, `set ID --tier T`, `suspend ID`, `reinstate ID`. */
export async function accounts(
  action: string,
  id: string | undefined,
  { name, tier, email, json }: Options,
): Promise<void> {
  const show = (value: object, text: string) => console.log(json ? JSON.stringify(value) : text)
  if (action === 'create' && id === undefined) {
    const accountName = readName(
      name,
      'Give the account a name: ./tunery accounts create --name NAME [--tier TIER] [--email OWNER]',
    )
    const owner = { name: accountName, email: email ?? null }
    const created = await withAccounts(({ operator }) =>
      operator.create(commandLineActor, { name: owner.name, tier, owner }),
    )
    return show(
      created,
      `${created.account.id}  ${created.account.tier}  ${created.account.name}\n\n` +
        `${created.key}\n\nThis key of its owner is shown once.`,
    )
  }
  if (action === 'list' && id === undefined) {
    const all = await withAccounts(async ({ operator }) => {
      const found = []
      for (let after: string | undefined, more = true; more; ) {
        const page = await operator.list({ limit: 100, after })
        found.push(...page.items)
        more = page.has_more
        after = page.items.at(-1)?.id
      }
      return found
    })
    return show(
      all,
      all.map((each) => `${each.id}  ${each.status.padEnd(9)}  ${each.tier.padEnd(12)}  ${each.name}`).join('\n'),
    )
  }
  const change = {
    set: { name: name === undefined ? name : readName(name, 'Give the account a name that is not empty.'), tier },
    suspend: { status: 'suspended' },
    reinstate: { status: 'active' },
  }[action] as { name?: string; tier?: string; status?: 'active' | 'suspended' } | undefined
  if (!change || !id)
    throw new UsageError(
      `'accounts ${action}' is not a command, or its account is missing; ./tunery --help lists the commands.`,
    )
  const changed = await withAccounts(({ operator }) => operator.change(commandLineActor, id, change))
  show(changed, `${changed.id}  ${changed.status}  ${changed.tier}  ${changed.name}`)
}
