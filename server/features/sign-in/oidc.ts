// Sign-in with an OpenID Connect provider: code flow with PKCE, state and nonce.
import * as client from 'openid-client'
import { Email } from '../../../contract/members.ts'
import { lazy } from '../../../lib/lazy.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'

interface OidcSettings {
  issuer: string
  client_id: string
  client_secret: string
  name: string
}

interface Needs {
  secrets: Secrets
  now(): number
}

export interface Oidc {
  name: string
  /** Where to send the browser, and what it keeps until it comes back. Throws OidcError. */
  begin(origin: string, next: string): Promise<{ location: string; kept: string }>
  /** The person who signed in there. Throws OidcError. */
  finish(origin: string, search: string, kept: string | undefined): Promise<Arrival>
  /** What the browser keeps while its person chooses an account. */
  keep(arrival: Arrival): string
  /** The person who chooses; undefined after 10 minutes. */
  read(kept: string | undefined): Arrival | undefined
}

/** A person as a provider knows them. */
export interface Person {
  issuer: string
  subject: string
  /** Whether the provider has verified their email. */
  verified: boolean
  /**
   * Theirs as it verified it, in lower case: others could claim an unverified one, and with it the member who has it.
   */
  email: string | undefined
  name: unknown
}

/** Who signed in at the provider, and where they go afterwards. */
export interface Arrival {
  person: Person
  next: string
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

export function createOidc(settings: OidcSettings, { secrets, now }: Needs): Oidc {
  const isLocal = /^http:\/\/(localhost|127\.0\.0\.1|\[::1\])(:|\/|$)/.test(settings.issuer)
  const [basic, post] = [client.ClientSecretBasic, client.ClientSecretPost].map((make) => make(settings.client_secret))
  const authenticateClient: client.ClientAuth = (server, ...rest) => {
    // The method that holds where a provider names none.
    const methods = server.token_endpoint_auth_methods_supported ?? ['client_secret_basic']
    return (methods.includes('client_secret_basic') ? basic! : post!)(server, ...rest)
  }
  /** Discovered at the first sign-in: the provider may be away when the service starts. */
  const configuration = lazy(async () => {
    try {
      return await client.discovery(
        new URL(settings.issuer),
        settings.client_id,
        settings.client_secret,
        authenticateClient,
        { ...(isLocal && { execute: [client.allowInsecureRequests] }), timeout: 10 },
      )
    } catch (error) {
      throw new OidcError(
        'oidc_unavailable',
        `${settings.issuer} could not be asked how to sign in: ${reason(error as Error)}`,
      )
    }
  })

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

    async finish(origin, search, sealed) {
      if (new URLSearchParams(search).get('error') === 'access_denied') throw new OidcError('oidc_cancelled')
      const kept = unseal<Kept>(sealed, 'oidc')
      if (!kept) throw new OidcError('oidc_expired')
      const claims = await claimsOf(await configuration(), new URL(origin + callbackPath + search), kept).catch(
        (error: Error) => {
          throw new OidcError('oidc_failed', reason(error))
        },
      )
      return { person: personOf(claims), next: kept.next }
    },

    keep: (arrival) => secrets.encrypt(JSON.stringify({ ...arrival, until: now() + keptFor_s * 1000 }), 'oidc account'),
    read: (sealed) => unseal<Arrival & { until: number }>(sealed, 'oidc account'),
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

  /** What a browser has kept; undefined once it has expired, or if it is nothing that this service sealed. */
  function unseal<T extends { until: number }>(sealed: string | undefined, context: string): T | undefined {
    if (sealed === undefined) return undefined
    try {
      const kept = JSON.parse(secrets.decrypt(sealed, context)) as T
      return kept.until < now() ? undefined : kept
    } catch {
      return undefined
    }
  }
}

function personOf({ iss: issuer, sub: subject, email, email_verified, name }: client.IDToken): Person {
  const verified = String(email_verified) === 'true'
  return {
    issuer,
    subject,
    verified,
    email: verified ? (Email.safeParse(email).data?.toLowerCase() ?? undefined) : undefined,
    name,
  }
}

/** What an error of the client library says, with what the provider said. */
const reason = (error: Error & { code?: string; error?: string }) =>
  [error.message, error.code, error.error].filter(Boolean).join(', ')
