// Progress watchdog: readiness fails when there is work but no step has finished for too long.

export interface ProgressWatchdog {
  /** Registers work in progress. The returned function marks its end; a second call does nothing. */
  beginWork(): () => void
  /** A step has finished: a decode, a chunk of a prompt, a piece of text that is tokenized. */
  recordProgress(): void
  /** Milliseconds with work but without progress; 0 up to `stalled_after_ms`. */
  stalled_ms(): number
}

/** `stalled_after_ms`: longer than any single step. `now`: a clock in milliseconds. */
export function createProgressWatchdog({
  stalled_after_ms = 15_000,
  now = () => performance.now(),
}: {
  stalled_after_ms?: number
  now?: () => number
} = {}): ProgressWatchdog {
  let inProgress = 0
  let progress_at = now()
  return {
    beginWork() {
      if (inProgress++ === 0) progress_at = now()
      let ended = false
      return () => {
        if (ended) return
        ended = true
        inProgress--
        progress_at = now()
      }
    },
    recordProgress() {
      progress_at = now()
    },
    stalled_ms() {
      const stalled_ms = inProgress === 0 ? 0 : now() - progress_at
      return stalled_ms > stalled_after_ms ? stalled_ms : 0
    },
  }
}
