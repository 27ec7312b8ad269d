import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { listIdentities, removeIdentity } from '../../../contract/members.ts'
import {
  acceptInvitation,
  addPasskey,
  changeUser,
  chooseAccount,
  createInvitation,
  endOneSession,
  endOtherSessions,
  endSession,
  getPasskeyChallenge,
  getPasskeyOptions,
  getSession,
  getSignIn,
  listAccountChoices,
  listInvitations,
  listOwnIdentities,
  listPasskeys,
  listSessions,
  lookAtInvitation,
  removeOwnIdentity,
  removePasskey,
  type Session,
  setPassword,
  signInWithLink,
  signInWithPasskey,
  signInWithPassword,
  withdrawInvitation,
} from '../../../contract/sign-in.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { mount } from '../../platform/http/mount.ts'
import {
  clearSessionCookie,
  cookieIn,
  csrfTokenOf,
  sessionTokenIn,
  setSessionCookie,
} from '../../platform/http/session-cookie.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Identities } from './identities.ts'
import { type Arrival, keptFor_s, type Oidc, OidcError } from './oidc.ts'
import { type Passkeys, passkeysPossible } from './passkeys.ts'
import type { Begun, Place, SignIn } from './service.ts'
import { cookieSeconds, type Sessions } from './sessions.ts'

interface Parts {
  accounts: Accounts
  signIn: SignIn
  sessions: Sessions
  passkeys: Passkeys
  identities: Identities
  oidc: Oidc | undefined
  /** The address under which browsers see the service, if it is set. */
  public_url: string | undefined
  countRequest(address: string): Promise<void>
}

export function signInRoutes(app: FastifyInstance, parts: Parts): void {
  const { accounts, signIn, sessions, passkeys, identities, oidc, public_url, countRequest } = parts
  const originOf = ({ protocol, host }: FastifyRequest) => {
    if (public_url) return new URL(public_url).origin
    const origin = `${protocol}://${host}`
    if (URL.canParse(origin)) return new URL(origin).origin
    throw new ApiError('invalid_request', 'The header `Host` is not an address.')
  }
  const placeOf = (request: FastifyRequest): Place => ({
    user_agent: String(request.headers['user-agent'] ?? ''),
    address: request.ip,
  })
  const enter = (request: FastifyRequest, reply: FastifyReply, { token, session }: Begun) => {
    setSessionCookie(request, reply, token, cookieSeconds, public_url && new URL(public_url).origin)
    return { session }
  }

  mount(app, getSignIn, async ({ request }) => {
    const { first, password } = await signIn.state()
    // With a provider the first person may sign in there.
    return { first: first && !oidc, password, passkey: passkeysPossible(originOf(request)), oidc: oidc?.name ?? null }
  })
  mount(app, signInWithPassword, async ({ request, reply, body }) =>
    enter(request, reply, await signIn.withPassword(body.email, body.password, placeOf(request))),
  )
  mount(app, signInWithLink, async ({ request, reply, body }) =>
    enter(request, reply, await signIn.withLink(body.token, placeOf(request))),
  )
  mount(app, getPasskeyChallenge, ({ request }) => passkeys.requestOptions(originOf(request)))
  mount(app, signInWithPasskey, async ({ request, reply, body }) => {
    const user = await passkeys.verify(originOf(request), body.response)
    return enter(request, reply, await signIn.as(user, 'passkey', placeOf(request)))
  })
  mount(app, lookAtInvitation, ({ body }) => signIn.lookAtInvitation(body.token))
  mount(app, acceptInvitation, async ({ request, reply, body }) =>
    enter(request, reply, await signIn.acceptInvitation(body.token, body.password, placeOf(request))),
  )

  mount(app, getSession, async ({ caller, request }) => ({
    session: await sessions.get(caller),
    profile: await accounts.profile(caller),
    scopes: [...caller.scopes],
    csrf_token: csrfTokenOf(sessionTokenIn(request)!),
    ...(await signIn.ways(caller.user_id)),
  }))
  const end = async (caller: Caller, id: string, request: FastifyRequest, reply: FastifyReply) => {
    const ended = await sessions.end(caller, id)
    if (id === caller.key_id) clearSessionCookie(request, reply)
    return ended
  }
  mount(app, endSession, ({ caller, request, reply }) => end(caller, caller.key_id, request, reply))
  mount(app, listSessions, ({ caller, query }) => sessions.list(caller, query))
  mount(app, endOtherSessions, ({ caller }) => sessions.endOthers(caller))
  mount(app, endOneSession, ({ caller, params, request, reply }) => end(caller, params.session_id, request, reply))

  mount(app, changeUser, ({ caller, body }) => accounts.members.changeOwn(caller, body))
  mount(app, setPassword, async ({ caller, body }) => {
    await signIn.setPassword(caller, body)
    return { has_password: true as const }
  })
  mount(app, getPasskeyOptions, ({ caller, request }) => passkeys.creationOptions(caller, originOf(request)))
  mount(app, addPasskey, ({ caller, request, body }) =>
    passkeys.add(caller, originOf(request), body.name, body.response),
  )
  mount(app, listPasskeys, async ({ caller }) => ({ items: await passkeys.list(caller) }))
  mount(app, removePasskey, ({ caller, params }) => passkeys.remove(caller, params.passkey_id))

  mount(app, listOwnIdentities, async ({ caller: { account_id, user_id } }) => ({
    items: await identities.list(account_id, user_id),
  }))
  mount(app, removeOwnIdentity, ({ caller, params }) => identities.remove(caller, caller.user_id, params.identity_id))
  mount(app, listIdentities, async ({ caller, params }) => ({
    items: await identities.list(caller.account_id, params.user_id),
  }))
  mount(app, removeIdentity, ({ caller, params }) => identities.remove(caller, params.user_id, params.identity_id))

  /** Who comes from the provider, and chooses an account. */
  const arrivalOf = ({ headers }: FastifyRequest): Arrival => {
    const arrival = oidc?.read(cookieIn(headers.cookie, oidcCookie))
    if (!arrival) throw new ApiError('sign_in_failed', 'Signing in took too long. Begin again on the sign-in page.')
    return arrival
  }
  mount(app, listAccountChoices, async ({ request }) => {
    const { person } = arrivalOf(request)
    return { email: person.email ?? '', items: await identities.offers(person) }
  })
  mount(app, chooseAccount, async ({ request, reply, body }) => {
    const { person, next } = arrivalOf(request)
    const user = await identities.choose(person, body.user_id)
    if (!user) throw new ApiError('sign_in_failed', 'That account is open to you no more. Sign in again.')
    setOidcCookie(request, reply, '', 0)
    return { ...enter(request, reply, await signIn.as(user, 'oidc', placeOf(request))), next }
  })

  mount(app, createInvitation, async ({ caller, request, body }) => {
    const { invitation, token } = await signIn.invite(caller, body)
    return { ...invitation, link: `${originOf(request)}/invitation#${token}` }
  })
  mount(app, listInvitations, ({ caller, query }) => signIn.invitations(caller, query))
  mount(app, withdrawInvitation, ({ caller, params }) => signIn.withdraw(caller, params.invitation_id))

  if (oidc) oidcRoutes(app, { oidc, identities, signIn, sessions, countRequest, originOf, enter, placeOf })
}

