import type { Logger } from 'pino'

const interval_ms = 5000
const firstBackOff_ms = 250
/** A server that works hard may be late with one answer; two in a row mean that it is not well. */
const missesMax = 2

/** Whether a replica is to be given requests: told by what becomes of them, and by probes while it is used or out. */
export interface Health {
  up(): boolean
  /** It is being used: it is looked after for the next while. */
  used(): void
  /**
   * It failed a request. It is out until a probe finds it well; the first comes at once where it had at least answered.
   */
  failed(why: string, answered: boolean): void
}

export function createHealth({
  name,
  probe,
  changed,
  log,
}: {
  name: string
  probe: () => Promise<boolean>
  changed: () => void
  log: Logger
}): Health {
  let up = true
  let misses = 0
  let usedAt = 0
  let backOff_ms = firstBackOff_ms
  let timer: NodeJS.Timeout | undefined

  function schedule(ms: number): void {
    clearTimeout(timer)
    timer = setTimeout(check, ms).unref()
  }

  function out(why: string): void {
    if (!up) return
    up = false
    backOff_ms = firstBackOff_ms
    log.warn({ replica: name, why }, 'a replica is out until it answers again')
    changed()
  }

  async function check(): Promise<void> {
    timer = undefined
    const well = await probe().catch(() => false)
    if (well) {
      misses = 0
      if (!up) {
        up = true
        log.info({ replica: name }, 'a replica is back')
        changed()
      }
      if (Date.now() - usedAt < 2 * interval_ms) schedule(interval_ms)
      return
    }
    misses++
    if (up && misses < missesMax) return schedule(firstBackOff_ms)
    out('it does not answer probes')
    schedule(backOff_ms)
    backOff_ms = Math.min(2 * backOff_ms, interval_ms)
  }

  return {
    up: () => up,
    used() {
      usedAt = Date.now()
      if (!timer && up) schedule(interval_ms)
    },
    failed(why, answered) {
      if (!up) return
      out(why)
      schedule(answered ? 0 : firstBackOff_ms)
    },
  }
}
