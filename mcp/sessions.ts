// The sessions of the MCP server over HTTP, bounded by key, by account and in all.
import type { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { Refusal } from './refusal.ts'

const sessionsMax = 200
const sessionsOfAccountMax = 40
const sessionsOfKeyMax = 20

export interface Session {
  key: Buffer
  account: string
  transport: StreamableHTTPServerTransport
  close: () => Promise<void>
  /** Unix milliseconds. */
  used_at: number
  /** Responses in progress; `calls`: without the stream that a client keeps open to listen. */
  open: number
  calls: number
}

/**
 * Makes room for one more session of this key and account: closes the longest unused one of the key or account that has
 * as many as it may. If all are taken, that is one of the account that has most. Throws Refusal where each has a call
 * in progress.
 */
export function makeRoom(sessions: ReadonlyMap<string, Session>, key: Buffer, account: string): void {
  const all = [...sessions.values()]
  const closeOldest = (candidates: Session[]): Session | undefined => {
    const unused = candidates.filter(({ calls }) => calls === 0).toSorted((a, b) => a.used_at - b.used_at)[0]
    void unused?.close()
    return unused
  }
  for (const [sessions, max, whose] of [
    [all.filter((session) => session.key.equals(key)), sessionsOfKeyMax, 'key'],
    [all.filter((session) => session.account === account), sessionsOfAccountMax, 'account'],
  ] as const) {
    if (sessions.length < max) continue
    if (closeOldest(sessions)) return
    throw new Refusal(429, `This ${whose} has ${max} sessions with calls in progress. Wait until one has ended.`, {
      'retry-after': '5',
    })
  }
  if (sessions.size < sessionsMax) return
  const byAccount = [...Map.groupBy(all, (session) => session.account).values()].toSorted((a, b) => b.length - a.length)
  if (!byAccount.some((sessions) => closeOldest(sessions)))
    throw new Refusal(503, 'Too many sessions have calls in progress. Try again later.', { 'retry-after': '60' })
}
