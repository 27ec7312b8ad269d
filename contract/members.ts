import { z } from 'zod'
import { Deleted, DisplayName, ListQuery, page, Time } from './common.ts'
import { routesOf } from './route.ts'
import { roles } from './scopes.ts'

export const Role = z.enum(roles)

export const Member = z.object({
  id: z.string(),
  name: z.string(),
  email: z.string().nullable(),
  role: Role.describe('Bounds what keys of this member may do.'),
  created_at: Time,
})
export type Member = z.infer<typeof Member>

export const Email = z
  .email()
  .max(254)
  .regex(/^[^@]{1,64}@/, 'may have 64 characters before the @')
  .nullable()
const route = routesOf({ tag: 'Members' })
const MemberParams = z.object({ user_id: z.string() })

export const Identity = z.object({
  id: z.string(),
  issuer: z.string().describe('The address of the OpenID provider.'),
  email: z.string().nullable().describe('What the provider verified as the member’s email when it was connected.'),
  created_at: Time,
})
export type Identity = z.infer<typeof Identity>
export const Identities = z.object({ items: z.array(Identity) })

export const addMember = route('POST', '/members', {
  scope: 'members:write',
  summary: 'Add a member to the account; `POST /keys` with the member’s id makes a key for them',
  body: z.strictObject({ name: DisplayName, email: Email.default(null), role: Role.default('member') }),
  responses: { 201: Member },
})
export const listMembers = route('GET', '/members', {
  scope: 'members:read',
  summary: 'The members of the account, newest first',
  query: ListQuery,
  responses: { 200: page(Member) },
})
export const getMember = route('GET', '/members/{user_id}', {
  scope: 'members:read',
  summary: 'One member',
  params: MemberParams,
  responses: { 200: Member },
})
export const changeMember = route('PUT', '/members/{user_id}', {
  scope: 'members:write',
  summary: 'Change a member’s name, email or role; the member’s keys lose the scopes of the old role within a second',
  params: MemberParams,
  body: z.strictObject({ name: DisplayName.optional(), email: Email.optional(), role: Role.optional() }),
  responses: { 200: Member },
})
export const listIdentities = route('GET', '/members/{user_id}/identities', {
  scope: 'members:read',
  summary: 'Who signs in as a member by the OpenID provider, the oldest connection first',
  params: MemberParams,
  responses: { 200: Identities },
})
export const removeIdentity = route('DELETE', '/members/{user_id}/identities/{identity_id}', {
  scope: 'members:write',
  summary:
    'Remove a member’s connection to the OpenID provider and end the sessions that it began; change the email too if ' +
    'it is not theirs',
  params: z.object({ user_id: z.string(), identity_id: z.string() }),
  responses: { 200: Deleted },
})
export const removeMember = route('DELETE', '/members/{user_id}', {
  scope: 'members:write',
  summary: 'Remove a member and revoke their keys; what they made stays the account’s',
  params: MemberParams,
  responses: { 200: Deleted },
})
