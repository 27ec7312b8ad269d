// What requests used whose clients left before the end: a gateway asks for it, since no answer could tell.
import type { Usage } from '../../contract/sampling.ts'

export type LeftUsage = {
  note(request_id: string, usage: Usage): void
  /** Undefined where nothing is known of the request, or no more. */
  get(request_id: string): Usage | undefined
}

const keptMs = 60_000
const keptMax = 10_000

export function createLeftUsage(now: () => number = () => performance.now()): LeftUsage {
  // In the order of their times.
  const notes = new Map<string, { usage: Usage; at_ms: number }>()
  return {
    note(request_id, usage) {
      for (const [id, { at_ms }] of notes) {
        if (notes.size < keptMax && now() - at_ms < keptMs) break
        notes.delete(id)
      }
      notes.delete(request_id)
      notes.set(request_id, { usage, at_ms: now() })
    },
    get: (request_id) => notes.get(request_id)?.usage,
  }
}
