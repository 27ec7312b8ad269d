import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import {
  acceptInvitation,
  addPasskey,
  changeUser,
  createInvitation,
  endOneSession,
  endOtherSessions,
  endSession,
  getPasskeyChallenge,
  getPasskeyOptions,
  getSession,
  getSignIn,
  listInvitations,
  listPasskeys,
  listSessions,
  lookAtInvitation,
  removePasskey,
  setPassword,
  signInWithLink,
  signInWithPasskey,
  signInWithPassword,
  withdrawInvitation,
} from '../../contract/sign-in.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Caller } from '../http/auth.ts'
import { mount } from '../http/mount.ts'
import { clearSessionCookie, cookieIn, csrfTokenOf, sessionTokenIn, setSessionCookie } from '../http/session-cookie.ts'
import { keptFor_s, type Oidc, OidcError } from './oidc.ts'
import { type Passkeys, passkeysPossible } from './passkeys.ts'
import type { Begun, Place, SignIn } from './service.ts'
import { cookieSeconds, type Sessions } from './sessions.ts'

interface Parts {
  accounts: Accounts
  signIn: SignIn
  sessions: Sessions
  passkeys: Passkeys
  oidc: Oidc | undefined
  /** The address under which browsers see the service, if it is set. */
  public_url: string | undefined
  countRequest(address: string): Promise<void>
}

export function signInRoutes(app: FastifyInstance, parts: Parts): void {
  const { accounts, signIn, sessions, passkeys, oidc, public_url } = parts
  const originOf = ({ protocol, host }: FastifyRequest) =>
    public_url ? new URL(public_url).origin : `${protocol}://${host}`
  const placeOf = (request: FastifyRequest): Place => ({
    user_agent: String(request.headers['user-agent'] ?? ''),
    address: request.ip,
  })
  const enter = (request: FastifyRequest, reply: FastifyReply, { token, session }: Begun) => {
    setSessionCookie(request, reply, token, cookieSeconds)
    return { session }
  }

  mount(app, getSignIn, async ({ request }) => {
    const { first, password } = await signIn.state()
    return { first, password, passkey: passkeysPossible(originOf(request)), oidc: oidc?.name ?? null }
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

  mount(app, createInvitation, async ({ caller, request, body }) => {
    const { invitation, token } = await signIn.invite(caller, body)
    return { ...invitation, link: `${originOf(request)}/invitation#${token}` }
  })
  mount(app, listInvitations, ({ caller, query }) => signIn.invitations(caller, query))
  mount(app, withdrawInvitation, ({ caller, params }) => signIn.withdraw(caller, params.invitation_id))

  if (!oidc) return
  // Redirects of the browser: not part of the API's description.
  const hidden = { schema: { hide: true } } as const
  const cookie = 'tunery_oidc'
  const scope = 'Path=/v1/sign-in/oidc; HttpOnly; SameSite=Lax'
  app.get<{ Querystring: { next?: string } }>('/v1/sign-in/oidc', hidden, async (request, reply) => {
    await parts.countRequest(request.ip)
    const given = request.query.next
    // Only a path of this service: anything else would send people elsewhere after their sign-in.
    const next = typeof given === 'string' && /^\/(?![/\\])/.test(given) ? given : '/'
    const { location, kept } = await oidc.begin(originOf(request), next)
    const secure = request.protocol === 'https' ? '; Secure' : ''
    return reply.header('set-cookie', `${cookie}=${kept}; Max-Age=${keptFor_s}; ${scope}${secure}`).redirect(location)
  })
  app.get('/v1/sign-in/oidc/callback', hidden, async (request, reply) => {
    await parts.countRequest(request.ip)
    try {
      const search = new URL(request.url, 'http://unused').search
      const found = await oidc.finish(originOf(request), search, cookieIn(request.headers.cookie, cookie))
      enter(request, reply, await signIn.as(found.user, 'oidc', placeOf(request)))
      return reply.redirect(found.next)
    } catch (error) {
      if (!(error instanceof OidcError) && !(error instanceof ApiError)) throw error
      request.log.info({ reason: error.message }, 'a sign-in by the OpenID provider failed')
      return reply.redirect(`/sign-in?error=${error instanceof OidcError ? error.code : 'oidc_failed'}`)
    }
  })
}
