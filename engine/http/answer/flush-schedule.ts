// Flush schedule of all streams. Each write wakes every process on the way to the client, on the cores that compute,
// and a woken process stops a decode thread that the others wait for. So all streams flush at the same moments, and
// less often the more streams there are.

/** With one stream; too short for a reader to notice steps. */
const interval_ms_min = 25
const interval_ms_per_stream = 10
/** With many streams; still one flush per word for a fast reader. */
const interval_ms_max = 200

interface FlushSchedule {
  /** Registers a stream. Call the returned function once, when the stream ends. */
  join(): () => void
  /** Whether a flush is due since `written_at_ms`, on the clock of performance.now(). */
  due(written_at_ms: number): boolean
  /** Current interval between flushes, in milliseconds. */
  interval_ms(): number
}

export function createFlushSchedule(now: () => number = () => performance.now()): FlushSchedule {
  let streams = 0
  const interval_ms = () => Math.min(interval_ms_max, Math.max(interval_ms_min, interval_ms_per_stream * streams))
  return {
    join() {
      streams++
      return () => {
        streams--
      }
    },
    due: (written_at_ms) => Math.floor(now() / interval_ms()) > Math.floor(written_at_ms / interval_ms()),
    interval_ms,
  }
}
