// Sign-in: begins sessions by password, link, invitation, passkey and provider.

import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Member } from '../../../contract/members.ts'
import { roleScopes } from '../../../contract/scopes.ts'
import type { createInvitation, Invitation, Session, setPassword } from '../../../contract/sign-in.ts'
import { newId } from '../../../lib/ids.ts'
import { day_ms, hour_ms, isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { commandLineActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { type Accounts, firstOwner, missingRights, operatorUser, toMemberResponse } from '../accounts/index.ts'
import { hashPassword, isOutdated, requireGoodPassword, verifyPassword } from './passwords.ts'
import { type Beginning, hashOf, newToken, type Sessions } from './sessions.ts'
import * as store from './store.ts'
import type { SignInThrottle } from './throttle.ts'

/** From where a session begins. */
export type Place = Pick<Beginning, 'user_agent' | 'address'>
/** A session, and the token for its cookie. */
export interface Begun {
  token: string
  session: Session
}

/** Members of several accounts have the email: one of the accounts must be named. */
export class SeveralMembers extends Error {
  readonly members: readonly (store.UserRow & { account: string })[]
  constructor(members: SeveralMembers['members']) {
    super('members of several accounts have this email')
    this.members = members
  }
}

interface Options {
  db: Db
  accounts: Accounts
  sessions: Sessions
  throttle: SignInThrottle
  changes: Changes
  now(): number
}

const link_ms = day_ms
const invitation_ms = 7 * day_ms
/** After a sign-in with a link a forgotten password can be replaced. */
const recovery_ms = hour_ms / 6

const linkInvalid = () =>
  new ApiError(
    'link_invalid',
    'This link was used already, has expired or was withdrawn. `./tunery sign-in-link` on the machine of the service ' +
      'makes a sign-in link; an admin of the account makes an invitation.',
  )

export class SignIn {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  /** Whether nobody has a session or a way to begin one, and whether anybody has a password. */
  async state(): Promise<{ first: boolean; password: boolean }> {
    const { db } = this.options
    return { first: !(await store.anySignIn(db)), password: await store.anyPassword(db) }
  }

  /** Throws sign_in_failed, or rate_limit_exceeded. */
  async withPassword(signsInAs: string, password: string, place: Place): Promise<Begun> {
    const { db, throttle, now } = this.options
    const { address } = place
    const email = signsInAs.trim().toLowerCase()
    await throttle.begin(address, email)
    // An email may be a member of several accounts: each has its own password.
    const candidates = await store.usersWithPassword(db, email)
    let candidate: { user: store.UserRow; hash: string } | undefined
    try {
      // One verification at least, so that the time does not tell whether the email is known.
      if (candidates.length === 0) await verifyPassword(undefined, password)
      for (const { hash, ...user } of candidates)
        if (!candidate && (await verifyPassword(hash, password))) candidate = { user, hash }
    } catch (error) {
      // Too many sign in at once: clients try again, and must not be blocked for it.
      await throttle.forget(address, email)
      throw error
    }
    if (!candidate)
      throw new ApiError('sign_in_failed', 'Email or password is wrong. `./tunery sign-in-link` helps who forgot it.')
    await throttle.succeed(address, email)
    const { user, hash } = candidate
    const fresh = isOutdated(hash) ? await hashPassword(password) : undefined
    return db.transaction().execute(async (trx) => {
      if (fresh) await store.setPassword(trx, { user_id: user.id, hash: fresh, set_at: now() })
      return this.begin(trx, user, 'password', place)
    })
  }

  /** Throws link_invalid for a link that was used, has expired or never was. */
  async withLink(token: string, place: Place): Promise<Begun> {
    const { row, user } = await this.open('link', token)
    return this.options.db.transaction().execute(async (trx) => {
      if (!(await store.takeToken(trx, row.id))) throw linkInvalid()
      return this.begin(trx, user, 'link', place)
    })
  }

  /** For a member whose passkey or provider has been verified. */
  as(user: store.UserRow, begun_by: 'passkey' | 'oidc', place: Place): Promise<Begun> {
    return this.options.db.transaction().execute((trx) => this.begin(trx, user, begun_by, place))
  }

  /**
   * A link for the member with an email, or for the operator; the first owner becomes operator if there is none. For
   * the command line alone. Throws member_not_found, or SeveralMembers if members of several accounts have the email
   * and `account_id` does not choose one.
   */
  async createLink(
    email?: string,
    of_account?: string,
  ): Promise<{ token: string; user: store.UserRow; account: string; expires_at: string }> {
    const { db, now } = this.options
    return db.transaction().execute(async (trx) => {
      const user =
        email === undefined
          ? ((await operatorUser(trx)) ?? (await firstOwner(trx)))
          : await this.memberWith(trx, email.trim().toLowerCase(), of_account)
      if (!user) throw new ApiError('member_not_found', 'There is no owner yet: start the service once.')
      const { account_id } = user
      const by = { ...commandLineActor, account_id }
      if (email === undefined && user.operator !== 1) {
        await store.makeOperator(trx, user.id)
        await recordAuditEntry(trx, by, 'operator.appointed', user.id, {}, now())
      }
      const { row, token } = await this.makeToken(trx, 'link', user, link_ms, null)
      await recordAuditEntry(trx, by, 'sign_in_link.created', user.id, {}, row.created_at)
      return { token, user, account: await store.accountName(trx, account_id), expires_at: isoTime(row.expires_at) }
    })
  }

  async setPassword(
    caller: Caller,
    { password, current_password, email }: z.output<typeof setPassword.body>,
  ): Promise<void> {
    const { db, accounts, sessions, throttle, changes, now } = this.options
    const user = (await store.findUserUnscoped(db, caller.user_id))!
    const signsInWith = user.email ?? email ?? null
    if (!signsInWith)
      throw new ApiError('invalid_request', "'email' is missing: you sign in with it.", { param: 'email' })
    const before = await store.findPassword(db, user.id)
    const session = await sessions.get(caller)
    const recovers = session.begun_by === 'link' && now() - Date.parse(session.created_at) < recovery_ms
    if (before && !recovers) {
      await throttle.begin(session.address, user.id)
      if (!(await verifyPassword(before, current_password ?? '')))
        throw new ApiError(
          'password_refused',
          'The current password is wrong. A sign-in link lets you set a new one without it.',
          { param: 'current_password' },
        )
      await throttle.succeed(session.address, user.id)
    }
    for (const text of [signsInWith, email ?? null]) requireGoodPassword(password, text)
    const hash = await hashPassword(password)
    if (email && email.toLowerCase() !== user.email) await accounts.members.changeOwn(caller, { email })
    await db.transaction().execute(async (trx) => {
      await store.setPassword(trx, { user_id: user.id, hash, set_at: now() })
      await store.removeTokensOf(trx, user.id)
      await store.endSessions(trx, user.id, caller.key_id)
      await recordAuditEntry(trx, caller, 'password.set', user.id, {}, now())
    })
    await changes.announce(caller.account_id)
  }

  async ways(user_id: string): Promise<{ has_password: boolean; has_passkey: boolean }> {
    const { db } = this.options
    const [hash, passkeys] = await Promise.all([store.findPassword(db, user_id), store.passkeys(db, user_id)])
    return { has_password: hash !== undefined, has_passkey: passkeys.length > 0 }
  }

  async invite(
    caller: Caller,
    request: z.output<typeof createInvitation.body>,
  ): Promise<{ invitation: Invitation; token: string }> {
    const { db, accounts, now } = this.options
    return db.transaction().execute(async (trx) => {
      const member = await accounts.members.addWithin(trx, caller, request)
      const user = (await store.findUserUnscoped(trx, member.id))!
      const { row, token } = await this.makeToken(trx, 'invitation', user, invitation_ms, caller)
      const { name, role } = member
      await recordAuditEntry(trx, caller, 'invitation.created', row.id, { user_id: user.id, name, role }, now())
      return {
        token,
        invitation: { id: row.id, member, created_at: isoTime(row.created_at), expires_at: isoTime(row.expires_at) },
      }
    })
  }

  async invitations({ account_id }: Caller, { limit, after }: ListQuery): Promise<Page<Invitation>> {
    const { db, now } = this.options
    const last = after ? await store.findInvitation(db, account_id, after) : undefined
    if (after && !last) throw new ApiError('invitation_not_found', `There is no invitation '${after}'.`)
    const rows = await store.invitations(db, account_id, now(), limit, last)
    const { items, has_more } = pageOf(rows, limit)
    const shown = await Promise.all(items.map((item) => this.toInvitation(item)))
    return { items: shown.filter((invitation) => invitation !== undefined), has_more }
  }

  async withdraw(caller: Caller, id: string): Promise<{ id: string; deleted: true }> {
    const { db, now } = this.options
    await db.transaction().execute(async (trx) => {
      const row = await store.findInvitation(trx, caller.account_id, id)
      if (!row || !(await store.takeToken(trx, id)))
        throw new ApiError('invitation_not_found', `There is no invitation '${id}'.`)
      // Who was not let in is no member: their email is free again.
      if (row.user_id) await store.removeUnjoined(trx, [row.user_id], now())
      await recordAuditEntry(trx, caller, 'invitation.withdrawn', id, { user_id: row.user_id }, now())
    })
    return { id, deleted: true }
  }

  async lookAtInvitation(
    token: string,
  ): Promise<{
    account: { name: string }
    invited_by: string | null
    name: string
    email: string | null
    role: Member['role']
  }> {
    const { db } = this.options
    const { row, user } = await this.open('invitation', token)
    const inviter = row.invited_by ? await store.findUserUnscoped(db, row.invited_by) : undefined
    const { name, email, role, account_id } = user
    return {
      account: { name: await store.accountName(db, account_id) },
      invited_by: inviter?.name ?? null,
      name,
      email,
      role,
    }
  }

  async acceptInvitation(token: string, password: string | undefined, place: Place): Promise<Begun> {
    const { db, now } = this.options
    const { row, user } = await this.open('invitation', token)
    if (password !== undefined && user.email === null)
      throw new ApiError(
        'invalid_request',
        'This invitation has no email to sign in with. Accept it without a password, then set both.',
        { param: 'password' },
      )
    if (password !== undefined) requireGoodPassword(password, user.email)
    const hash = password === undefined ? undefined : await hashPassword(password)
    return db.transaction().execute(async (trx) => {
      if (!(await store.takeToken(trx, row.id))) throw linkInvalid()
      const by = { kind: 'session' as const, account_id: user.account_id, user_id: user.id, key_id: null }
      await recordAuditEntry(trx, by, 'invitation.accepted', row.id, { user_id: user.id }, now())
      if (hash) {
        await store.setPassword(trx, { user_id: user.id, hash, set_at: now() })
        await recordAuditEntry(trx, by, 'password.set', user.id, {}, now())
      }
      return this.begin(trx, user, 'invitation', place)
    })
  }

  private begin(trx: Trx, user: store.UserRow, begun_by: Beginning['begun_by'], place: Place) {
    return this.options.sessions.begin(trx, user, { begun_by, ...place })
  }

  /**
   * Whether the inviter, or the key that they invited with, could make this invitation now. They know its link: once
   * they were removed, the key was revoked, or the member may do more than they, it must not let them in.
   */
  private async isStillMeant(row: store.TokenRow, { account_id, role }: store.UserRow): Promise<boolean> {
    const { db, now } = this.options
    const inviter = row.invited_by ? await store.findUserUnscoped(db, row.invited_by) : undefined
    if (!inviter || inviter.account_id !== account_id) return false
    const key = row.key_id === null ? undefined : await store.usableKey(db, account_id, row.key_id, now())
    if (row.key_id !== null && !key) return false
    const granted = roleScopes[inviter.role]
    const carried = key ? fromJson(key.scopes_json) : granted
    const scopes = granted.filter((scope) => carried.includes(scope))
    const by = {
      kind: key ? ('key' as const) : ('session' as const),
      account_id,
      user_id: inviter.id,
      key_id: null,
      scopes,
    }
    return scopes.includes('members:write') && (await missingRights(db, by, role)) === undefined
  }

  private async toInvitation(row: store.TokenRow): Promise<Invitation | undefined> {
    const user = await store.findUserUnscoped(this.options.db, row.user_id!)
    if (!user || !(await this.isStillMeant(row, user))) return undefined
    return {
      id: row.id,
      member: toMemberResponse(user),
      created_at: isoTime(row.created_at),
      expires_at: isoTime(row.expires_at),
    }
  }

  /** The token's row and its member. Throws link_invalid. */
  private async open(kind: 'link' | 'invitation', token: string) {
    const { db, now } = this.options
    const row = await store.findToken(db, kind, hashOf(token), now())
    const user = row?.user_id ? await store.findUserUnscoped(db, row.user_id) : undefined
    if (!row || !user || (kind === 'invitation' && !(await this.isStillMeant(row, user)))) throw linkInvalid()
    return { row, user }
  }

  private async makeToken(
    trx: Trx,
    kind: 'link' | 'invitation',
    user: store.UserRow,
    lifetime_ms: number,
    inviter: Pick<Caller, 'kind' | 'user_id' | 'key_id'> | null,
  ) {
    const token = newToken()
    const created_at = this.options.now()
    const row: store.TokenRow = {
      id: newId('inv'),
      kind,
      hash: hashOf(token),
      account_id: user.account_id,
      user_id: user.id,
      invited_by: inviter?.user_id ?? null,
      key_id: inviter?.kind === 'key' ? inviter.key_id : null,
      created_at,
      expires_at: created_at + lifetime_ms,
    }
    await store.insertToken(trx, row)
    return { row, token }
  }

  /** The member with an email. Anybody may enter one, so that it alone does not say which of several is meant. */
  private async memberWith(trx: Trx, email: string, account_id: string | undefined): Promise<store.UserRow> {
    const all = await store.usersByEmail(trx, email)
    const users = account_id === undefined ? all : all.filter((user) => user.account_id === account_id)
    if (users.length === 0) {
      const where = account_id === undefined ? '' : ` in the account '${account_id}'`
      throw new ApiError(
        'member_not_found',
        `No member has the email '${email}'${where}. An admin of the account can invite them.`,
      )
    }
    if (users.length === 1) return users[0]!
    const members = await Promise.all(
      users.map(async (user) => ({ ...user, account: await store.accountName(trx, user.account_id) })),
    )
    throw new SeveralMembers(members)
  }
}
