// Whom a provider's person is here: the member they were connected to before, the one whose email is proven to be
// theirs, or the one that they choose. Others enter emails as they like: an email that nobody has proven connects
// nobody without a choice, and keeps nobody out.
import { createHash } from 'node:crypto'
import { DisplayName } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Identity, Member } from '../../../contract/members.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { recordAuditEntry, serviceActor } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { type Accounts, operatorUser } from '../accounts/index.ts'
import { OidcError, type Person } from './oidc.ts'
import * as store from './store.ts'

/** A member as whom a person may sign in; `user_id` is null for a new member of the operator's account. */
interface Offer {
  user_id: string | null
  name: string
  role: Member['role']
  account: { name: string }
}

interface Options {
  db: Db
  members: Accounts['members']
  /** Email domains whose people become members of the operator's account, in lower case, and their role. */
  sign_up: readonly string[]
  sign_up_role: 'viewer' | 'member'
  changes: Changes
  now(): number
}

export class Identities {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  /**
   * The member who signs in, or the offers to choose from. `signed_in`: who is signed in here already. No offers:
   * nobody has the email. Throws OidcError if the operator alone has it, who may do everything: it connects only who is
   * signed in as them.
   */
  find(person: Person, signed_in: string | undefined): Promise<{ user: store.UserRow } | { offers: Offer[] }> {
    return this.options.db.transaction().execute(async (trx) => {
      const bound = await store.findIdentity(trx, person.issuer, person.subject)
      const before = bound && (await store.findUserUnscoped(trx, bound.user_id))
      if (before) return { user: before }
      const { offers, proven, all } = await this.offersFor(trx, person)
      const current = all.find(({ id }) => id === signed_in)
      if (current) return { user: await this.bind(trx, current, person) }
      const isOperators = all.some(({ operator }) => operator === 1)
      if (proven.length === 1 && !isOperators) return { user: await this.bind(trx, proven[0]!, person) }
      const [first] = offers
      if (!first && all.length > 0) throw new OidcError('oidc_sign_in_first')
      if (first?.user_id !== null || offers.length > 1) return { offers }
      const { email } = person
      return { user: await this.join(trx, (await this.accountToJoin(trx, person))!, person, email!) }
    })
  }

  /** What `find` would offer now. */
  async offers(person: Person): Promise<Offer[]> {
    return (await this.offersFor(this.options.db, person)).offers
  }

  /** Connects the person to the member of an offer that they chose. Undefined if it is none of theirs any more. */
  choose(person: Person, user_id: string | null): Promise<store.UserRow | undefined> {
    return this.options.db.transaction().execute(async (trx) => {
      const { offers } = await this.offersFor(trx, person)
      if (!offers.some((offer) => offer.user_id === user_id)) return undefined
      if (user_id !== null) return this.bind(trx, (await store.findUserUnscoped(trx, user_id))!, person)
      return this.join(trx, (await this.accountToJoin(trx, person))!, person, person.email!)
    })
  }

  /** Throws member_not_found. */
  async list(account_id: string, user_id: string): Promise<Identity[]> {
    await requireMember(this.options.db, account_id, user_id)
    return (await store.identities(this.options.db, user_id)).map(toResponse)
  }

  /**
   * Removes a connection, and ends the member's sessions that a provider began, but the caller's own. Throws
   * member_not_found, identity_not_found or insufficient_permissions.
   */
  async remove(caller: Caller, user_id: string, id: string): Promise<{ id: string; deleted: true }> {
    const { account_id } = caller
    await this.options.db.transaction().execute(async (trx) => {
      const { role, operator } = await requireMember(trx, account_id, user_id)
      if (user_id !== caller.user_id) {
        const isForbidden = operator === 1 || (role === 'owner' && caller.role !== 'owner')
        if (isForbidden || !caller.scopes.includes('members:write'))
          throw new ApiError(
            'insufficient_permissions',
            'Only an owner may change how an owner signs in, and only the operator how they do themselves.',
          )
      }
      const row = (await store.identities(trx, user_id)).find((identity) => idOf(identity) === id)
      if (!row) throw new ApiError('identity_not_found', `This member has no connection '${id}' to a provider.`)
      await store.removeIdentity(trx, row.issuer, row.subject)
      // Else the next sign-in there would connect it again.
      await store.unproveEmail(trx, user_id)
      const except = caller.kind === 'session' && user_id === caller.user_id ? caller.key_id : undefined
      await store.endProviderSessions(trx, user_id, except)
      const { issuer } = row
      await recordAuditEntry(trx, caller, 'identity.removed', user_id, { issuer, email: row.email }, this.options.now())
    })
    await this.options.changes.announce(account_id)
    return { id, deleted: true }
  }