interface OidcParts extends Pick<Parts, 'identities' | 'signIn' | 'sessions' | 'countRequest'> {
  oidc: Oidc
  originOf(request: FastifyRequest): string
  placeOf(request: FastifyRequest): Place
  /** Sets the cookie of a session that has begun. */
  enter(request: FastifyRequest, reply: FastifyReply, begun: Begun): { session: Session }
}

const oidcCookie = 'tunery_oidc'
const setOidcCookie = (request: FastifyRequest, reply: FastifyReply, value: string, maxAge_s: number) =>
  reply.header(
    'set-cookie',
    `${oidcCookie}=${value}; Max-Age=${maxAge_s}; Path=/v1/sign-in/oidc; HttpOnly; SameSite=Lax` +
      (request.protocol === 'https' ? '; Secure' : ''),
  )

/** Redirects of the browser to the provider and back: not part of the API's description. */
function oidcRoutes(app: FastifyInstance, parts: OidcParts): void {
  const { oidc, identities, signIn, sessions, countRequest, originOf, placeOf, enter } = parts
  const options = { schema: { hide: true }, config: { redirect: true } } as const
  /** Errors go to the sign-in page: a person is waiting, not a program. */
  const fail = (request: FastifyRequest, reply: FastifyReply, error: unknown) => {
    if (error instanceof ApiError && error.code === 'rate_limit_exceeded')
      return reply.redirect('/sign-in?error=too_many_tries')
    if (!(error instanceof OidcError)) throw error
    request.log.warn({ code: error.code, reason: error.message }, 'a sign-in by the OpenID provider failed')
    return reply.redirect(`/sign-in?error=${error.code}`)
  }

  app.get<{ Querystring: { next?: unknown } }>('/v1/sign-in/oidc', options, async (request, reply) => {
    try {
      await countRequest(request.ip)
      const { location, kept } = await oidc.begin(originOf(request), ownPath(request.query.next))
      setOidcCookie(request, reply, kept, keptFor_s)
      return reply.redirect(location)
    } catch (error) {
      return fail(request, reply, error)
    }
  })
  app.get('/v1/sign-in/oidc/callback', options, async (request, reply) => {
    const kept = cookieIn(request.headers.cookie, oidcCookie)
    setOidcCookie(request, reply, '', 0)
    try {
      await countRequest(request.ip)
      const { search } = new URL(request.url, 'http://unused.invalid')
      const token = sessionTokenIn(request)
      const before = token === undefined ? undefined : await sessions.find(token)
      const arrival = await oidc.finish(originOf(request), search, kept)
      const match = await identities.find(arrival.person, before?.user_id)
      if ('user' in match) {
        enter(request, reply, await signIn.as(match.user, 'oidc', placeOf(request)))
        return reply.redirect(arrival.next)
      }
      if (match.offers.length === 0)
        throw new OidcError(arrival.person.verified ? 'oidc_no_account' : 'oidc_unverified')
      reply.removeHeader('set-cookie')
      setOidcCookie(request, reply, oidc.keep(arrival), keptFor_s)
      return reply.redirect('/choose-account')
    } catch (error) {
      return fail(request, reply, error)
    }
  })
}

/** A path of this service, as browsers read it: anything else would send people elsewhere after their sign-in. */
export function ownPath(address: unknown): string {
  const base = 'http://unused.invalid'
  if (typeof address !== 'string' || !URL.canParse(address, base)) return '/'
  const { origin, pathname, search, hash } = new URL(address, base)
  return origin === base && !pathname.startsWith('//') ? pathname + search + hash : '/'
}
