// Whether the service can be reached, as the last requests found.
import { useSyncExternalStore } from 'react'

type State = 'connected' | 'lost'
let state: State = 'connected'
const listeners = new Set<() => void>()

function change(next: State): void {
  if (state === next) return
  state = next
  for (const listener of listeners) listener()
}

const lookEvery_ms = 5000
const patience_ms = 4000
let looking = false

export const reportReached = () => change('connected')

/** A request got no answer. Looks whether nothing does, and then every 5 s until the service is back. */
export async function reportLost(): Promise<void> {
  if (looking) return
  looking = true
  while (!(await isThere())) {
    change('lost')
    await new Promise((resolve) => setTimeout(resolve, lookEvery_ms))
  }
  looking = false
  reportReached()
}

const isThere = () =>
  fetch('/health/live', { signal: AbortSignal.timeout(patience_ms) }).then(
    ({ ok }) => ok,
    () => false,
  )

const subscribe = (listener: () => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}
export const useConnection = (): State => useSyncExternalStore(subscribe, () => state)
