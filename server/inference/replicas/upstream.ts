// A server elsewhere that speaks OpenAI's protocol: vLLM, llama-server, another Tunery's engine.
import http from 'node:http'
import https from 'node:https'
import type { Logger } from 'pino'
import type { ApiError } from '../../../contract/errors.ts'
import { createAdapters } from './adapters.ts'
import { leavesLength, upstreamBody } from './body.ts'
import { createHealth } from './health.ts'
import { NotAnswered, readAll, readFirst, send } from './http.ts'
import { type Answer, type Replica, ReplicaFailure, type Target } from './replica.ts'
import type { UpstreamSettings } from './settings.ts'
import { upstreamError } from './upstream-error.ts'

const probeTimeout_ms = 3000
/** Some servers close an idle connection after five seconds without having said so. */
const idleConnection_ms = 4000

export function createUpstream(settings: UpstreamSettings, log: Logger): Replica {
  const { url, kind, model, upstream_model, max_concurrent } = settings
  const name = `${model} at ${url.host}`
  const secure = url.protocol === 'https:'
  const where = {
    protocol: url.protocol,
    hostname: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port || (secure ? 443 : 80),
    agent: new (secure ? https : http).Agent({ keepAlive: true, timeout: idleConnection_ms }),
  }
  const headers = settings.api_key ? { authorization: `Bearer ${settings.api_key}` } : {}
  const listeners: (() => void)[] = []

  const health = createHealth({
    name,
    log,
    changed: () => {
      for (const tell of listeners) tell()
    },
    async probe() {
      // Every server has a list of models; vLLM's own check also knows whether its engine lives.
      const path = kind === 'vllm' ? `${url.pathname.slice(0, -'/v1'.length)}/health` : `${url.pathname}/models`
      const response = await send({ ...where, agent: false }, { method: 'GET', path, headers }, AbortSignal.timeout(probeTimeout_ms))
      response.resume()
      return response.statusCode === 200
    },
  })

  const gone = (error: NotAnswered) => {
    health.failed(error.message, false)
    adapters.forgetAll()
    return new ReplicaFailure('engine_unavailable', `The server of this model could not be reached (${error.message}). Try again in a moment.`, {
      lost: error.taken,
    })
  }

  async function post(path: string, payload: string, more: http.OutgoingHttpHeaders, signal: AbortSignal): Promise<http.IncomingMessage> {
    health.used()
    try {
      return await send(where, { method: 'POST', path: url.pathname + path, headers: { ...headers, ...more }, payload }, signal)
    } catch (error) {
      throw error instanceof NotAnswered && !signal.aborted ? gone(error) : error
    }
  }

  async function readText(response: http.IncomingMessage): Promise<string> {
    const bytes = await readAll(response).catch((error) => {
      throw error instanceof NotAnswered ? gone(error) : error
    })
    return bytes.toString('utf8')
  }

  const adapters = createAdapters({
    root: settings.adapter_root,
    async ask(path, body) {
      const response = await post(path, JSON.stringify(body), {}, AbortSignal.timeout(60_000))
      return { status: response.statusCode ?? 500, text: await readText(response) }
    },
    refused: (status, text) => log.error({ replica: name, status, answer: text.slice(0, 2000) }, 'an upstream refused to load an adapter'),
  })

  async function failure(status: number, text: string): Promise<ApiError> {
    const { error, elsewhere } = upstreamError(status, text)
    if (status === 401 || status === 403) log.error({ replica: name, status }, 'an upstream does not take the key it is sent; see api_key in docs/upstreams.md')
    if (status >= 500) health.failed(`it answered ${status}: ${error.message}`, true)
    return elsewhere ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) }) : error
  }

  return {
    name,
    max_concurrent,
    outstanding: 0,
    up: health.up,
    takes: ({ base, adapter }: Target) => base.id === model && (!adapter || settings.adapters),
    status: ({ adapter }) => (!health.up() ? 'not_loaded' : adapter ? adapters.status(adapter.id) : 'loaded'),
    load: async ({ adapter }) => adapter && adapters.ensure(adapter),
    unload: async ({ adapter }) => adapter && adapters.unload(adapter.id),
    onFree: (tell) => void listeners.push(tell),

    async send(ask, signal): Promise<Answer> {
      const { adapter } = ask.target
      const began = performance.now()
      let load_ms = 0
      const served = adapter?.id ?? upstream_model
      for (let attempt = 0, withMax = true; ; attempt++) {
        if (adapter) {
          await adapters.ensure(adapter)
          load_ms = performance.now() - began
        }
        const response = await post(ask.path, upstreamBody(ask, served, kind, withMax), { 'x-request-id': ask.request_id }, signal)
        const rename = served === ask.model ? undefined : ask.model
        try {
          if (response.statusCode === 200)
            return {
              headers: response.headers,
              load_ms,
              content: ask.stream ? { first: await readFirst(response), rest: response } : { whole: renamed(await readAll(response), rename) },
              rename,
              foreign: true,
              askedRunning: kind === 'vllm',
            }
        } catch (error) {
          throw error instanceof NotAnswered && !signal.aborted ? gone(error) : error
        }
        const status = response.statusCode ?? 500
        const text = await readText(response)
        if (attempt === 0 && status === 404 && adapter) {
          // It was started anew, or has made room for others.
          adapters.forget(adapter.id)
          continue
        }
        if (attempt === 0 && status === 400 && leavesLength(ask.body) && /max_tokens|context length/i.test(text)) {
          // The prompt leaves less than the default length: then the answer may have what it leaves.
          withMax = false
          continue
        }
        throw await failure(status, text)
      }
    },
  }
}

/** A whole answer that says the client's name of the model. */
function renamed(bytes: Buffer, name: string | undefined): Buffer {
  if (name === undefined) return bytes
  try {
    return Buffer.from(JSON.stringify({ ...JSON.parse(bytes.toString('utf8')), model: name }))
  } catch {
    throw new ReplicaFailure('engine_failed', 'The server of this model answered with something that is not JSON.')
  }
}
