// Passkeys (WebAuthn): made and used in the browser, verified here.

import { isIP } from 'node:net'
import type { AuthenticationResponseJSON, RegistrationResponseJSON } from '@simplewebauthn/server'
import { ApiError } from '../../../contract/errors.ts'
import type { Passkey } from '../../../contract/sign-in.ts'
import { newId } from '../../../lib/ids.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import { recordAuditEntry } from '../../platform/events/audit.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { hashOf } from './sessions.ts'
import * as store from './store.ts'

/** Where the browser sees the service: the scheme, host and port of its address. */
export type Origin = string

/** Loaded when it is first needed: its 400 modules are a fifth of the time that a server takes to start. */
const webauthn = () => import('@simplewebauthn/server')

const challenge_ms = 5 * 60_000
/** Passkeys of a member. */
const passkeysMax = 20

/** Browsers allow passkeys for names, `localhost` among them, and not for addresses. */
export const passkeysPossible = (origin: Origin) => !isIP(new URL(origin).hostname.replace(/^\[|\]$/g, ''))

const refused = (why: string) => new ApiError('passkey_refused', why)

/** Says what the library found, in words for who waits at the browser. */
function refuseWith({ message }: Error): never {
  throw refused(
    /challenge/.test(message)
      ? 'This took longer than 5 minutes, or was answered already. Try again.'
      : `The passkey could not be verified: ${message}`,
  )
}

const toResponse = ({ id, name, created_at, last_used_at }: store.PasskeyRow): Passkey => ({
  id,
  name,
  created_at: isoTime(created_at),
  last_used_at: isoTime(last_used_at),
})

/** The passkeys of members: created, listed, removed, and asked for at a sign-in. */
export class Passkeys {
  private readonly db: Db
  private readonly now: () => number

  constructor(db: Db, now: () => number) {
    this.db = db
    this.now = now
  }

  /** Options for `navigator.credentials.create`. */
  async creationOptions(caller: Caller, origin: Origin): Promise<{ challenge: string }> {
    const user = (await store.findUserUnscoped(this.db, caller.user_id))!
    const options = await (await webauthn()).generateRegistrationOptions({
      rpName: 'Tunery',
      rpID: this.hostOf(origin),
      userID: new TextEncoder().encode(user.id),
      userName: user.email ?? user.name,
      userDisplayName: user.name,
      excludeCredentials: (await store.passkeys(this.db, user.id)).map(({ credential_id }) => ({ id: credential_id })),
      authenticatorSelection: { residentKey: 'required', userVerification: 'required' },
    })
    await this.keepChallenge(options.challenge, user.id)
    return { ...options }
  }

  async add(caller: Caller, origin: Origin, name: string, response: unknown): Promise<Passkey> {
    const verified = await (await webauthn())
      .verifyRegistrationResponse({
        response: response as RegistrationResponseJSON,
        expectedChallenge: this.takeChallenge(caller.user_id),
        expectedOrigin: origin,
        expectedRPID: this.hostOf(origin),
        requireUserVerification: true,
      })
      .catch(refuseWith)
    if (!verified.verified) throw refused('The passkey could not be verified. Try again.')
    const { credential } = verified.registrationInfo
    return this.db.transaction().execute(async (trx) => {
      if ((await store.passkeys(trx, caller.user_id)).length >= passkeysMax)
        throw new ApiError('too_many', `You have ${passkeysMax} passkeys, the most there may be. Remove one first.`)
      if (await store.findPasskeyByCredential(trx, credential.id)) throw refused('This passkey is registered already.')
      const row: store.PasskeyRow = {
        id: newId('psk'),
        user_id: caller.user_id,
        credential_id: credential.id,
        name,
        public_key: Buffer.from(credential.publicKey).toString('base64url'),
        counter: credential.counter,
        transports_json: JSON.stringify(credential.transports ?? []),
        created_at: this.now(),
        last_used_at: null,
      }
      await store.insertPasskey(trx, row)
      await recordAuditEntry(trx, caller, 'passkey.added', row.id, { name }, row.created_at)
      return toResponse(row)
    })
  }

  async list(caller: Caller): Promise<Passkey[]> {
    return (await store.passkeys(this.db, caller.user_id)).map(toResponse)
  }

  async remove(caller: Caller, id: string): Promise<{ id: string; deleted: true }> {
    await this.db.transaction().execute(async (trx) => {
      if ((await store.removePasskey(trx, caller.user_id, id)) === 0)
        throw new ApiError('passkey_not_found', `You have no passkey '${id}'.`)
      await recordAuditEntry(trx, caller, 'passkey.removed', id, {}, this.now())
    })
    return { id, deleted: true }
  }

  /** Options for `navigator.credentials.get`. */
  async requestOptions(origin: Origin): Promise<{ challenge: string }> {
    const options = await (await webauthn()).generateAuthenticationOptions({
      rpID: this.hostOf(origin),
      userVerification: 'required',
    })
    await this.keepChallenge(options.challenge, null)
    return { ...options }
  }

  /** The member whose passkey signed a challenge. Throws passkey_refused. */
  async verify(origin: Origin, response: unknown): Promise<store.UserRow> {
    const assertion = response as AuthenticationResponseJSON
    const unknown = refused('This passkey is not known here, or was removed. Sign in in another way.')
    const passkey = await store.findPasskeyByCredential(this.db, String(assertion.id))
    const user = passkey && (await store.findUserUnscoped(this.db, passkey.user_id))
    if (!passkey || !user) throw unknown
    const verified = await (await webauthn())
      .verifyAuthenticationResponse({
        response: assertion,
        expectedChallenge: this.takeChallenge(null),
        expectedOrigin: origin,
        expectedRPID: this.hostOf(origin),
        requireUserVerification: true,
        credential: {
          id: passkey.credential_id,
          publicKey: new Uint8Array(Buffer.from(passkey.public_key, 'base64url')),
          counter: passkey.counter,
          transports: fromJson(passkey.transports_json),
        },
      })
      .catch(refuseWith)
    if (!verified.verified) throw unknown
    const values = { counter: verified.authenticationInfo.newCounter, last_used_at: this.now() }
    await this.db.transaction().execute((trx) => store.updatePasskey(trx, passkey.id, values))
    return user
  }

  private async keepChallenge(challenge: string, user_id: string | null): Promise<void> {
    const created_at = this.now()
    const expires_at = created_at + challenge_ms
    const row = {
      id: newId('psk'),
      kind: 'challenge' as const,
      hash: hashOf(challenge),
      user_id,
      created_at,
      expires_at,
    }
    await store.insertToken(this.db, { ...row, account_id: null, invited_by: null })
  }

  /** Whether a challenge was given out to the member, or for a sign-in; each works once. */
  private takeChallenge(user_id: string | null) {
    return async (challenge: string) => {
      const token = await store.findToken(this.db, 'challenge', hashOf(challenge), this.now())
      return token !== undefined && token.user_id === user_id && (await store.takeToken(this.db, token.id))
    }
  }

  private hostOf(origin: Origin) {
    if (!passkeysPossible(origin))
      throw refused(
        `Passkeys need a name instead of the address ${new URL(origin).hostname}: open http://localhost… here.`,
      )
    return new URL(origin).hostname
  }
}
