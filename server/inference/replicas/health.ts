// Health of a replica: passive (failed requests) and active (probes while it is in use or down). One that hangs gets no
// request until a probe has succeeded, and then a single one on trial: such a server often answers probes all the same.
import type { Logger } from 'pino'

const interval_ms = 5000
const firstBackOff_ms = 250
/** A busy server may answer one probe late; two misses in a row mark it down. */
const misses_max = 2
/** Between two trials of a replica that hangs, the first and the longest. */
const hungBackOff_ms = { first: 1000, max: 60_000 }

export interface Health {
  isUp(): boolean
  /** Whether it may have another request: not while it hangs, nor beside a trial. */
  admits(): boolean
  /** In how many seconds it may admit one again. */
  retryAfter_seconds(): number
  /** Keeps probing the replica for the next few seconds. */
  markUsed(): void
  /** A request is given to it. Pass what it returns to `markEnded`. */
  begin(): Attempt
  /** The attempt has ended. `answered`: the replica began an answer. */
  end(attempt: Attempt, answered: boolean): void
  /**
   * Marks the replica down until a probe succeeds. `answered`: the server responded with an error, so that the first
   * probe runs at once.
   */
  markFailed(why: string, answered: boolean): void
  /** It took a request and sent nothing. */
  markHung(why: string): void
}

export interface Attempt {
  isTrial: boolean
}

type State = 'up' | 'down' | 'hung' | 'trial'

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
  let state: State = 'up'
  let misses = 0
  let usedAt = 0
  let backOff_ms = firstBackOff_ms
  let hung_ms = hungBackOff_ms.first
  let retryAt = 0
  let trials = 0
  let timer: NodeJS.Timeout | undefined

  function schedule(ms: number): void {
    clearTimeout(timer)
    retryAt = Date.now() + ms
    timer = setTimeout(check, ms).unref()
  }

  function markUp(): void {
    state = 'up'
    misses = 0
    hung_ms = hungBackOff_ms.first
    log.info({ replica: name }, 'a replica is up again')
    onChange()
  }

  function markDown(why: string): void {
    if (state !== 'up') return
    state = 'down'
    backOff_ms = firstBackOff_ms
    log.warn({ replica: name, why }, 'a replica is down until a probe succeeds')
    onChange()
  }

  async function check(): Promise<void> {
    timer = undefined
    const healthy = await probe().catch(() => false)
    if (state === 'hung') {
      if (!healthy) return schedule(interval_ms)
      state = 'trial'
      return onChange()
    }
    if (state === 'trial') return
    if (healthy) {
      misses = 0
      if (state === 'down') markUp()
      if (Date.now() - usedAt < 2 * interval_ms) schedule(interval_ms)
      return
    }
    misses++
    if (state === 'up' && misses < misses_max) return schedule(firstBackOff_ms)
    markDown('it does not answer probes')
    schedule(backOff_ms)
    backOff_ms = Math.min(2 * backOff_ms, interval_ms)
  }

  return {
    isUp: () => state === 'up',
    admits: () => state === 'up' || state === 'down' || (state === 'trial' && trials === 0),
    retryAfter_seconds: () => Math.max(1, Math.ceil((retryAt - Date.now()) / 1000)),
    markUsed() {
      usedAt = Date.now()
      if (!timer && state === 'up') schedule(interval_ms)
    },
    begin() {
      const isTrial = state === 'trial'
      if (isTrial) trials++
      return { isTrial }
    },
    end({ isTrial }, answered) {
      if (isTrial) trials--
      if (answered && (state === 'trial' || state === 'hung')) {
        clearTimeout(timer)
        timer = undefined
        markUp()
      } else if (isTrial) onChange()
    },
    markFailed(why, answered) {
      if (state !== 'up') return
      markDown(why)
      schedule(answered ? 0 : firstBackOff_ms)
    },
    markHung(why) {
      if (state === 'hung') return
      if (state === 'trial') hung_ms = Math.min(2 * hung_ms, hungBackOff_ms.max)
      state = 'hung'
      log.warn({ replica: name, why }, 'a replica hangs: it gets no requests until one on trial is answered')
      schedule(hung_ms)
      onChange()
    },
  }
}
