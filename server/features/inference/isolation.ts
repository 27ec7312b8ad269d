// Isolation of requests in the background that were in the engine when it ended. One of them may have ended it: they
// are asked again apart from all others, so that it ends nobody else's.
//
// At most one room is open, and only its requests are asked. All requests share a room until they lose the engine once.
// Then each account has a room for its lost ones, and what is lost there once more is asked alone.
import { ReplicaFailure } from '../serving/index.ts'

/** A request that has lost the engine so often while it was alone there is what ends it. */
const aloneLosses_max = 3
/** The same beside live requests, any of which may have ended the engine. */
const accompaniedLosses_max = 12
/** After that, requests of its account begin apart from those of others. */
const suspicion_ms = 600_000
/** Requests whose losses are remembered while nobody asks them. */
const remembered_max = 100_000

export interface Isolation {
  /**
   * Asks once the request's room is open. A failure that lost the engine counts against the request. Rejects with the
   * signal's reason if it aborts before.
   */
  ask<T>(request: { account_id: string; request_id: string }, ask: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Whether the request has lost the engine so often that it is to blame. */
  isToBlame(request_id: string): boolean
  /** The request has its answer, or none will come. */
  forget(request_id: string): void
}

interface Waiting {
  begin(): void
}

interface Losses {
  /** In a room with others. */
  shared: number
  alone: number
  accompanied: number
}

const none: Losses = { shared: 0, alone: 0, accompanied: 0 }

export function createIsolation(now: () => number = Date.now): Isolation {
  const losses = new Map<string, Losses>()
  const suspectUntil = new Map<string, number>()
  let open: string | undefined
  let inside = 0
  /** In the order in which they are opened. */
  const rooms = new Map<string, Waiting[]>()

  function roomOf(account_id: string, request_id: string): string {
    const { shared } = losses.get(request_id) ?? none
    if (shared > 1) return `request ${request_id}`
    const isSuspect = shared > 0 || (suspectUntil.get(account_id) ?? 0) > now()
    return isSuspect ? `account ${account_id}` : 'all'
  }

  function openNext(): void {
    if (inside > 0) return
    const [next] = rooms
    open = next?.[0]
    if (!next) return
    rooms.delete(next[0])
    for (const { begin } of next[1]) {
      inside++
      begin()
    }
  }

  /** Others that wait have their room opened before more come into this one. */
  async function enter(room: string, signal: AbortSignal): Promise<void> {
    if (inside === 0 || (open === room && rooms.size === 0)) {
      open = room
      inside++
      return
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting: Waiting = {
      begin() {
        signal.removeEventListener('abort', onAbort)
        resolve()
      },
    }
    const onAbort = () => {
      const left = rooms.get(room)?.filter((waiter) => waiter !== waiting) ?? []
      if (left.length > 0) rooms.set(room, left)
      else rooms.delete(room)
      reject(signal.reason)
    }
    signal.addEventListener('abort', onAbort, { once: true })
    rooms.set(room, [...(rooms.get(room) ?? []), waiting])
    await promise
  }

  const isToBlame = (request_id: string) => {
    const { alone, accompanied } = losses.get(request_id) ?? none
    return alone >= aloneLosses_max || alone + accompanied >= accompaniedLosses_max
  }

  function countLoss(account_id: string, request_id: string, accompanied: boolean): void {
    const before = losses.get(request_id) ?? none
    const kind = before.shared < 2 ? 'shared' : accompanied ? 'accompanied' : 'alone'
    losses.delete(request_id)
    losses.set(request_id, { ...before, [kind]: before[kind] + 1 })
    if (losses.size > remembered_max) losses.delete(losses.keys().next().value!)
    if (!isToBlame(request_id)) return
    suspectUntil.set(account_id, now() + suspicion_ms)
    for (const [account, until] of suspectUntil) if (until <= now()) suspectUntil.delete(account)
  }

  return {
    async ask({ account_id, request_id }, ask, signal) {
      signal.throwIfAborted()
      await enter(roomOf(account_id, request_id), signal)
      try {
        return await ask()
      } catch (error) {
        if (error instanceof ReplicaFailure && error.lost && !signal.aborted)
          countLoss(account_id, request_id, error.accompanied)
        throw error
      } finally {
        inside--
        openNext()
      }
    },
    isToBlame,
    forget: (request_id) => void losses.delete(request_id),
  }
}
