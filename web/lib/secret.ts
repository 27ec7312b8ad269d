import { useEffect, useState } from 'react'

/**
 * The secret of a link, from the address's fragment, which no server and no log sees. Reading it removes it from the
 * address and the history. Also of a link that is opened while the page is there already.
 */
export function useSecretOfLink(): string | undefined {
  const [secret, setSecret] = useState(() => location.hash.slice(1) || undefined)
  useEffect(() => {
    const read = () => {
      const secret = location.hash.slice(1)
      if (!secret) return
      setSecret(secret)
      history.replaceState(history.state, '', location.pathname + location.search)
    }
    read()
    addEventListener('hashchange', read)
    return () => removeEventListener('hashchange', read)
  }, [])
  return secret
}

/** Where to go after signing in: an address of this dashboard, never another's. */
export function safeNext(next: string | undefined, origin = location.origin): string {
  if (!next?.startsWith('/') || !URL.canParse(next, origin)) return '/'
  const url = new URL(next, origin)
  return url.origin === origin && !url.pathname.startsWith('//') ? url.pathname + url.search : '/'
}

/** Characters of a password at least, as the contract has it: importing that would bring its library along. */
export const leastPassword = 10
