// Who uses this page.
import { useQuery } from '@tanstack/react-query'
import type { Profile } from '../../sdk/index.ts'
import { isTuneryError, TuneryError } from '../../sdk/index.ts'
import { csrfHeaders, setCsrfToken, tunery } from './api.ts'
import { queryClient, whenSignedOut } from './query.ts'

/** The session: its person, what they may do, and how they can sign in. */
export interface Session {
  profile: Profile
  scopes: readonly string[]
  has_password: boolean
  has_passkey: boolean
}

const key = ['session'] as const

async function load(signal: AbortSignal): Promise<Session | null> {
  try {
    const profile = await tunery.user.profile({ signal })
    return { profile, scopes: profile.key?.scopes ?? [], has_password: true, has_passkey: false }
  } catch (error) {
    if (isTuneryError(error) && error.status === 401) return null
    throw error
  }
}

const sessionQuery = {
  queryKey: key,
  queryFn: ({ signal }: { signal: AbortSignal }) => load(signal),
  staleTime: 60_000,
  refetchOnWindowFocus: true,
}

/** `data` is null for someone who is not signed in. */
export const useSessionQuery = () => useQuery(sessionQuery)

/** The session, inside the shell, where there is one. */
export function useSession(): Session {
  const { data } = useSessionQuery()
  if (!data) throw new TuneryError(401, new Headers(), { message: 'You are signed out. Sign in again.' })
  return data
}

/** Whether this person may do what needs the scope, such as `tuning:write`. */
export const useMay = (scope: string): boolean => useSessionQuery().data?.scopes.includes(scope) ?? false

/** Looks again who is signed in: after signing in or out. */
export const refreshSession = () => queryClient.fetchQuery({ ...sessionQuery, staleTime: 0 })

/** Ends the session on the server, then here. */
export async function signOut(): Promise<void> {
  const response = await fetch('/v1/session', { method: 'DELETE', headers: csrfHeaders() })
  if (!response.ok && response.status !== 401) throw new Error('The service did not end the session. Try again.')
  forgetSession()
}

/** Forgets everything of the person who was signed in. */
export function forgetSession(): void {
  setCsrfToken(undefined)
  queryClient.clear()
  queryClient.setQueryData(key, null)
}

whenSignedOut(() => {
  if (queryClient.getQueryData(key)) queryClient.setQueryData(key, null)
})
