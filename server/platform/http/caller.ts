import type { Role, Scope } from '../../../contract/scopes.ts'
import type { Actor } from '../events/audit.ts'

/** The key or session that makes a request, with its member and account. */
export interface Caller extends Actor {
  kind: 'key' | 'session'
  account_id: string
  user_id: string
  /** The id of the key, or of the session. */
  key_id: string
  role: Role
  /** Scopes of the key or session that the member's role allows. */
  scopes: readonly Scope[]
  /** The id of the account's tier. */
  tier: string
  suspended: boolean
  /**
   * The account's version at which this was read, for installations with Redis; see server/platform/redis/changes.ts.
   */
  version?: string | undefined
  /** When a key ends, in unix milliseconds. */
  expires_at?: number | null
  /** The session's times, unix milliseconds. */
  session?: { created_at: number; expires_at: number }
}
