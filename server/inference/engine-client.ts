// Asks the engine over HTTP, and remembers what has been loaded into its present life.
import http from 'node:http'
import type { Logger } from 'pino'
import { ApiError, type ErrorBody } from '../../contract/errors.ts'
import type { LocalBase } from '../hub/service.ts'
import type { TunedModel } from '../tuning/service.ts'
import type { EngineLife, EngineProcess } from './engine-process.ts'

/** What a request runs on: a base, or a tuned model on its base. */
export interface Target {
  base: LocalBase
  tuned?: TunedModel
}

export interface EngineClient {
  /** Loads the target where this life of the engine does not have it yet; returns the life, and the name the engine knows the target by. */
  load(target: Target): Promise<{ life: EngineLife; name: string }>
  /** Sends a request; resolves with the head of the answer. Throws engine_unavailable where the engine is gone. */
  post(life: EngineLife, path: string, body: unknown, headers: http.OutgoingHttpHeaders, signal: AbortSignal): Promise<http.IncomingMessage>
}

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

  return {
    post,
    async load({ base, tuned }) {
      const life = await engine.life()
      await once(life, base.id, () => command(life, '/internal/load_model', { name: base.id, path: base.gguf }))
      if (!tuned) return { life, name: base.id }
      await once(life, tuned.id, () => command(life, '/v1/load_lora_adapter', { lora_name: tuned.id, lora_path: tuned.adapter_gguf, base_model_name: base.id }))
      return { life, name: tuned.id }
    },
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
      else
        reject(
          new ApiError('engine_unavailable', `The engine ended while it worked on this request (${error.message}). It is being started again: try once more.`),
        )
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
