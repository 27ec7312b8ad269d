import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { readConfig } from '../../server/config.ts'
import {
  createSignInThrottle,
  dashboardAddress,
  Sessions,
  SeveralMembers,
  SignIn,
} from '../../server/features/sign-in/index.ts'
import { UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { ask } from '../support/prompt.ts'
import { clean } from '../support/text.ts'
import { withAccounts } from './accounts.ts'

interface Options extends GlobalOptions {
  email?: string
  account?: string
}

/** Prints a link that signs the operator, or the member with an email, in to the dashboard once. */
export async function createSignInLink({ email, account, json }: Options): Promise<void> {
  const created = await withAccounts((accounts, db, changes) => {
    const sessions = new Sessions(db, changes, Date.now)
    const throttle = createSignInThrottle(Date.now)
    const signIn = new SignIn({ db, accounts, sessions, throttle, changes, now: Date.now })
    return signIn.createLink(email, account).catch((error) => {
      if (error instanceof SeveralMembers) return askWhich(signIn, email!, error.members)
      throw error
    })
  })
  const link = `${address()}/sign-in#${created.token}`
  const { name, email: theirs } = created.user
  const who = `${theirs ?? name}, a member of the account ${created.account},`
  console.log(
    json
      ? JSON.stringify({ link, user_id: created.user.id, expires_at: created.expires_at })
      : `${link}\n\nIt signs ${who} in to the dashboard, once, within a day.`,
  )
}

/** Anybody may enter an email: which of the accounts is meant, only who makes the link knows. */
async function askWhich(signIn: SignIn, email: string, members: SeveralMembers['members']) {
  const list = members.map(
    ({ account_id, account, name, role }) => `  ${account_id}  ${clean(account)}, as ${clean(name)} (${role})`,
  )
  const several = `Members of several accounts have the email '${email}':\n${list.join('\n')}`
  if (!process.stdin.isTTY) throw new UsageError(`${several}\nChoose one with --account ID.`)
  process.stderr.write(`${several}\n`)
  return signIn.createLink(email, await ask('Which account? '))
}

/** Where browsers reach the service: as set, as it runs now, or as it would start. */
function address(): string {
  const { public_url, data_dir, host, port } = readConfig(process.env)
  const running = path.join(data_dir, 'server.json')
  const listens = existsSync(running)
    ? new URL((JSON.parse(readFileSync(running, 'utf8')) as { url: string }).url).origin
    : `http://${host}:${port}`
  return dashboardAddress(listens, public_url)
}
