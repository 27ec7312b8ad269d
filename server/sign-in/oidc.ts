// Sign-in with an OpenID Connect provider: code flow with PKCE, state and nonce.
import * as client from 'openid-client'
import { ApiError } from '../../contract/errors.ts'
import type { Db } from '../db/open.ts'
import type { Secrets } from '../storage/secrets.ts'
import * as store from './store.ts'

export interface OidcSettings {
  issuer: string
  client_id: string
  client_secret: string
  name: string
}

export interface Oidc {
  name: string
  /** Where to send the browser, and what it keeps until it comes back. */
  begin(origin: string, next: string): Promise<{ location: string; kept: string }>
  /** The member who signed in there. Throws OidcError. */
  finish(origin: string, search: string, kept: string | undefined): Promise<{ user: store.UserRow; next: string }>
}

/** Why a sign-in there failed; the code is shown by the page. */
export class OidcError extends Error {
  readonly code: 'oidc_cancelled' | 'oidc_expired' | 'oidc_failed' | 'oidc_no_account'
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

export function createOidc(settings: OidcSettings, db: Db, secrets: Secrets, now: () => number): Oidc {
  let discovered: Promise<client.Configuration> | undefined
  const isLocal = /^http:\/\/(localhost|127\.0\.0\.1|\[::1\])(:|\/|$)/.test(settings.issuer)
  /** Discovered at the first sign-in: the provider may be away when the service starts. */
  const configuration = () => {
    discovered ??= client
      .discovery(new URL(settings.issuer), settings.client_id, settings.client_secret, undefined, {
        ...(isLocal && { execute: [client.allowInsecureRequests] }),
        timeout: 10,
      })
      .catch((error: Error) => {
        discovered = undefined
        throw new ApiError(
          'invalid_request',
          `The provider ${settings.issuer} could not be asked how to sign in: ${error.message}. Tell your operator.`,
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

    async finish(origin, search, sealed) {
      if (new URLSearchParams(search).get('error') === 'access_denied') throw new OidcError('oidc_cancelled')
      const kept = readKept(sealed)
      if (!kept || kept.until < now()) throw new OidcError('oidc_expired')
      const tokens = await client
        .authorizationCodeGrant(await configuration(), new URL(origin + callbackPath + search), {
          expectedState: kept.state,
          expectedNonce: kept.nonce,
          pkceCodeVerifier: kept.verifier,
        })
        .catch((error: Error) => {
          throw new OidcError('oidc_failed', error.message)
        })
      const claims = tokens.claims()!
      return { user: await memberOf(claims), next: kept.next }
    },
  }

  function readKept(sealed: string | undefined): Kept | undefined {
    try {
      return sealed === undefined ? undefined : (JSON.parse(secrets.decrypt(sealed, 'oidc')) as Kept)
    } catch {
      return undefined
    }
  }

  /** Who signed in before, or the one member with the email that the provider has verified. */
  async function memberOf({ iss, sub, email, email_verified }: client.IDToken): Promise<store.UserRow> {
    const bound = await store.identity(db, iss, sub)
    const before = bound && (await store.user(db, bound.user_id))
    if (before) return before
    const matching =
      typeof email === 'string' && email_verified === true ? await store.usersByEmail(db, email.toLowerCase()) : []
    const [user] = matching
    if (!user) throw new OidcError('oidc_no_account')
    await db
      .transaction()
      .execute((trx) => store.insertIdentity(trx, { issuer: iss, subject: sub, user_id: user.id, created_at: now() }))
    return user
  }
}
