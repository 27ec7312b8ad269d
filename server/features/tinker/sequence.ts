// The order of a run's requests: each has a number, and is worked on after all with lower ones, in whatever order they
// come.
import { ApiError } from '../../../contract/errors.ts'

/** Requests of a run that wait for earlier ones that have not come. */
const waitingMax = 512
/** How long an earlier request may be missing: its client has gone. */
const missing_ms = 10 * 60_000

export class Sequence {
  private next: number
  private readonly waiting = new Map<number, () => void>()

  constructor(next: number) {
    this.next = next
  }

  /**
   * Throws invalid_request for a number that was worked on before, rate_limit_exceeded where too many wait. Call it
   * when a request arrives.
   */
  require(seq: number): void {
    if (seq < this.next || this.waiting.has(seq))
      throw new ApiError(
        'invalid_request',
        `The request ${seq} of this run was made before, and its result is no longer kept. Next is ${this.next}.`,
      )
    if (this.waiting.size >= waitingMax)
      throw new ApiError('rate_limit_exceeded', `${waitingMax} requests of this run wait already.`, {
        details: { retry_after_seconds: 1 },
      })
  }

  /** Runs the work in its turn. `done` is called before the next one begins, with the number that is next then. */
  async run<T>(
    seq: number,
    work: () => Promise<T>,
    done: (next: number) => Promise<void>,
    signal?: AbortSignal,
  ): Promise<T> {
    if (seq !== this.next) await this.turn(seq, signal)
    try {
      return await work()
    } finally {
      await done(seq + 1).catch(() => {})
      this.next = seq + 1
      const begin = this.waiting.get(this.next)
      this.waiting.delete(this.next)
      begin?.()
    }
  }

  private turn(seq: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', onAbort)
        this.waiting.delete(seq)
      }
      const onAbort = () => {
        leave()
        reject(signal!.reason)
      }
      const timer = setTimeout(() => {
        leave()
        reject(
          new ApiError('invalid_request', `The request ${this.next} of this run did not come, which is before ${seq}.`),
        )
      }, missing_ms).unref()
      signal?.addEventListener('abort', onAbort, { once: true })
      this.waiting.set(seq, () => {
        leave()
        resolve()
      })
    })
  }
}
