/**
 * Calls `then` once the typing pauses; returns what prevents it. Not on a page that is being left: it is there until
 * the next one has loaded, and would call its reader back.
 */
export function afterTyping(then: () => void, pause_ms = 300): () => void {
  const { pathname } = location
  const timer = setTimeout(() => {
    if (location.pathname === pathname) then()
  }, pause_ms)
  return () => clearTimeout(timer)
}
