// Health of a replica: passive (failed requests) and active (probes while it is in use or down). One that hangs often
// answers probes all the same, so it gets no request until it has answered one of ours, on trial.
import type { Logger } from 'pino'

const interval_ms = 5000
const firstBackOff_ms = 250
/** A busy server may answer one probe late; two misses in a row mark it down. */
const misses_max = 2
/** The break before a trial of a replica that hangs: the first, and the longest. */
const hungBackOff_ms = { first: 1000, max: 60_000 }

export interface Health {
  isUp(): boolean
  /** Whether it may have another request: not while it hangs. */
  admits(): boolean
  /** In how many seconds it is tried again. */
  retryAfter_seconds(): number
  /** Keeps probing the replica for the next few seconds. */
  markUsed(): void
  /** It has answered a request, so it does not hang. */
  markAnswered(): void
  /**
   * Marks the replica down until a probe succeeds. `answered`: the server responded with an error, so that the first
   * probe runs at once.
   */
  markFailed(why: string, answered: boolean): void
  /** It took a request and sent nothing. */
  markHung(why: string): void
}

type State = 'up' | 'down' | 'hung'

export function createHealth({
  name,
  probe,
  trial,
  onChange,
  log,
}: {
  name: string
  probe: () => Promise<boolean>
  /** Asks for a small answer. */
  trial: () => Promise<boolean>
  onChange: () => void
  log: Logger
}): Health {
  let state: State = 'up'
  let misses = 0
  let usedAt = 0
  let backOff_ms = firstBackOff_ms
  let hung_ms = hungBackOff_ms.first
  let retryAt = 0
  let timer: NodeJS.Timeout | undefined

  function schedule(ms: number, then = check): void {
    clearTimeout(timer)
    retryAt = Date.now() + ms
    timer = setTimeout(then, ms).unref()
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

  async function tryHung(): Promise<void> {
    timer = undefined
    const isThere = await probe().catch(() => false)
    const answers = isThere && (await trial().catch(() => false))
    // It may have answered a request meanwhile.
    if (state !== 'hung') return
    if (answers) return markUp()
    // One that is being started again is looked at more often.
    if (isThere) hung_ms = Math.min(2 * hung_ms, hungBackOff_ms.max)
    schedule(isThere ? hung_ms : Math.min(hung_ms, interval_ms), tryHung)
  }

  async function check(): Promise<void> {
    timer = undefined
    const healthy = await probe().catch(() => false)
    if (state === 'hung') return
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
    admits: () => state !== 'hung',
    retryAfter_seconds: () => Math.max(1, Math.ceil((retryAt - Date.now()) / 1000)),
    markUsed() {
      usedAt = Date.now()
      if (!timer && state === 'up') schedule(interval_ms)
    },
    markAnswered() {
      if (state !== 'hung') return
      clearTimeout(timer)
      timer = undefined
      markUp()
    },
    markFailed(why, answered) {
      if (state !== 'up') return
      markDown(why)
      schedule(answered ? 0 : firstBackOff_ms)
    },
    markHung(why) {
      if (state === 'hung') return
      state = 'hung'
      log.warn({ replica: name, why }, 'a replica hangs: it gets no requests until it has answered one on trial')
      schedule(hung_ms, tryHung)
      onChange()
    },
  }
}
