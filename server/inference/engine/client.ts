// Asks the engine over HTTP, and remembers what has been loaded into its present life.
import { once as nextEvent } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError, type ErrorBody, type ErrorCode, errorCodes } from '../../../contract/errors.ts'
import { unlessAborted } from '../../../lib/abortable.ts'
import { countsOf, type TokenCounts } from '../gateway/usage-scanner.ts'
import { readAll, send } from '../replicas/http-client/client.ts'
import { NotAnswered } from '../replicas/http-client/connection.ts'
import type { Incoming } from '../replicas/http-client/response.ts'
import { LoadFailure, type ModelStatus, ReplicaFailure, type Target } from '../replicas/replica.ts'
import type { EngineLife, EngineProcess } from './process.ts'

export interface Posted {
  response: Incoming
  /** How long the request waited for the engine to start and the model to be loaded. */
  load_ms: number
}

export interface EngineClient {
  /** Loads the target where the engine does not have it yet. */
  load(target: Target): Promise<void>
  /** Frees what the engine holds of the target itself, not of what it stands on. */
  unload(target: Target): Promise<void>
  status(target: Target): ModelStatus
  /**
   * Sends a request about the target, once that is loaded; `body` makes its text from the name that the engine knows
   * the target by. Throws a ReplicaFailure where the engine is gone.
   */
  post(
    target: Target,
    path: string,
    body: (name: string) => string,
    headers: Record<string, string>,
    signal: AbortSignal,
  ): Promise<Posted>
  /** What a request has used whose client left before its answer ended; undefined where the engine did not have it. */
  usageOfLeft(request_id: string): Promise<TokenCounts | undefined>
  /** Has a running engine leave this share of the cores' time, 0 to 1, to other programs for the next `for_ms`. */
  leaveCores(share: number, for_ms: number): Promise<void>
  /** Requests, and loads, that the running engine has not ended. */
  isBusy(): boolean
  /** Frees, from now on, what no request has asked for in this time. Returns the way to stop that. */
  unloadIdle(idle_ms: number): () => void
}

/** What a life of the engine holds under one name, or is about to. */
interface Loaded {
  done: Promise<void>
  status: 'loading' | 'loaded'
  target: Target
  /** Requests that are using it; an adapter's use its base too. */
  users: number
  used_at: number
}

/** The engine was gone before it took the request: the next one may have it. */
class NotTaken extends ReplicaFailure {}
/** How long after a refused connection the engine's end may stay unknown. */
const endKnown_ms = 2000
/** The engine sees a client leave a moment after its connection was closed. */
const never = new AbortController().signal
const leftSeen_ms = [5, 20, 50, 100, 300]

