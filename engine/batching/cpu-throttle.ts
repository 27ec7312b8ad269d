// CPU throttle: pauses the engine between steps so that other processes, such as a trainer at a low priority, get
// a share of the CPU. All compute threads pause together: threads that share a core with another process would wait for
// each other at every step.
import { setTimeout } from 'node:timers/promises'

/** Long enough for another process to make progress, short enough for a stream to look smooth. */
const pause_ms = { min: 50, max: 100 }
/** Caps what one long step adds, so that the streams of the next seconds do not pay for it. */
const owed_ms_max = 200

export interface CpuThrottle {
  /** Yields this share of the time, 0 to 1, for the next `for_ms`. */
  yieldShare(share: number, for_ms: number): void
  /** The cores were busy for `ms` milliseconds, up to now. */
  recordCompute(ms: number): void
  /** Undefined if no pause is due; else resolves after it. */
  pauseIfDue(): Promise<void> | undefined
}

/** Both read the clock in milliseconds; a test has a clock of its own. */
export function createCpuThrottle(
  now: () => number = () => performance.now(),
  sleep: (ms: number) => Promise<void> = setTimeout,
): CpuThrottle {
  let share = 0
  let until_ms = 0
  let owed_ms = 0
  let idleSince_ms = now()
  let pause: Promise<void> | undefined
  return {
    yieldShare(wanted, for_ms) {
      share = wanted
      until_ms = now() + for_ms
    },
    recordCompute(ms) {
      const at = now()
      // Idle time between two pieces of work counts as a pause.
      owed_ms = Math.max(0, owed_ms - Math.max(0, at - ms - idleSince_ms))
      idleSince_ms = at
      owed_ms = share > 0 && at < until_ms ? Math.min(owed_ms_max, owed_ms + (ms * share) / (1 - share)) : 0
    },
    pauseIfDue() {
      if (pause !== undefined) return pause
      if (owed_ms < pause_ms.min) return undefined
      pause = sleep(Math.min(owed_ms, pause_ms.max)).then(() => {
        pause = undefined
      })
      return pause
    },
  }
}
