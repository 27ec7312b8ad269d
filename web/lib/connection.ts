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

export const reportReached = () => change('connected')

/** Looks every 5 s until the service answers again. */
export function reportLost(): void {
  if (state === 'lost') return
  change('lost')
  const timer = setInterval(() => void look(), 5000)
  const look = async () => {
    const response = await fetch('/health/live', { signal: AbortSignal.timeout(4000) }).catch(() => undefined)
    if (response?.ok) reportReached()
    if (state === 'connected') clearInterval(timer)
  }
}

const subscribe = (listener: () => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}
export const useConnection = (): State => useSyncExternalStore(subscribe, () => state)