export function createEngineClient(engine: EngineProcess, log: Logger): EngineClient {
  const lives = new WeakMap<EngineLife, Map<string, Loaded>>()
  function holdingsOf(life: EngineLife): Map<string, Loaded> {
    const known = lives.get(life)
    if (known) return known
    const fresh = new Map<string, Loaded>()
    lives.set(life, fresh)
    return fresh
  }

  /** Loads the thing of this name once a life; a load that failed may be tried again. */
  function loadOnce(life: EngineLife, name: string, target: Target, load: () => Promise<void>): Loaded {
    const holdings = holdingsOf(life)
    const known = holdings.get(name)
    if (known) return known
    const fresh: Loaded = { done: load(), status: 'loading', target, users: 0, used_at: Date.now() }
    holdings.set(name, fresh)
    fresh.done.then(
      () => {
        fresh.status = 'loaded'
      },
      () => holdings.get(name) === fresh && holdings.delete(name),
    )
    return fresh
  }

  async function command(life: EngineLife, path: string, body: unknown): Promise<void> {
    const { status, text } = await ask(life, path, JSON.stringify(body))
    if (status === 200) return
    // The caller of the API did not write this request: its paths and parameters are for the log.
    log.error({ path, body, answer: text.slice(0, 2000) }, 'the engine refused a load')
    if (status === 503) throw engineError(503, text)
    throw new LoadFailure()
  }

  async function ask(life: EngineLife, path: string, payload: string) {
    const response = await postTo(life, path, payload, {}, life.ended)
    return { status: response.status, text: (await readAll(response).catch((error) => fail(error))).toString('utf8') }
  }

  /**
   * Everything that the target needs in this life, the base first. What it is made of counts as used until `release` is
   * called.
   */
  async function hold(life: EngineLife, target: Target, signal: AbortSignal) {
    const { base, adapter } = target
    const { gguf } = base
    if (!gguf)
      throw new ApiError('model_not_available', `The weights of '${base.id}' are not on this machine.`, {
        param: 'model',
      })
    const held: Loaded[] = []
    const release = () => {
      for (const each of held.splice(0)) {
        each.users--
        each.used_at = Date.now()
      }
    }
    const use = (each: Loaded) => {
      each.users++
      held.push(each)
      return each.status === 'loaded' ? undefined : unlessAborted(each.done, signal)
    }
    try {
      const basis = loadOnce(life, base.id, { base }, () =>
        command(life, '/internal/load_model', { name: base.id, path: gguf }),
      )
      await use(basis)
      if (adapter) {
        const body = { lora_name: adapter.id, lora_path: adapter.gguf, base_model_name: base.id }
        await use(loadOnce(life, adapter.id, target, () => command(life, '/v1/load_lora_adapter', body)))
      }
      return release
    } catch (error) {
      release()
      throw error
    }
  }

  /** Does it on the running engine, and once more on the next where this one's end was not known yet. */
  async function onEngine<T>(work: (life: EngineLife) => Promise<T>, signal: AbortSignal): Promise<T> {
    const life = engine.current() ?? (await unlessAborted(engine.life(), signal))
    try {
      return await work(life)
    } catch (error) {
      if (!(error instanceof NotTaken)) throw error
      await Promise.race([
        life.ended.aborted || nextEvent(life.ended, 'abort'),
        sleep(endKnown_ms, undefined, { ref: false }),
      ])
      return work(await unlessAborted(engine.life(), signal))
    }
  }

  async function unloadFrom(life: EngineLife, name: string): Promise<void> {
    const holdings = holdingsOf(life)
    const held = holdings.get(name)
    if (!held) return
    holdings.delete(name)
    await command(
      life,
      held.target.adapter ? '/v1/unload_lora_adapter' : '/internal/unload_model',
      held.target.adapter ? { lora_name: name } : { name },
    )
  }

  async function unloadUnused(idle_ms: number): Promise<void> {
    const life = engine.current()
    if (!life) return
    const holdings = holdingsOf(life)
    const idle = ({ users, used_at, status }: Loaded) =>
      users === 0 && status === 'loaded' && Date.now() - used_at >= idle_ms
    for (const [name, held] of holdings) if (held.target.adapter && idle(held)) await unloadFrom(life, name)
    for (const [name, held] of holdings) {
      const carries = [...holdings.values()].some(({ target }) => target.adapter && target.base.id === name)
      if (!held.target.adapter && !carries && idle(held)) {
        log.info({ model: name }, 'an idle model is unloaded')
        await unloadFrom(life, name)
      }
    }
  }

  return {
    load: (target) => onEngine(async (life) => (await hold(life, target, never))(), never),

    async unload({ base, adapter }) {
      const life = engine.current()
      if (life) await unloadFrom(life, (adapter ?? base).id)
    },

    status({ base, adapter }) {
      const life = engine.current()
      const holdings = life && lives.get(life)
      const parts = adapter ? [base.id, adapter.id] : [base.id]
      const states = parts.map((name) => holdings?.get(name)?.status ?? 'not_loaded')
      return states.every((state) => state === 'loaded')
        ? 'loaded'
        : states.includes('loading')
          ? 'loading'
          : 'not_loaded'
    },

    post: (target, path, body, headers, signal) =>
      onEngine(async (life) => {
        const began = performance.now()
        const name = (target.adapter ?? target.base).id
        for (let again = false; ; again = true) {
          const release = await hold(life, target, signal)
          const load_ms = performance.now() - began
          try {
            const response = await postTo(life, path, body(name), headers, signal)
            response.once('close', release)
            if (response.status !== 404 || again) return { response, load_ms }
            // It has made room for others: what was loaded is to be loaded once more.
            response.resume()
            for (const each of [name, target.base.id]) holdingsOf(life).delete(each)
          } catch (error) {
            release()
            throw error
          }
        }
      }, signal),

    async usageOfLeft(request_id) {
      for (const wait_ms of leftSeen_ms) {
        await sleep(wait_ms)
        const life = engine.current()
        if (!life) return undefined
        const response = await send(
          life.connections,
          { method: 'GET', path: `/internal/usage/${encodeURIComponent(request_id)}` },
          life.ended,
        ).catch(() => undefined)
        if (!response) return undefined
        const text = (await readAll(response).catch(() => Buffer.of())).toString('utf8')
        if (response.status === 200 && text !== '') return countsOf(JSON.parse(text))
      }
      return undefined
    },

    async leaveCores(share, for_ms) {
      const life = engine.current()
      if (life) await ask(life, '/internal/leave_cores', JSON.stringify({ share, for_ms }))
    },

    isBusy() {
      const life = engine.current()
      return life !== undefined && [...holdingsOf(life).values()].some(({ users }) => users > 0)
    },

    unloadIdle(idle_ms) {
      const timer = setInterval(
        () =>
          void unloadUnused(idle_ms).catch((error) => log.warn({ err: error }, 'an idle model could not be unloaded')),
        Math.min(30_000, Math.max(20, idle_ms / 2)),
      )
      timer.unref()
      return () => clearInterval(timer)
    },
  }
}

async function postTo(
  life: EngineLife,
  path: string,
  payload: string,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<Incoming> {
  try {
    return await send(life.connections, { method: 'POST', path, headers, payload }, signal)
  } catch (error) {
    // Whoever aborted knows why; an engine that is gone is told as such.
    if (signal.aborted && !life.ended.aborted) throw error
    return fail(error)
  }
}

function fail(error: unknown): never {
  if (!(error instanceof NotAnswered)) throw error
  const message = `The engine ended while it worked on this request (${error.message}). It is being started again: try once more.`
  throw error.taken
    ? new ReplicaFailure('engine_unavailable', message, { lost: true })
    : new NotTaken('engine_unavailable', message)
}

/** The engine's own error, which has the same shape, as one of ours. */
export function engineError(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as ErrorBody
    return new ApiError(codeOf(error.code), error.message, {
      ...(error.details && { details: error.details }),
      ...(error.param && { param: error.param }),
    })
  } catch {
    return new ApiError('engine_failed', `The engine answered ${status} without a reason.`)
  }
}

function codeOf(code: string): ErrorCode {
  if (!(code in errorCodes)) throw new Error('not one of ours')
  return code as ErrorCode
}
