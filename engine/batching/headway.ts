// Whether the work of requests moves on: what readiness tells.

export type Headway = {
  /** There is work from now on; what it returns says, once, that it has ended. */
  begin(): () => void
  /** Work has moved on by a step: a decode, a piece of a prompt, a piece of a text that becomes tokens. */
  note(): void
  /** How long there has been work without a step, in milliseconds; 0 until that is longer than any step may take. */
  stalledMs(): number
}

/** `stalled_after_ms`: longer than any single step. `now`: the time in milliseconds. */
export function createHeadway({
  stalled_after_ms = 15_000,
  now = () => performance.now(),
}: {
  stalled_after_ms?: number
  now?: () => number
} = {}): Headway {
  let works = 0
  let moved_at = now()
  return {
    begin() {
      if (works++ === 0) moved_at = now()
      let ended = false
      return () => {
        if (ended) return
        ended = true
        works--
        moved_at = now()
      }
    },
    note() {
      moved_at = now()
    },
    stalledMs() {
      const stalled_ms = works === 0 ? 0 : now() - moved_at
      return stalled_ms > stalled_after_ms ? stalled_ms : 0
    },
  }
}
