// Ways to begin a session, and to set them up. Each that begins one leaves the session in the cache.
import type {
  PublicKeyCredentialCreationOptionsJSON,
  PublicKeyCredentialRequestOptionsJSON,
} from '@simplewebauthn/browser'
import { tunery } from './api.ts'
import { refreshSession, type Session } from './session.ts'

export type SignInWays = Awaited<ReturnType<typeof tunery.signIn.ways>>
export type Invitation = Awaited<ReturnType<typeof tunery.signIn.lookAtInvitation>>

/** Loads the session that an answer has begun. */
async function enter(begun: Promise<unknown>): Promise<Session> {
  await begun
  const session = await refreshSession()
  if (!session)
    throw new Error(
      'The service began a session, but this browser did not keep its cookie. Allow cookies for this site.',
    )
  return session
}

export const signInByLink = (token: string) => enter(tunery.signIn.withLink({ token }))
export const signInByPassword = (email: string, password: string) =>
  enter(tunery.signIn.withPassword({ email, password }))
export const acceptInvitation = (token: string, password?: string) =>
  enter(tunery.signIn.acceptInvitation({ token, ...(password && { password }) }))

/** Signs in as one of the members that the provider's person may be; returns the address to go to. */
export async function chooseAccount(user_id: string | null): Promise<string> {
  const begun = tunery.signIn.chooseAccount({ user_id })
  await enter(begun)
  return (await begun).next
}

/** Loaded when it is used. */
const webauthn = () => import('@simplewebauthn/browser')

export const passkeysWork = () => typeof PublicKeyCredential !== 'undefined' && isSecureContext

export async function signInByPasskey(): Promise<Session> {
  const { startAuthentication } = await webauthn()
  const optionsJSON = (await tunery.signIn.passkeyOptions()) as unknown as PublicKeyCredentialRequestOptionsJSON
  const response = await plainly(startAuthentication({ optionsJSON }))
  return enter(tunery.signIn.withPasskey({ response: { ...response } }))
}

export async function addPasskey(name: string): Promise<void> {
  const { startRegistration } = await webauthn()
  const optionsJSON = (await tunery.user.passkeys.options()) as unknown as PublicKeyCredentialCreationOptionsJSON
  const response = await plainly(startRegistration({ optionsJSON }))
  await tunery.user.passkeys.add({ name, response: { ...response } })
  await refreshSession()
}

export async function setPassword(password: string, email?: string): Promise<void> {
  await tunery.user.setPassword({ password, ...(email && { email }) })
  await refreshSession()
}

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
export const deviceName = (): string => browserName(navigator.userAgent) ?? 'This device'

/** `Firefox on Linux` of a browser's long name; undefined if it has neither. */
export function browserName(userAgent: string): string | undefined {
  const system = /Windows|Android|iPhone|iPad|Mac OS|Linux|CrOS/.exec(userAgent)?.[0]?.replace('Mac OS', 'Mac')
  const browser = /Firefox|Edg|Chrome|Safari/.exec(userAgent)?.[0]?.replace('Edg', 'Edge')
  return [browser, system].filter(Boolean).join(' on ') || undefined
}
