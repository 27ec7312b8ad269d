// How people sign in to the dashboard: sessions, passwords, passkeys, links and invitations.
import { z } from 'zod'
import { Profile } from './accounts.ts'
import { Deleted, DisplayName, ListQuery, page, ShortName, Time } from './common.ts'
import { KeyScope } from './keys.ts'
import { Email, Identities, Member } from './members.ts'
import { routesOf } from './route.ts'

export const sessionBeginnings = ['link', 'password', 'passkey', 'oidc', 'invitation'] as const

export const Session = z.object({
  id: z.string(),
  current: z.boolean().describe('Whether it is the one that asks.'),
  begun_by: z.enum(sessionBeginnings),
  user_agent: z.string().describe('The browser, as it named itself when the session began.'),
  address: z.string().describe('The address from which the session began.'),
  created_at: Time,
  last_used_at: Time.describe('To the minute.'),
  expires_at: Time.describe('When it ends unless it is used before; each use moves it, up to 90 days in all.'),
})
export type Session = z.infer<typeof Session>

export const SessionState = z.object({
  session: Session,
  profile: Profile,
  scopes: z.array(KeyScope).describe('What the session may do: what the role of its member allows now.'),
  csrf_token: z.string().describe('Requests that change something carry it in `x-csrf-token`.'),
  has_password: z.boolean(),
  has_passkey: z.boolean(),
})
export type SessionState = z.infer<typeof SessionState>

export const Passkey = z.object({ id: z.string(), name: z.string(), created_at: Time, last_used_at: Time.nullable() })
export type Passkey = z.infer<typeof Passkey>

export const Invitation = z.object({ id: z.string(), member: Member, created_at: Time, expires_at: Time })
export type Invitation = z.infer<typeof Invitation>

export const passwordLength = { min: 10, max: 200 } as const
const NewPassword = z
  .string()
  .min(passwordLength.min)
  .max(passwordLength.max)
  .describe('10 to 200 characters; the commonest passwords and the email are refused.')
const Token = z.string().min(1).max(200).describe('The part of the link behind `#`.')
/** What a browser's WebAuthn call returned, as JSON. */
const Ceremony = z.looseObject({ id: z.string().max(2000) })
/** What a browser's WebAuthn call takes, as JSON. */
const CeremonyOptions = z.looseObject({ challenge: z.string() })

const route = routesOf({ tag: 'Sign-in' })
const byAnyone = routesOf({ tag: 'Sign-in', scope: 'public' })
const bySession = routesOf({ tag: 'Sign-in', scope: 'session' })

export const getSignIn = byAnyone('GET', '/sign-in', {
  summary: 'The ways to sign in to this service',
  responses: {
    200: z.object({
      password: z.boolean(),
      passkey: z.boolean(),
      oidc: z.string().nullable().describe('The name of the provider; null if there is none.'),
      first: z.boolean().describe('Nobody has signed in yet: the link that the first start printed is the way.'),
    }),
  },
})

const Begun = z.object({ session: Session }).describe('The session’s cookie is in the header `set-cookie`.')

export const signInWithPassword = byAnyone('POST', '/sign-in/password', {
  summary: 'Begin a session with email and password',
  body: z.strictObject({ email: z.string().min(1).max(254), password: z.string().min(1).max(passwordLength.max) }),
  responses: { 200: Begun },
})
export const signInWithLink = byAnyone('POST', '/sign-in/link', {
  summary: 'Begin a session with a sign-in link, which works once',
  body: z.strictObject({ token: Token }),
  responses: { 200: Begun },
})
export const getPasskeyChallenge = byAnyone('POST', '/sign-in/passkey/options', {
  summary: 'What a browser needs to sign in with a passkey',
  body: z.strictObject({}).nullish(),
  responses: { 200: CeremonyOptions },
})
export const signInWithPasskey = byAnyone('POST', '/sign-in/passkey', {
  summary: 'Begin a session with a passkey',
  body: z.strictObject({ response: Ceremony }),
  responses: { 200: Begun },
})
export const listAccountChoices = byAnyone('GET', '/sign-in/oidc/accounts', {
  summary: 'The accounts to which a person who comes from the OpenID provider may go, if they must choose',
  responses: {
    200: z.object({
      email: z.string().describe('What the provider has verified.'),
      items: z.array(
        z.object({
          user_id: z.string().nullable().describe('The member as whom they would sign in; null: as a new one.'),
          name: z.string(),
          role: Member.shape.role,
          account: z.object({ name: z.string() }),
        }),
      ),
    }),
  },
})
export const chooseAccount = byAnyone('POST', '/sign-in/oidc/accounts', {
  summary: 'Begin a session in one of these accounts; from now on the provider signs in there',
  body: z.strictObject({ user_id: z.string().max(100).nullable() }),
  responses: { 200: Begun.extend({ next: z.string().describe('The page to go to.') }) },
})
export const lookAtInvitation = byAnyone('POST', '/sign-in/invitation/look', {
  summary: 'What an invitation invites to',
  body: z.strictObject({ token: Token }),
  responses: {
    200: z.object({
      account: z.object({ name: z.string() }),
      invited_by: z.string().nullable(),
      name: z.string(),
      email: z.string().nullable(),
      role: Member.shape.role,
    }),
  },
})
export const acceptInvitation = byAnyone('POST', '/sign-in/invitation', {
  summary: 'Accept an invitation, set a password, and begin a session',
  body: z.strictObject({ token: Token, password: NewPassword.optional() }),
  responses: { 200: Begun },
})

