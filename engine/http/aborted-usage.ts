// Usage of aborted requests. The client disconnected before the final usage was sent, so the gateway looks it up here.
import type { Usage } from '../../contract/sampling.ts'

export interface AbortedUsage {
  record(request_id: string, usage: Usage): void
  /** Undefined if the request is unknown or its entry has expired. */
  get(request_id: string): Usage | undefined
}

const retention_ms = 60_000
const entriesMax = 10_000

export function createAbortedUsage(now: () => number = () => performance.now()): AbortedUsage {
  // Map order is insertion order: oldest first.
  const entries = new Map<string, { usage: Usage; at_ms: number }>()
  return {
    record(request_id, usage) {
      for (const [id, { at_ms }] of entries) {
        if (entries.size < entriesMax && now() - at_ms < retention_ms) break
        entries.delete(id)
      }
      entries.delete(request_id)
      entries.set(request_id, { usage, at_ms: now() })
    },
    get: (request_id) => entries.get(request_id)?.usage,
  }
}
