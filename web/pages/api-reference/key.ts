// A key to run requests with. It is held in memory alone: no storage, no address.
import { useSyncExternalStore } from 'react'

let key = ''
const listeners = new Set<() => void>()

function setKey(next: string): void {
  key = next
  for (const listener of listeners) listener()
}
const subscribe = (listener: () => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Empty: requests run with the session. */
export const useKey = (): [string, (key: string) => void] => [useSyncExternalStore(subscribe, () => key), setKey]
