// When the text of streams goes out. Every write wakes up each process on the way to the reader, on the cores that
// compute, and a woken process stops a thread that all others wait for. So all streams write in the same moments, and
// less often the more there are.

/** A stream of its own: nobody sees text come in steps of this length. */
const beatMsMin = 25
const beatMsPerStream = 10
/** Of many streams: as often as a fast reader takes in words. */
const beatMsMax = 200

export type Beat = {
  /** A stream has begun; call what is returned, once, when it is over. */
  join(): () => void
  /** Whether a moment to write has come since `written_at_ms`, on the clock of performance.now(). */
  due(written_at_ms: number): boolean
  /** How long the moments are apart now. */
  ms(): number
}

export function createBeat(now: () => number = () => performance.now()): Beat {
  let streams = 0
  const ms = () => Math.min(beatMsMax, Math.max(beatMsMin, beatMsPerStream * streams))
  return {
    join() {
      streams++
      return () => {
        streams--
      }
    },
    due: (written_at_ms) => Math.floor(now() / ms()) > Math.floor(written_at_ms / ms()),
    ms,
  }
}
