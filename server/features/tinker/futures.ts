// Requests whose results are fetched later, by the ids that the client can compute itself: the same request sent twice
// is one.
import { ApiError } from '../../../contract/errors.ts'

/** What a request came to. `message`: the bytes of a Protocol Buffer; otherwise fields of JSON. */
export type FutureResult =
  | { kind: 'json'; fields: Record<string, unknown> }
  | { kind: 'message'; bytes: Buffer }
  | { kind: 'failed'; error: string; category: 'user' | 'server' | 'unknown' }

/** Why a request is not computed yet. */
export interface QueueState {
  state: 'active' | 'paused_capacity' | 'paused_rate_limit'
  reason?: string
}

interface Future {
  id: string
  account_id: string
  /** What its requests are polled by, if they are polled together. */
  group: string | undefined
  queue: QueueState
  settled: Promise<void>
  result: FutureResult | undefined
  bytes: number
  done_at: number
  /** Its number among all that are done. */
  place: number
  cancel: AbortController
}

/** How long the result of a request is kept after it is done. */
export const kept_ms = 60 * 60_000
/** Results of an account in memory; the oldest go first. */
const resultBytesMax = 256e6
const forgetEvery_ms = 1000
/** Requests of an account that are not done. */
const unfinishedMax = 8192

/** Gone: the SDK sends a sampling request again. */
const gone = (id: string) =>
  new ApiError(
    'not_found',
    `There is no request '${id.slice(0, 200)}'. Results are kept for an hour, and until the service is restarted.`,
  )

export interface FutureHandle {
  /** Aborts when the request is cancelled. */
  signal: AbortSignal
  waits(queue: QueueState): void
}

export class Futures {
  private readonly now: () => number
  private readonly futures = new Map<string, Future>()
  private places = 0
  private forgotten_at = 0

  constructor(now: () => number) {
    this.now = now
  }

  /**
   * Begins a request, unless one with this id was begun before. Only one account has an id. Throws not_found for that
   * of another one, rate_limit_exceeded for too many.
   */
  begin(account_id: string, id: string, work: (handle: FutureHandle) => Promise<FutureResult>, group?: string): void {
    const existing = this.futures.get(id)
    if (existing) {
      if (existing.account_id !== account_id) throw gone(id)
      return
    }
    this.forget()
    const own = [...this.futures.values()].filter((future) => future.account_id === account_id && !future.result)
    if (own.length >= unfinishedMax)
      throw new ApiError(
        'rate_limit_exceeded',
        `${unfinishedMax} requests of this account are not done yet. Fetch some results first.`,
        { details: { retry_after_seconds: 1 } },
      )
    const cancel = new AbortController()
    const future: Future = {
      id,
      account_id,
      group,
      queue: { state: 'active' },
      settled: Promise.resolve(),
      result: undefined,
      bytes: 0,
      done_at: 0,
      place: 0,
      cancel,
    }
    this.futures.set(id, future)
    const handle = {
      signal: cancel.signal,
      waits: (queue: QueueState) => {
        future.queue = queue
      },
    }
    future.settled = work(handle)
      .catch(failureOf)
      .then((result) => this.settle(future, result))
  }

  has(account_id: string, id: string): boolean {
    return this.futures.get(id)?.account_id === account_id
  }

  /** The result of a request once it is done; why it is not after `wait_ms`. Throws not_found. */
  async result(
    account_id: string,
    id: string,
    wait_ms: number,
    signal: AbortSignal,
  ): Promise<FutureResult | QueueState> {
    const future = this.futures.get(id)
    if (future?.account_id !== account_id) throw gone(id)
    if (!future.result) await waited(future.settled, wait_ms, signal)
    return future.result ?? future.queue
  }

  /** Those of a group that were done after the `cursor`, at least one if that happens within `wait_ms`. */
  async completions(account_id: string, group: string, cursor: number, wait_ms: number, signal: AbortSignal) {
    const own = () => [...this.futures.values()].filter((one) => one.account_id === account_id && one.group === group)
    const done = () => own().filter(({ result, place }) => result && place > cursor)
    const unfinished = own().filter(({ result }) => !result)
    if (done().length === 0 && unfinished.length > 0)
      await waited(Promise.race(unfinished.map(({ settled }) => settled)), wait_ms, signal)
    return done()
      .toSorted((one, other) => one.place - other.place)
      .map(({ id, result, bytes, place }) => ({ id, failed: result!.kind === 'failed', bytes, place }))
  }

  /** The client no longer wants these results. */
  release(account_id: string, ids: readonly string[]): void {
    for (const id of ids) {
      const future = this.futures.get(id)
      // A while longer: the answer that the client acknowledges may have been sent twice.
      if (future?.account_id === account_id && future.result) future.done_at = this.now() - kept_ms + 60_000
    }
  }

  /** Ends a request that has not been computed. */
  cancel(account_id: string, id: string): void {
    const future = this.futures.get(id)
    if (future?.account_id === account_id)
      future.cancel.abort(new ApiError('invalid_request', 'The client cancelled the request.'))
  }

  private settle(future: Future, result: FutureResult): void {
    future.result = result
    future.bytes = result.kind === 'message' ? result.bytes.length : JSON.stringify(result).length
    future.done_at = this.now()
    future.place = ++this.places
    this.forget()
  }

  /** Forgets results whose time is over, and the oldest of an account with more than it may have. */
  private forget(): void {
    // Not at each of thousands of requests a second.
    if (this.now() - this.forgotten_at < forgetEvery_ms) return
    this.forgotten_at = this.now()
    const bytes = new Map<string, number>()
    const done = [...this.futures.values()].filter(({ result }) => result)
    for (const { id, account_id, bytes: size, done_at } of done.toSorted((one, other) => other.place - one.place)) {
      const sum = (bytes.get(account_id) ?? 0) + size
      bytes.set(account_id, sum)
      if (done_at < this.now() - kept_ms || (sum > resultBytesMax && size !== sum)) this.futures.delete(id)
    }
  }
}

async function waited(settled: Promise<void>, wait_ms: number, signal: AbortSignal): Promise<void> {
  if (wait_ms <= 0 || signal.aborted) return
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, wait_ms)
    signal.addEventListener('abort', end, { once: true })
    void settled.then(end)
  })
}

/** What a client gets to read of an error. */
export function failureOf(error: unknown): FutureResult {
  if (error instanceof ApiError)
    return { kind: 'failed', error: error.message, category: error.status < 500 ? 'user' : 'server' }
  return { kind: 'failed', error: 'Something failed inside the service. Its log has the cause.', category: 'server' }
}
