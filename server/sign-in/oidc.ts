// Sign-in with an OpenID Connect provider: code flow with PKCE, state and nonce.
import * as client from 'openid-client'
import { DisplayName } from '../../contract/common.ts'
import { Email } from '../../contract/members.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Db, Trx } from '../db/open.ts'
import { recordAuditEntry, serviceActor } from '../events/audit.ts'
import type { Secrets } from '../storage/secrets.ts'
import * as store from './store.ts'

export interface OidcSettings {
  issuer: string
  client_id: string
  client_secret: string
  name: string
  /** Email domains whose people become members of the operator's account; in lower case. */
  sign_up: readonly string[]
  sign_up_role: 'viewer' | 'member'
}

interface Needs {
  db: Db
  members: Accounts['members']
  secrets: Secrets
  now(): number
}

export interface Oidc {
  name: string
  /** Where to send the browser, and what it keeps until it comes back. Throws OidcError. */
  begin(origin: string, next: string): Promise<{ location: string; kept: string }>
  /** The member who signed in there. `signed_in`: who is signed in here already. Throws OidcError. */
  finish(
    origin: string,
    search: string,
    kept: string | undefined,
    signed_in: string | undefined,
  ): Promise<{ user: store.UserRow; next: string }>
}

/** Why a sign-in there failed; the code is shown by the page. */
export class OidcError extends Error {
  readonly code:
    | 'oidc_cancelled'
    | 'oidc_expired'
    | 'oidc_failed'
    | 'oidc_no_account'
    | 'oidc_sign_in_first'
    | 'oidc_unavailable'
    | 'oidc_unverified'
  constructor(code: OidcError['code'], message: string = code) {
    super(message)
    this.code = code
  }
}

const callbackPath = '/v1/sign-in/oidc/callback'
export const keptFor_s = 600

interface Kept {
  state: string
  nonce: string
  verifier: string
  next: string
  until: number
}

