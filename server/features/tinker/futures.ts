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

/** Who asks, and how it is learned that they may no longer: their key was revoked, or their account is suspended. */
export interface Requester {
  account_id: string
  key_id: string
  /** Calls `end` then. Returns the function that stops watching. */
  watch(end: (error: ApiError) => void): () => void
}

interface Future {
  id: string
  account: Account
  /** What its requests are polled by, if they are polled together. */
  group: string | undefined
  queue: QueueState
  settled: Promise<void>
  result: FutureResult | undefined
  /** How large its result is. */
  bytes: number
  /** How large its request is, until it is done. */
  asked_bytes: number
  done_at: number
  /** Its number among all that are done. */
  place: number
  cancel: AbortController
}

/** The requests of an account. */
interface Account {
  id: string
  unfinished: Set<Future>
  asked_bytes: number
  /** In the order in which they were done. */
  done: Set<Future>
  done_bytes: number
  /** Those whose results the client has, with when it said so, in the order of these times. */
  released: Map<Future, number>
  /** Resolves as the next of its requests is done. */
  next: PromiseWithResolvers<void>
}

/** How long the result of a request is kept after it is done. */
export const kept_ms = 60 * 60_000
/** After that it is kept so long: the answer that the client acknowledges may have been sent twice. */
const released_ms = 60_000
/** Results in memory, of one account and of all; the oldest go first, of the account that has most. */
const resultBytesMax = { account: 256e6, all: 1e9 }
/** What a request takes in memory beside its result. */
const futureBytes = 1000
const forgetEvery_ms = 1000
/** Requests of an account that are not done. */
const unfinishedMax = 8192
/** Bytes of the bodies of requests that are not done, of one account and of all. In memory they are larger. */
const askedBytesMax = { account: 128e6, all: 512e6 }

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
  private readonly accounts = new Map<string, Account>()
  private asked_bytes = 0
  private done_bytes = 0
  private places = 0
  private forgotten_at = 0

  constructor(now: () => number) {
    this.now = now
  }

  /**
   * Begins a request, unless one with this id was begun before. Only one account has an id. `bytes`: how large it is,
   * where that is much. Throws not_found for that of another one, rate_limit_exceeded for too many or too large ones.
   */
  begin(
    account_id: string,
    id: string,
    work: (handle: FutureHandle) => Promise<FutureResult>,
    { group, bytes = 0, watch }: { group?: string; bytes?: number; watch?: Requester['watch'] } = {},
  ): void {
    const existing = this.futures.get(id)
    if (existing) {
      if (existing.account.id !== account_id) throw gone(id)
      return
    }
    this.forget()
    const account = this.accountOf(account_id)
    this.requireRoom(account, bytes)
    const cancel = new AbortController()
    const future: Future = {
      id,
      account,
      group,
      queue: { state: 'active' },
      settled: Promise.resolve(),
      result: undefined,
      bytes: 0,
      asked_bytes: bytes,
      done_at: 0,
      place: 0,
      cancel,
    }
    this.futures.set(id, future)
    account.unfinished.add(future)
    account.asked_bytes += bytes
    this.asked_bytes += bytes
    const handle = {
      signal: cancel.signal,
      waits: (queue: QueueState) => {
        future.queue = queue
      },
    }
    const unwatch = watch?.((error) => cancel.abort(error))
    future.settled = work(handle)
      // What was interrupted says only that it was.
      .catch((error) => failureOf(cancel.signal.aborted ? cancel.signal.reason : error))
      .then((result) => {
        unwatch?.()
        this.settle(future, result)
      })
  }

  has(account_id: string, id: string): boolean {
    return this.futures.get(id)?.account.id === account_id
  }

  /** The result of a request once it is done; why it is not after `wait_ms`. Throws not_found. */
  async result(
    account_id: string,
    id: string,
    wait_ms: number,
    signal: AbortSignal,
  ): Promise<FutureResult | QueueState> {
    const future = this.futures.get(id)
    if (future?.account.id !== account_id) throw gone(id)
    if (!future.result) await waited(future.settled, wait_ms, signal)
    return future.result ?? future.queue
  }

  /** Those of a group that were done after the `cursor`, at least one if that happens within `wait_ms`. */
  async completions(account_id: string, group: string, cursor: number, wait_ms: number, signal: AbortSignal) {
    const account = this.accounts.get(account_id)
    if (!account) return []
    const ofGroup = (one: Future) => one.group === group
    const done = () => [...account.done].filter((one) => ofGroup(one) && one.place > cursor)
    const ends_at = performance.now() + wait_ms
    // Another group's may be done first.
    while (done().length === 0 && [...account.unfinished].some(ofGroup) && !signal.aborted) {
      const left_ms = ends_at - performance.now()
      if (left_ms <= 0) break
      await waited(account.next.promise, left_ms, signal)
    }
    return done()
      .toSorted((one, other) => one.place - other.place)
      .map(({ id, result, bytes, place }) => ({ id, failed: result!.kind === 'failed', bytes, place }))
  }

  /** The client no longer wants these results. */
  release(account_id: string, ids: readonly string[]): void {
    for (const id of ids) {
      const future = this.futures.get(id)
      if (future?.account.id === account_id && future.result && !future.account.released.has(future))
        future.account.released.set(future, this.now())
    }
  }

  /** Ends a request that has not been computed. */
  cancel(account_id: string, id: string): void {
    const future = this.futures.get(id)
    if (future?.account.id === account_id)
      future.cancel.abort(new ApiError('invalid_request', 'The client cancelled the request.'))
  }

  /** Ends the requests whose ids begin so, and waits for what cannot be interrupted. */
  async end(account_id: string, prefix: string): Promise<void> {
    const own = [...(this.accounts.get(account_id)?.unfinished ?? [])].filter(({ id }) => id.startsWith(prefix))
    for (const { cancel } of own) cancel.abort(new ApiError('invalid_request', 'This session has ended.'))
    await Promise.all(own.map(({ settled }) => settled))
  }

  private accountOf(id: string): Account {
    const existing = this.accounts.get(id)
    if (existing) return existing
    const next = Promise.withResolvers<void>()
    const none = { asked_bytes: 0, done_bytes: 0 }
    const account = { id, unfinished: new Set<Future>(), done: new Set<Future>(), released: new Map(), next, ...none }
    this.accounts.set(id, account)
    return account
  }

  private requireRoom({ unfinished, asked_bytes }: Account, bytes: number): void {
    const details = { retry_after_seconds: 1 }
    if (unfinished.size >= unfinishedMax)
      throw new ApiError(
        'rate_limit_exceeded',
        `${unfinishedMax} requests of this account are not done yet. Fetch some results first.`,
        { details },
      )
    const { account, all } = askedBytesMax
    if (asked_bytes + bytes > account || (asked_bytes > 0 && this.asked_bytes + bytes > all))
      throw new ApiError(
        'rate_limit_exceeded',
        'The requests that are not done yet take too much memory with this one. Fetch some results first.',
        { details },
      )
  }

  private settle(future: Future, result: FutureResult): void {
    const { account, asked_bytes } = future
    future.result = result
    const size = result.kind === 'message' ? result.bytes.length : JSON.stringify(result).length
    future.bytes = futureBytes + size
    future.done_at = this.now()
    future.place = ++this.places
    account.unfinished.delete(future)
    account.asked_bytes -= asked_bytes
    this.asked_bytes -= asked_bytes
    account.done.add(future)
    account.done_bytes += future.bytes
    this.done_bytes += future.bytes
    account.next.resolve()
    account.next = Promise.withResolvers()
    this.makeRoom(account)
  }

  /** Forgets the oldest results where there are more than may be; the last one stays. */
  private makeRoom(account: Account): void {
    const removeOldest = ({ done }: Account) => this.remove(done.values().next().value!)
    while (account.done_bytes > resultBytesMax.account && account.done.size > 1) removeOldest(account)
    while (this.done_bytes > resultBytesMax.all) {
      const most = [...this.accounts.values()].reduce((one, other) => (other.done_bytes > one.done_bytes ? other : one))
      if (most.done.size < 2) return
      removeOldest(most)
    }
  }

  /** Forgets results whose time is over. */
  private forget(): void {
    // Not at each of thousands of requests a second.
    const time = this.now()
    if (time - this.forgotten_at < forgetEvery_ms) return
    this.forgotten_at = time
    for (const account of this.accounts.values()) {
      for (const [future, released_at] of account.released) {
        if (released_at > time - released_ms) break
        this.remove(future)
      }
      for (const future of account.done) {
        if (future.done_at > time - kept_ms) break
        this.remove(future)
      }
      if (account.done.size + account.unfinished.size === 0) this.accounts.delete(account.id)
    }
  }

  private remove(future: Future): void {
    const { id, account, bytes } = future
    this.futures.delete(id)
    account.done.delete(future)
    account.released.delete(future)
    account.done_bytes -= bytes
    this.done_bytes -= bytes
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
