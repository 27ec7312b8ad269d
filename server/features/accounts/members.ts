import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { addMember, changeMember, Member } from '../../../contract/members.ts'
import { newId } from '../../../lib/ids.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Db, Queryable, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import { ownersOnly, requireRights } from './authority.ts'
import * as store from './store.ts'

type AddRequest = z.output<typeof addMember.body>

export const toMemberResponse = ({ id, name, email, role, created_at }: store.UserRow): Member => ({
  id,
  name,
  email,
  role,
  created_at: isoTime(created_at),
})

interface Options {
  db: Db
  /** Called after a committed change to what keys may do. */
  announce: Changes['announce']
  now(): number
}

export class Members {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  add(caller: Caller, request: AddRequest): Promise<Member> {
    return this.options.db.transaction().execute((trx) => this.addWithin(trx, caller, request))
  }

  /** The same within a transaction. */
  async addWithin(trx: Trx, by: AccountActor, request: AddRequest): Promise<Member> {
    await requireRights(trx, by, request.role, this.options.now())
    const { account_id } = by
    const email = request.email?.toLowerCase() ?? null
    const row = {
      id: newId('usr'),
      account_id,
      name: request.name,
      email,
      email_accepted_at: null,
      role: request.role,
      removed_at: null,
      operator: 0,
      created_at: this.options.now(),
    }
    await requireFreeEmail(trx, account_id, email, row.id)
    await store.insertUser(trx, row)
    await recordAuditEntry(trx, by, 'member.added', row.id, { name: row.name, role: row.role }, row.created_at)
    return toMemberResponse(row)
  }

  /** Takes a proven email from members of the account who have only entered it. */
  async releaseEmail(trx: Trx, by: AccountActor, email: string, except = ''): Promise<void> {
    for (const { id } of await store.unprovenHolders(trx, by.account_id, email, except)) {
      await store.updateUser(trx, id, { email: null })
      const reason = 'a provider verified that it is the email of another'
      await recordAuditEntry(
        trx,
        by,
        'member.changed',
        id,
        { from: { email }, to: { email: null }, reason },
        this.options.now(),
      )
    }
  }

  /** The email is the member's, as a provider has verified: from now on it counts for them. Releases it before. */
  async acceptEmail(trx: Trx, by: AccountActor, user_id: string, email: string): Promise<void> {
    await this.releaseEmail(trx, by, email, user_id)
    await store.updateUser(trx, user_id, { email, email_accepted_at: this.options.now() })
  }

  async list(caller: Caller, { limit, after }: ListQuery): Promise<Page<Member>> {
    const { db } = this.options
    const last = after ? await store.findUserUnscoped(db, after) : undefined
    if (after && last?.account_id !== caller.account_id)
      throw new ApiError('member_not_found', `There is no member '${after}' to continue after.`)
    const rows = await store.listMembers(db, caller.account_id, limit, last)
    return pageOf(rows.map(toMemberResponse), limit)
  }

  async get(caller: Caller, id: string): Promise<Member> {
    return toMemberResponse(await find(this.options.db, caller, id))
  }

  async change(caller: Caller, id: string, { name, email, role }: z.output<typeof changeMember.body>): Promise<Member> {
    const { db, announce, now } = this.options
    const member = await db.transaction().execute(async (trx) => {
      const before = await find(trx, caller, id)
      if (before.role === 'owner') await requireOwner(trx, caller)
      if (before.role === 'owner' && role && role !== 'owner') await requireAnotherOwner(trx, before)
      const values = { name: name ?? before.name, role: role ?? before.role, ...emailOf(before, email) }
      const changesRole = values.role !== before.role
      const changesEmail = values.email !== before.email
      if (changesEmail || changesRole) {
        requireOwnIfOperator(caller, before)
        await requireRights(trx, caller, values.role, now())
      }
      // Who has the email signs in with what the member may do, and that until now.
      if (changesEmail) await requireRights(trx, caller, before.role, now())
      await requireFreeEmail(trx, caller.account_id, values.email, id)
      await store.updateUser(trx, id, values)
      const from = { name: before.name, email: before.email, role: before.role }
      const to = { name: values.name, email: values.email, role: values.role }
      await recordAuditEntry(trx, caller, 'member.changed', id, { from, to }, now())
      return toMemberResponse({ ...before, ...values })
    })
    await announce(caller.account_id)
    return member
  }

