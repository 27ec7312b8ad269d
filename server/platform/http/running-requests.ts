// Requests that take long, each with the credential that it began with: a key, a session, a shared link. Once that has
// ended, or may no longer do what the request does, the request ends too, within a second on every server.
import type { FastifyRequest } from 'fastify'
import type { Logger } from 'pino'
import type { ApiError } from '../../../contract/errors.ts'
import type { Changes } from '../redis/changes.ts'
import { endedCredential, requirePermission } from './auth.ts'
import type { Caller } from './caller.ts'

declare module 'fastify' {
  interface FastifyInstance {
    running?: RunningRequests
  }
}

export interface RunningRequests {
  /** Says how the credentials of a kind are looked up: finds those of these ids that are good now. */
  define(kind: string, lookUp: (ids: string[]) => Promise<Map<string, unknown>>): void
  /**
   * Calls `end` once with what `judge` makes of the credential as it is now, or of undefined once it has ended, if that
   * is an error. Returns the function that stops watching.
   */
  watch<T>(
    kind: string,
    id: string,
    judge: (current: T | undefined) => ApiError | undefined,
    end: (error: ApiError) => void,
  ): () => void
  close(): void
}

/**
 * How often all are looked up, with one query for each kind: the command line, and a server whose notifications got
 * lost, tell nobody of a change.
 */
const interval_ms = 400

interface Watched {
  id: string
  judge(current: unknown): ApiError | undefined
  end(error: ApiError): void
}

export function createRunningRequests(changes: Pick<Changes, 'onAnnounced'>, log: Logger): RunningRequests {
  const kinds = new Map<string, (ids: string[]) => Promise<Map<string, unknown>>>()
  const running = new Map<string, Set<Watched>>()
  let timer: NodeJS.Timeout | undefined
  let checking: Promise<void> | undefined
  let again = false
  let closed = false

  async function checkKind(kind: string, watched: Set<Watched>): Promise<void> {
    const all = [...watched]
    const current = await kinds.get(kind)!([...new Set(all.map(({ id }) => id))])
    for (const request of all) {
      if (!watched.has(request)) continue
      const error = request.judge(current.get(request.id))
      if (!error) continue
      watched.delete(request)
      request.end(error)
    }
  }

  /** One check at a time; a change during one is followed by another. */
  function check(): void {
    if (checking !== undefined) {
      again = true
      return
    }
    const busy = [...running].filter(([, watched]) => watched.size > 0)
    checking = Promise.all(busy.map(([kind, watched]) => checkKind(kind, watched)))
      // A database that does not answer ends nothing: the next check asks again.
      .catch((error) => log.debug({ err: error }, 'the keys of running requests could not be looked up'))
      .then(() => {
        checking = undefined
        if (!again) return
        again = false
        check()
      })
  }

  function tick(): void {
    timer = undefined
    if (closed || ![...running.values()].some((watched) => watched.size > 0)) return
    check()
    schedule()
  }
  function schedule(): void {
    timer ??= setTimeout(tick, interval_ms).unref()
  }
  changes.onAnnounced(() => {
    if (timer) check()
  })

  return {
    define: (kind, lookUp) => void kinds.set(kind, lookUp),
    watch(kind, id, judge, end) {
      const watched = running.get(kind) ?? new Set()
      running.set(kind, watched)
      const request: Watched = { id, judge: judge as Watched['judge'], end }
      watched.add(request)
      schedule()
      return () => void watched.delete(request)
    },
    close() {
      closed = true
      clearTimeout(timer)
    },
  }
}

/**
 * Calls `end` once the key or session of a request has ended or may no longer do this, unless its response has ended
 * before. Does nothing for requests that need neither.
 */
export function watchCredential(request: FastifyRequest, end: (error: ApiError) => void): () => void {
  const { caller, server, routeOptions } = request
  const { route } = routeOptions.config
  if (!caller || !route || !server.running) return () => {}
  const judge = (current: Caller | undefined): ApiError | undefined => {
    if (!current) return endedCredential(caller)
    try {
      requirePermission(current, route)
      return undefined
    } catch (error) {
      return error as ApiError
    }
  }
  return server.running.watch(caller.kind, caller.key_id, judge, end)
}