  private async bind(trx: Trx, user: store.UserRow, { issuer, subject, email }: Person): Promise<store.UserRow> {
    const by = { ...serviceActor, account_id: user.account_id }
    await store.bindIdentity(trx, {
      issuer,
      subject,
      user_id: user.id,
      email: email ?? null,
      created_at: this.options.now(),
    })
    await recordAuditEntry(trx, by, 'identity.bound', user.id, { issuer, email: email ?? null }, this.options.now())
    if (email !== undefined) await this.options.members.acceptEmail(trx, by, user.id, email)
    return (await store.findUserUnscoped(trx, user.id))!
  }

  /** The account whose new member the person may become: the operator's, unless they were a member and were removed. */
  private async accountToJoin(trx: Queryable, { issuer, subject, email }: Person): Promise<string | undefined> {
    if (email === undefined || !this.options.sign_up.includes(email.split('@')[1]!)) return undefined
    const operator = await operatorUser(trx)
    if (!operator || (await store.wasRemoved(trx, operator.account_id, email))) return undefined
    // Who has another email at the provider by now is the same person. Who is connected there signs in before.
    if ((await store.accountOfIdentity(trx, issuer, subject)) === operator.account_id) return undefined
    return operator.account_id
  }

  private newName({ name }: Person, email: string) {
    return DisplayName.safeParse(name).data ?? email.split('@')[0]!
  }

  private async join(trx: Trx, account_id: string, person: Person, email: string): Promise<store.UserRow> {
    const by = { ...serviceActor, account_id }
    // Who has only entered this email does not keep its owner out.
    await this.options.members.releaseEmail(trx, by, email)
    const { id } = await this.options.members.addWithin(trx, by, {
      name: this.newName(person, email),
      email,
      role: this.options.sign_up_role,
    })
    return this.bind(trx, (await store.findUserUnscoped(trx, id))!, person)
  }

  /** Members with the email: those whose it is proven to be, and others. None of them is the operator. */
  private async candidates(trx: Queryable, email: string) {
    const all = await store.usersByEmail(trx, email)
    const others = all.filter(({ operator }) => operator !== 1)
    const isProven = ({ email_accepted_at }: store.UserRow) => email_accepted_at !== null
    return { all, proven: others.filter(isProven), entered: others.filter((user) => !isProven(user)) }
  }

  private async offersFor(trx: Queryable, person: Person) {
    const { email } = person
    const offers: Offer[] = []
    if (email === undefined) return { offers, proven: [], all: [] }
    const { all, proven, entered } = await this.candidates(trx, email)
    const offer = async (user_id: string | null, name: string, role: Member['role'], account_id: string) => {
      offers.push({ user_id, name, role, account: { name: await store.accountName(trx, account_id) } })
    }
    for (const { id, name, role, account_id } of [...proven, ...entered]) await offer(id, name, role, account_id)
    const account_id = await this.accountToJoin(trx, person)
    const isMember = all.some(
      (user) => user.account_id === account_id && (user.email_accepted_at !== null || user.operator === 1),
    )
    if (account_id !== undefined && !isMember)
      await offer(null, this.newName(person, email), this.options.sign_up_role, account_id)
    return { offers, proven, all }
  }
}

async function requireMember(db: Queryable, account_id: string, user_id: string): Promise<store.UserRow> {
  const user = await store.findUserUnscoped(db, user_id)
  if (user?.account_id !== account_id) throw new ApiError('member_not_found', `There is no member '${user_id}'.`)
  return user
}

/** Identities have no id of their own: it follows from what the provider calls itself and the person. */
const idOf = ({ issuer, subject }: store.IdentityRow) =>
  `idn_${createHash('sha256').update(`${issuer}\n${subject}`).digest('base64url').slice(0, 22)}`

const toResponse = (row: store.IdentityRow): Identity => ({
  id: idOf(row),
  issuer: row.issuer,
  email: row.email,
  created_at: isoTime(row.created_at),
})
