// Asks the engine over HTTP, and remembers what has been loaded into its present life.
import { once as nextEvent } from 'node:events'
import http from 'node:http'
import { setTimeout } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError, type ErrorBody } from '../../contract/errors.ts'
import type { EngineLife, EngineProcess } from './engine-process.ts'

/** What a request runs on: whole weights of the hub or of a tuned model, and an adapter on them or none. */
export interface Target {
  base: { id: string; gguf: string }
  adapter?: { id: string; gguf: string }
}

export interface EngineClient {
  /** Loads the target where the engine does not have it yet. */
  load(target: Target): Promise<void>
  /** Frees what the engine holds of the target itself, not of what it stands on. */
  unload(target: Target): Promise<void>
  /** Sends a request about the target; resolves with the head of the answer. Throws engine_unavailable where the engine is gone. */
  post(target: Target, path: string, body: object, headers: http.OutgoingHttpHeaders, signal: AbortSignal): Promise<http.IncomingMessage>
}

/** The engine was gone before it took the request: another one may have it. */
class NotTaken extends ApiError {}
/** How long after a refused connection the engine's end may stay unknown. */
const endKnown_ms = 2000
const notTakenCodes = ['ECONNREFUSED', 'ENOENT', 'EPIPE']

export function createEngineClient(engine: EngineProcess, log: Logger): EngineClient {
  const loaded = new WeakMap<EngineLife, Map<string, Promise<void>>>()

  /** Does a load once a life; a load that failed may be tried again. */
  function once(life: EngineLife, name: string, load: () => Promise<void>): Promise<void> {
    const names = loaded.get(life) ?? new Map<string, Promise<void>>()
    loaded.set(life, names)
    let done = names.get(name)
    if (!done) {
      done = load()
      done.catch(() => names.delete(name))
      names.set(name, done)
    }
    return done
  }

  async function command(life: EngineLife, path: string, body: unknown): Promise<void> {
    const response = await post(life, path, body, {}, life.ended)
    const text = await readAll(response)
    if (response.statusCode === 200) return
    // The caller of the API did not write this request: its paths and parameters are for the log.
    log.error({ path, body, answer: text.slice(0, 2000) }, 'the engine refused a load')
    if (response.statusCode === 503) throw engineError(503, text)
    throw new ApiError('engine_failed', 'The model could not be loaded into the engine. The log of the service has the reason.')
  }

  /** Loads the target into this life; returns the name that the engine knows it by. */
  async function loadInto(life: EngineLife, { base, adapter }: Target): Promise<string> {
    await once(life, base.id, () => command(life, '/internal/load_model', { name: base.id, path: base.gguf }))
    if (!adapter) return base.id
    await once(life, adapter.id, () => command(life, '/v1/load_lora_adapter', { lora_name: adapter.id, lora_path: adapter.gguf, base_model_name: base.id }))
    return adapter.id
  }

  /** Does it on the running engine, and once more on the next where this one's end was not known yet. */
  async function onEngine<T>(work: (life: EngineLife) => Promise<T>): Promise<T> {
    const life = await engine.life()
    try {
      return await work(life)
    } catch (error) {
      if (!(error instanceof NotTaken)) throw error
      await Promise.race([life.ended.aborted || nextEvent(life.ended, 'abort'), setTimeout(endKnown_ms, undefined, { ref: false })])
      return work(await engine.life())
    }
  }

  return {
    load: async (target) => void (await onEngine((life) => loadInto(life, target))),
    async unload({ base, adapter }) {
      const life = engine.current()
      if (!life) return
      const name = (adapter ?? base).id
      if (!loaded.get(life)?.delete(name)) return
      await command(life, adapter ? '/v1/unload_lora_adapter' : '/internal/unload_model', adapter ? { lora_name: name } : { name })
    },
    post: (target, path, body, headers, signal) =>
      onEngine(async (life) => post(life, path, { ...body, model: await loadInto(life, target) }, headers, signal)),
  }
}

function post(life: EngineLife, path: string, body: unknown, headers: http.OutgoingHttpHeaders, signal: AbortSignal): Promise<http.IncomingMessage> {
  const payload = serialize(body)
  return new Promise((resolve, reject) => {
    const request = http.request({
      socketPath: life.socket,
      agent: life.agent,
      method: 'POST',
      path,
      headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(payload), ...headers },
      signal,
    })
    request.on('response', resolve)
    request.on('error', (error) => {
      // Whoever aborted knows why; an engine that is gone is told as such.
      if (signal.aborted && !life.ended.aborted) reject(error)
      else {
        const message = `The engine ended while it worked on this request (${error.message}). It is being started again: try once more.`
        reject(new (notTakenCodes.includes((error as NodeJS.ErrnoException).code ?? '') ? NotTaken : ApiError)('engine_unavailable', message))
      }
    })
    request.end(payload)
  })
}

function serialize(body: unknown): string {
  try {
    return JSON.stringify(body)
  } catch {
    throw new ApiError('invalid_request', 'The body is nested too deeply.')
  }
}

export async function readAll(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  try {
    for await (const chunk of response) chunks.push(chunk)
  } catch {
    throw new ApiError('engine_unavailable', 'The engine ended while it worked on this request. It is being started again: try once more.')
  }
  return Buffer.concat(chunks).toString('utf8')
}

/** The engine's own error, which has the same shape, as one of ours. */
export function engineError(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as ErrorBody
    return new ApiError(error.code, error.message, { ...(error.details && { details: error.details }), ...(error.param && { param: error.param }) })
  } catch {
    return new ApiError('engine_failed', `The engine answered ${status} without a reason.`)
  }
}