export function createOidc(settings: OidcSettings, { db, members, secrets, now }: Needs): Oidc {
  let discovered: Promise<client.Configuration> | undefined
  const isLocal = /^http:\/\/(localhost|127\.0\.0\.1|\[::1\])(:|\/|$)/.test(settings.issuer)
  const [basic, post] = [client.ClientSecretBasic, client.ClientSecretPost].map((make) => make(settings.client_secret))
  const authenticateClient: client.ClientAuth = (server, ...rest) => {
    // The method that holds where a provider names none.
    const methods = server.token_endpoint_auth_methods_supported ?? ['client_secret_basic']
    return (methods.includes('client_secret_basic') ? basic! : post!)(server, ...rest)
  }
  /** Discovered at the first sign-in: the provider may be away when the service starts. */
  const configuration = () => {
    discovered ??= client
      .discovery(new URL(settings.issuer), settings.client_id, settings.client_secret, authenticateClient, {
        ...(isLocal && { execute: [client.allowInsecureRequests] }),
        timeout: 10,
      })
      .catch((error: Error) => {
        discovered = undefined
        throw new OidcError(
          'oidc_unavailable',
          `${settings.issuer} could not be asked how to sign in: ${reason(error)}`,
        )
      })
    return discovered
  }

  return {
    name: settings.name,

    async begin(origin, next) {
      const config = await configuration()
      const kept: Kept = {
        state: client.randomState(),
        nonce: client.randomNonce(),
        verifier: client.randomPKCECodeVerifier(),
        next,
        until: now() + keptFor_s * 1000,
      }
      const location = client.buildAuthorizationUrl(config, {
        redirect_uri: origin + callbackPath,
        scope: 'openid email profile',
        state: kept.state,
        nonce: kept.nonce,
        code_challenge: await client.calculatePKCECodeChallenge(kept.verifier),
        code_challenge_method: 'S256',
      })
      return { location: location.href, kept: secrets.encrypt(JSON.stringify(kept), 'oidc') }
    },

    async finish(origin, search, sealed, signed_in) {
      if (new URLSearchParams(search).get('error') === 'access_denied') throw new OidcError('oidc_cancelled')
      const kept = readKept(sealed)
      if (!kept || kept.until < now()) throw new OidcError('oidc_expired')
      const claims = await claimsOf(await configuration(), new URL(origin + callbackPath + search), kept).catch(
        (error: Error) => {
          throw new OidcError('oidc_failed', reason(error))
        },
      )
      return { user: await db.transaction().execute((trx) => memberOf(trx, claims, signed_in)), next: kept.next }
    },
  }

  async function claimsOf(
    config: client.Configuration,
    address: URL,
    { state, nonce, verifier }: Kept,
  ): Promise<client.IDToken> {
    const tokens = await client.authorizationCodeGrant(config, address, {
      expectedState: state,
      expectedNonce: nonce,
      pkceCodeVerifier: verifier,
    })
    const claims = tokens.claims()!
    // Many providers tell the email only there.
    if (claims.email !== undefined || !config.serverMetadata().userinfo_endpoint) return claims
    return { ...(await client.fetchUserInfo(config, tokens.access_token, claims.sub)), ...claims }
  }

  function readKept(sealed: string | undefined): Kept | undefined {
    try {
      return sealed === undefined ? undefined : (JSON.parse(secrets.decrypt(sealed, 'oidc')) as Kept)
    } catch {
      return undefined
    }
  }

  /** Who signed in before, or the member with the email that the provider has verified, or a new one. */
  async function memberOf(trx: Trx, claims: client.IDToken, signed_in: string | undefined): Promise<store.UserRow> {
    const { iss: issuer, sub: subject } = claims
    const bound = await store.identity(trx, issuer, subject)
    const before = bound && (await store.user(trx, bound.user_id))
    if (before) return before
    // Others could claim an unverified email, and with it the member who has it.
    if (String(claims.email_verified) !== 'true') throw new OidcError('oidc_unverified')
    const email = Email.safeParse(claims.email).data?.toLowerCase()
    const matching = email ? await store.usersByEmail(trx, email) : []
    const user =
      matching.length > 0
        ? chooseFrom(matching, signed_in)
        : email === undefined
          ? undefined
          : await signUp(trx, email, claims.name)
    if (!user) throw new OidcError('oidc_no_account')
    await store.bindIdentity(trx, { issuer, subject, user_id: user.id, created_at: now() })
    const by = { ...serviceActor, account_id: user.account_id }
    await recordAuditEntry(trx, by, 'identity.bound', user.id, { issuer }, now())
    return user
  }

  /**
   * The member to connect. Admins and members write emails as they like, and keys do: where several have the email, or
   * the operator, who may do everything, only who is signed in as that member is believed.
   */
  function chooseFrom(matching: store.UserRow[], signed_in: string | undefined): store.UserRow {
    const own = matching.find(({ id }) => id === signed_in)
    if (own) return own
    if (matching.length > 1 || matching[0]!.operator === 1) throw new OidcError('oidc_sign_in_first')
    return matching[0]!
  }

  /** A new member of the operator's account, if the email's domain may sign up and its person was not removed. */
  async function signUp(trx: Trx, email: string, name: unknown): Promise<store.UserRow | undefined> {
    if (!settings.sign_up.includes(email.split('@')[1]!)) return undefined
    const operator = await store.operatorUser(trx)
    if (!operator || (await store.wasRemoved(trx, operator.account_id, email))) return undefined
    const { id } = await members.addWithin(
      trx,
      { ...serviceActor, account_id: operator.account_id },
      { name: DisplayName.safeParse(name).data ?? email.split('@')[0]!, email, role: settings.sign_up_role },
    )
    return store.user(trx, id)
  }
}

/** What an error of the client library says, with what the provider said. */
const reason = (error: Error & { code?: string; error?: string }) =>
  [error.message, error.code, error.error].filter(Boolean).join(', ')
