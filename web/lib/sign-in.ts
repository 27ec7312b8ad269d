// Ways to begin a session, and to set them up. Each that begins one leaves the session in the cache.
import type {
  PublicKeyCredentialCreationOptionsJSON,
  PublicKeyCredentialRequestOptionsJSON,
} from '@simplewebauthn/browser'
import type { z } from 'zod'
import type { getSignIn, lookAtInvitation as look } from '../../contract/sign-in.ts'
import { send } from './api.ts'
import { refreshSession } from './session.ts'

type Answer<R extends { responses: { 200: z.ZodType } }> = z.infer<R['responses'][200]>
export type SignInWays = Answer<typeof getSignIn>
export type Invitation = Answer<typeof look>

export const signInWays = (signal?: AbortSignal) => send<SignInWays>('GET', '/sign-in', undefined, signal)

/** Sends what begins a session, and loads it. */
async function begin(path: string, body: object) {
  await send('POST', path, body)
  const session = await refreshSession()
  if (!session)
    throw new Error(
      'The service began a session, but this browser did not keep its cookie. Allow cookies for this site.',
    )
  return session
}

export const signInByLink = (token: string) => begin('/sign-in/link', { token })
export const signInByPassword = (email: string, password: string) => begin('/sign-in/password', { email, password })
export const acceptInvitation = (token: string, password?: string) =>
  begin('/sign-in/invitation', { token, ...(password && { password }) })
export const lookAtInvitation = (token: string) => send<Invitation>('POST', '/sign-in/invitation/look', { token })

/** Loaded when it is used. */
const webauthn = () => import('@simplewebauthn/browser')

export const passkeysWork = () => typeof PublicKeyCredential !== 'undefined' && isSecureContext

export async function signInByPasskey() {
  const { startAuthentication } = await webauthn()
  const optionsJSON = await send<PublicKeyCredentialRequestOptionsJSON>('POST', '/sign-in/passkey/options', {})
  const response = await plainly(startAuthentication({ optionsJSON }))
  return begin('/sign-in/passkey', { response })
}

export async function addPasskey(name: string): Promise<void> {
  const { startRegistration } = await webauthn()
  const optionsJSON = await send<PublicKeyCredentialCreationOptionsJSON>('POST', '/user/passkeys/options', {})
  const response = await plainly(startRegistration({ optionsJSON }))
  await send('POST', '/user/passkeys', { name, response })
  await refreshSession()
}

export async function setPassword(password: string, email?: string): Promise<void> {
  await send('PUT', '/user/password', { password, ...(email && { email }) })
  await refreshSession()
}

export const changeProfile = (changes: { name?: string; email?: string | null }) => send('PATCH', '/user', changes)

/** Browsers' errors of passkeys, in words that help. */
async function plainly<T>(ceremony: Promise<T>): Promise<T> {
  try {
    return await ceremony
  } catch (error) {
    const messages: Record<string, string> = {
      NotAllowedError: 'The passkey was not used: it was cancelled, or took too long. Try again.',
      InvalidStateError: 'This device has a passkey for you already. Sign in with it.',
      SecurityError: 'Passkeys need https, or localhost. Use a password here.',
    }
    throw new Error(messages[(error as Error).name] ?? (error as Error).message, { cause: error })
  }
}

/** What a device calls itself, as a first name for its passkey. */
export function deviceName(): string {
  const { userAgent } = navigator
  const system = /Windows|Android|iPhone|iPad|Mac OS|Linux|CrOS/.exec(userAgent)?.[0]?.replace('Mac OS', 'Mac')
  const browser = /Firefox|Edg|Chrome|Safari/.exec(userAgent)?.[0]?.replace('Edg', 'Edge')
  return [browser, system].filter(Boolean).join(' on ') || 'This device'
}
