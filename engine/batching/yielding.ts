// Leaves a share of the cores' time to other programs while this one computes without a pause: a training beside it
// would starve, since its priority is the lowest. Compute threads that share a core wait for each other at every step,
// so the cores are left whole, for a moment at a time, between two steps.
import { setTimeout as sleep } from 'node:timers/promises'

/** Long enough for another program to get on, short enough for a stream to look smooth. */
const rest_ms = { least: 50, most: 100 }
/** What a long step leaves owing is not paid for by the streams of the next seconds. */
const owedMsMax = 200

export type Rests = {
  /** Leaves this share of the time, 0 to 1, for the next `for_ms`. */
  leave(share: number, for_ms: number): void
  /** The cores were used for so long. */
  computed(ms: number): void
  /** Resolves when computing may go on: at once, where no rest is due. */
  due(): Promise<void> | undefined
}

export function createRests(now: () => number = () => performance.now()): Rests {
  let share = 0
  let until_ms = 0
  let owed_ms = 0
  let idleSince_ms = now()
  let resting: Promise<void> | undefined
  return {
    leave(wanted, for_ms) {
      share = wanted
      until_ms = now() + for_ms
    },
    computed(ms) {
      const at = now()
      // What the cores were free between two pieces of work was a rest too.
      owed_ms = Math.max(0, owed_ms - Math.max(0, at - ms - idleSince_ms))
      idleSince_ms = at
      owed_ms = share > 0 && at < until_ms ? Math.min(owedMsMax, owed_ms + (ms * share) / (1 - share)) : 0
    },
    due() {
      if (resting) return resting
      if (owed_ms < rest_ms.least) return undefined
      resting = sleep(Math.min(owed_ms, rest_ms.most)).then(() => {
        resting = undefined
      })
      return resting
    },
  }
}
