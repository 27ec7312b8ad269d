// Health of a replica: passive (failed requests) and active (probes while it is in use or down).
import type { Logger } from 'pino'

const interval_ms = 5000
const firstBackOff_ms = 250
/** A busy server may answer one probe late; two misses in a row mark it down. */
const misses_max = 2

export interface Health {
  isUp(): boolean
  /** Keeps probing the replica for the next few seconds. */
  markUsed(): void
  /**
   * Marks the replica down until a probe succeeds. `answered`: the server responded with an error, so that the first
   * probe runs at once.
   */
  markFailed(why: string, answered: boolean): void
}

export function createHealth({
  name,
  probe,
  onChange,
  log,
}: {
  name: string
  probe: () => Promise<boolean>
  onChange: () => void
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

  function markDown(why: string): void {
    if (!up) return
    up = false
    backOff_ms = firstBackOff_ms
    log.warn({ replica: name, why }, 'a replica is down until a probe succeeds')
    onChange()
  }

  async function check(): Promise<void> {
    timer = undefined
    const healthy = await probe().catch(() => false)
    if (healthy) {
      misses = 0
      if (!up) {
        up = true
        log.info({ replica: name }, 'a replica is up again')
        onChange()
      }
      if (Date.now() - usedAt < 2 * interval_ms) schedule(interval_ms)
      return
    }
    misses++
    if (up && misses < misses_max) return schedule(firstBackOff_ms)
    markDown('it does not answer probes')
    schedule(backOff_ms)
    backOff_ms = Math.min(2 * backOff_ms, interval_ms)
  }

  return {
    isUp: () => up,
    markUsed() {
      usedAt = Date.now()
      if (!timer && up) schedule(interval_ms)
    },
    markFailed(why, answered) {
      if (!up) return
      markDown(why)
      schedule(answered ? 0 : firstBackOff_ms)
    },
  }
}