  /** Changes the caller's own name or email. */
  async changeOwn(
    caller: Caller,
    { name, email }: { name?: string | undefined; email?: string | null | undefined },
  ): Promise<Member> {
    const { db, announce, now } = this.options
    const member = await db.transaction().execute(async (trx) => {
      const before = await find(trx, caller, caller.user_id)
      const values = { name: name ?? before.name, ...emailOf(before, email) }
      await requireFreeEmail(trx, caller.account_id, values.email, before.id)
      await store.updateUser(trx, before.id, values)
      const from = { name: before.name, email: before.email }
      const to = { name: values.name, email: values.email }
      await recordAuditEntry(trx, caller, 'member.changed', before.id, { from, to }, now())
      return toMemberResponse({ ...before, ...values })
    })
    await announce(caller.account_id)
    return member
  }

  async remove(caller: Caller, id: string): Promise<{ id: string; deleted: true }> {
    const { db, announce, now } = this.options
    await db.transaction().execute(async (trx) => {
      const before = await find(trx, caller, id)
      if (before.role === 'owner') {
        await requireOwner(trx, caller)
        await requireAnotherOwner(trx, before)
      }
      requireOwnIfOperator(caller, before)
      await store.updateUser(trx, id, { removed_at: now() })
      await store.revokeKeysOf(trx, id, now())
      await store.removeSignInOf(trx, id)
      await recordAuditEntry(trx, caller, 'member.removed', id, { name: before.name }, now())
    })
    await announce(caller.account_id)
    return { id, deleted: true }
  }
}

async function find(trx: Queryable, { account_id }: Caller, id: string): Promise<store.UserRow> {
  const row = await store.findMember(trx, account_id, id)
  if (!row) throw new ApiError('member_not_found', `There is no member '${id}'.`)
  return row
}

/** Only owners may change and remove owners. */
async function requireOwner(trx: Trx, { account_id, user_id }: AccountActor): Promise<void> {
  if (user_id === null || (await store.findMember(trx, account_id, user_id))?.role !== 'owner') throw ownersOnly()
}

/**
 * Another owner must not become the operator: by the email, with which a sign-in by a provider finds its member, or
 * by removing them, as the command line then makes the next owner the operator.
 */
function requireOwnIfOperator({ user_id }: Caller, { operator, id }: store.UserRow): void {
  if (operator === 1 && id !== user_id)
    throw new ApiError(
      'insufficient_permissions',
      'This member operates the service. Only they may change their email and role, or remove themselves.',
    )
}

async function requireAnotherOwner(trx: Trx, { account_id, id }: store.UserRow): Promise<void> {
  if (!(await store.otherOwner(trx, account_id, id)))
    throw new ApiError('in_use', 'The account must keep an owner. Make another member an owner first.', {
      param: 'role',
    })
}

async function requireFreeEmail(trx: Trx, account_id: string, email: string | null, id: string): Promise<void> {
  if (email && (await store.emailTaken(trx, account_id, email, id)))
    throw new ApiError('name_taken', `Another member has the email address '${email}'.`, { param: 'email' })
}

/** What changes with a member's email: nothing proves another one yet. */
function emailOf(before: store.UserRow, requested: string | null | undefined) {
  const email = requested === undefined ? before.email : (requested?.toLowerCase() ?? null)
  return { email, email_accepted_at: email === before.email ? before.email_accepted_at : null }
}