export const getSession = bySession('GET', '/session', {
  summary: 'The session that asks, and its person',
  responses: { 200: SessionState },
})
export const endSession = bySession('DELETE', '/session', { summary: 'Sign out', responses: { 200: Deleted } })
export const listSessions = bySession('GET', '/sessions', {
  summary: 'Your sessions, the latest first',
  query: ListQuery,
  responses: { 200: page(Session) },
})
export const endOtherSessions = bySession('DELETE', '/sessions', {
  summary: 'End all your sessions but the one that asks',
  responses: { 200: z.object({ ended: z.int() }) },
})
export const endOneSession = bySession('DELETE', '/sessions/{session_id}', {
  summary: 'End one of your sessions',
  params: z.object({ session_id: z.string() }),
  responses: { 200: Deleted },
})

export const changeUser = bySession('PATCH', '/user', {
  summary: 'Change your name or email',
  body: z.strictObject({ name: DisplayName.optional(), email: Email.optional() }),
  responses: { 200: Member },
})
export const setPassword = bySession('PUT', '/user/password', {
  summary: 'Set your password; all your other sessions end',
  body: z.strictObject({
    password: NewPassword,
    current_password: z
      .string()
      .max(passwordLength.max)
      .optional()
      .describe('The password until now. Not needed within 10 minutes after a sign-in with a link.'),
    email: z.email().max(254).optional().describe('Needed if you have none yet: you sign in with it.'),
  }),
  responses: { 200: z.object({ has_password: z.literal(true) }) },
})
export const getPasskeyOptions = bySession('POST', '/user/passkeys/options', {
  summary: 'What a browser needs to make a passkey',
  body: z.strictObject({}).nullish(),
  responses: { 200: CeremonyOptions },
})
export const addPasskey = bySession('POST', '/user/passkeys', {
  summary: 'Add a passkey',
  body: z.strictObject({ name: ShortName, response: Ceremony }),
  responses: { 201: Passkey },
})
export const listPasskeys = bySession('GET', '/user/passkeys', {
  summary: 'Your passkeys',
  responses: { 200: z.object({ items: z.array(Passkey) }) },
})
export const removePasskey = bySession('DELETE', '/user/passkeys/{passkey_id}', {
  summary: 'Remove a passkey',
  params: z.object({ passkey_id: z.string() }),
  responses: { 200: Deleted },
})

export const listOwnIdentities = bySession('GET', '/user/identities', {
  summary: 'How the OpenID provider knows you, the oldest connection first',
  responses: { 200: Identities },
})
export const removeOwnIdentity = bySession('DELETE', '/user/identities/{identity_id}', {
  summary: 'Remove your connection to the OpenID provider; your other sessions that it began end',
  params: z.object({ identity_id: z.string() }),
  responses: { 200: Deleted },
})

export const createInvitation = route('POST', '/invitations', {
  scope: 'members:write',
  summary: 'Add a member, and make a link with which they sign in; it is shown once, and works once within 7 days',
  body: z.strictObject({ name: DisplayName, email: Email.default(null), role: Member.shape.role.default('member') }),
  responses: { 201: Invitation.extend({ link: z.string().describe('Send it to the new member yourself.') }) },
})
export const listInvitations = route('GET', '/invitations', {
  scope: 'members:read',
  summary: 'Invitations that nobody has accepted yet, newest first',
  query: ListQuery,
  responses: { 200: page(Invitation) },
})
export const withdrawInvitation = route('DELETE', '/invitations/{invitation_id}', {
  scope: 'members:write',
  summary: 'Withdraw an invitation: its link stops working; the member stays until they are removed',
  params: z.object({ invitation_id: z.string() }),
  responses: { 200: Deleted },
})
