// Who uses this page.
import { useQuery } from '@tanstack/react-query'
import type { Scope } from '../../contract/scopes.ts'
import type { SessionState } from '../../contract/sign-in.ts'
import { isTuneryError, TuneryError } from '../../sdk/index.ts'
import { setCsrfToken, tunery } from './api.ts'
import { queryClient, whenSignedOut } from './query.ts'

/** The session, its person, what they may do, and how they can sign in again. */
export type Session = Omit<SessionState, 'csrf_token' | 'session'> & Partial<Pick<SessionState, 'session'>>

const key = ['session'] as const

async function load(signal: AbortSignal): Promise<Session | null> {
  try {
    const { csrf_token, ...session } = await tunery.session.get({ signal })
    setCsrfToken(csrf_token)
    forgetDraftsOfOthers(session.profile.id)
    return session
  } catch (error) {
    if (isTuneryError(error) && error.status === 401) return null
    // Behind a proxy that adds a key to every request there is no session; the key says who asks.
    if (isTuneryError(error, 'session_required')) {
      const profile = await tunery.user.profile({ signal })
      return { profile, scopes: profile.key?.scopes ?? [], has_password: true, has_passkey: false }
    }
    throw error
  }
}

const personKey = 'tunery.person'

/** Drafts of this tab stay for the person who wrote them: also through a session that ended, but for nobody else. */
function forgetDraftsOfOthers(person: string): void {
  try {
    const before = sessionStorage.getItem(personKey)
    if (before !== null && before !== person) sessionStorage.clear()
    sessionStorage.setItem(personKey, person)
  } catch {
    // Storage may be refused: then nothing is kept.
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
export const useMay = (scope: Scope): boolean => useSessionQuery().data?.scopes.includes(scope) ?? false

/** Looks again who is signed in: after signing in or out. */
export async function refreshSession(): Promise<Session | null> {
  // A look that began before the sign-in would answer for the time before it.
  await queryClient.cancelQueries({ queryKey: key })
  return queryClient.fetchQuery({ ...sessionQuery, staleTime: 0 })
}

/** Ends the session on the server, then here. */
export async function signOut(): Promise<void> {
  try {
    await tunery.session.end()
  } catch (error) {
    if (!(isTuneryError(error) && error.status === 401)) throw error
  }
  forgetSession()
}

/** Forgets everything of the person who was signed in. */
function forgetSession(): void {
  setCsrfToken(undefined)
  queryClient.setQueryData(key, null)
  queryClient.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== key[0] })
}

whenSignedOut(() => {
  if (queryClient.getQueryData(key)) queryClient.setQueryData(key, null)
})
