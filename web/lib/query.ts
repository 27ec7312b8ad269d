// The cache of what the API said. Keys begin with the resource: ['jobs'], ['jobs', 'list', filters], ['jobs', id].
import { MutationCache, QueryCache, QueryClient } from '@tanstack/react-query'
import { TuneryConnectionError, TuneryError } from '../../sdk/index.ts'

/** The shortest time between two looks at something that has no stream. */
export const refresh_ms = 5000

/** A session that has ended: every page's next answer says so; see session.ts. */
let onSignedOut = () => {}
export function whenSignedOut(listener: () => void): void {
  onSignedOut = listener
}

function hear(error: unknown): void {
  if (error instanceof TuneryError && error.status === 401) onSignedOut()
}

/** Worth another try: the connection, or a service that says that it is busy. A wrong request stays wrong. */
const passes = (error: unknown) =>
  error instanceof TuneryConnectionError ||
  (error instanceof TuneryError && [429, 502, 503, 504].includes(error.status))

export const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError: hear }),
  mutationCache: new MutationCache({ onError: hear }),
  defaultOptions: {
    queries: {
      staleTime: refresh_ms,
      retry: (failures, error) => failures < 2 && passes(error),
      retryDelay: (failures) => 500 * 2 ** failures,
      // The connection is judged by requests, not by what the system believes of its network.
      networkMode: 'always',
    },
    mutations: { retry: false, networkMode: 'always' },
  },
})
