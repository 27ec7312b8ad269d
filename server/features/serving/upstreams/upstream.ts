// An upstream as a replica: an OpenAI-compatible server such as vLLM, llama-server or another Tunery engine.
import type { Logger } from 'pino'
import type { ApiError } from '../../../../contract/errors.ts'
import { abortable } from '../../../../lib/abortable.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import { BodyTooLarge, readAll, send } from '../http-client/client.ts'
import { createConnectionPool, NoResponse } from '../http-client/connection-pool.ts'
import type { HttpResponse } from '../http-client/response.ts'
import { upstreamBody, usesDefaultLength } from '../requests/body.ts'
import {
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { createAdapters } from './adapters.ts'
import { readHeaders, requireContentType, requireSupported, unreadable, wholeAnswer } from './answer.ts'
import { exceedsContext, upstreamError } from './error.ts'
import { createHealth } from './health.ts'
import type { UpstreamSettings } from './settings.ts'
import { createEventReader, openStream } from './stream.ts'
import { firstByteLimit_ms, Silence, startTimeLimit } from './time-limits.ts'
import { type Allowance, allowanceOf } from './usage.ts'
import { upstreamWeights } from './weights.ts'

const probeTimeout_ms = 3000
/** Some servers close idle pool after five seconds without announcing it. */
const idleConnection_ms = 4000
const adapterTimeout_ms = 60_000
const responseMax_bytes = 64e6

/** `cacheSalt` separates the accounts in the upstream's prefix cache. */
export function createUpstream(
  settings: UpstreamSettings,
  cacheSalt: (account_id: string) => string,
  log: Logger,
  artifacts?: Pick<Artifacts, 'hold'>,
): Replica {
  const { url, kind, model, upstream_model, max_concurrent } = settings
  const name = `${model} at ${url.host}`
  const secure = url.protocol === 'https:'
  const address = {
    hostname: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port) || (secure ? 443 : 80),
    secure,
  }
  const pool = createConnectionPool(address, idleConnection_ms, settings.connect_seconds * 1000)
  const headers: Record<string, string> = settings.api_key ? { authorization: `Bearer ${settings.api_key}` } : {}
  const listeners: (() => void)[] = []
  /** When it last sent anything, to whomever. */
  let heard_at = 0
  const hear = () => {
    heard_at = performance.now()
  }

  const health = createHealth({
    name,
    log,
    onChange: () => {
      for (const listener of listeners) listener()
    },
    async probe() {
      // Every server lists its models; vLLM's /health also checks its engine process.
      const path = kind === 'vllm' ? `${url.pathname.slice(0, -'/v1'.length)}/health` : `${url.pathname}/models`
      const response = await send(pool, { method: 'GET', path, headers }, AbortSignal.timeout(probeTimeout_ms), true)
      response.resume()
      return response.status === 200
    },
    async trial() {
      const inTime = AbortSignal.timeout(settings.first_byte_seconds * 1000)
      const messages = [{ role: 'user', content: 'Say yes.' }]
      const payload = JSON.stringify({ model: upstream_model, messages, max_tokens: 1 })
      const path = `${url.pathname}/chat/completions`
      const response = await send(pool, { method: 'POST', path, headers, payload }, inTime, true)
      await readAll(response, responseMax_bytes)
      // A model that does not chat refuses, and so does not hang.
      return response.status < 500
    },
  })

  const silent = (where: string, limit_ms: number) => {
    // One that answers others meanwhile does not hang.
    if (performance.now() - heard_at >= limit_ms) health.markHung(`it sent nothing ${where} in time`)
    else log.warn({ replica: name }, `an upstream sent nothing ${where} in time`)
    return new ReplicaFailure(
      'upstream_timeout',
      `The server of this model sent nothing ${where} in time. Try again later, or ask for less at once.`,
      { lost: true },
    )
  }

  const unreachable = (error: NoResponse) => {
    health.markFailed(error.message, false)
    adapters.forgetAll()
    return new ReplicaFailure(
      'engine_unavailable',
      `The server of this model could not be reached (${error.message}). Try again in a moment.`,
      { lost: error.mayHaveStarted },
    )
  }

  async function post(
    path: string,
    payload: string,
    extraHeaders: Record<string, string>,
    signal: AbortSignal,
  ): Promise<HttpResponse> {
    health.markUsed()
    try {
      return await send(
        pool,
        { method: 'POST', path: url.pathname + path, headers: { ...headers, ...extraHeaders }, payload },
        signal,
      )
    } catch (error) {
      throw error instanceof NoResponse && !signal.aborted ? unreachable(error) : error
    }
  }

  /** The error for a response that broke while it was read. An abort's own error passes unchanged. */
  function readError(error: unknown, signal: AbortSignal): unknown {
    if (signal.aborted) return error
    if (error instanceof BodyTooLarge)
      return new ReplicaFailure(
        'upstream_failed',
        `The server of this model cannot be read: ${error.message}. Ask for less at once.`,
        { lost: true },
      )
    return error instanceof NoResponse ? unreachable(error) : error
  }

  async function readBody(response: HttpResponse, signal: AbortSignal): Promise<Buffer> {
    response.on('data', hear)
    return readAll(response, responseMax_bytes).catch((error) => {
      throw readError(error, signal)
    })
  }
  const readText = async (response: HttpResponse, signal: AbortSignal) => {
    const text = (await readBody(response, signal)).toString('utf8')
    return settings.api_key ? text.replaceAll(settings.api_key, '…') : text
  }

  async function answerOf(
    response: HttpResponse,
    request: ReplicaRequest,
    allowance: Allowance,
    signal: AbortSignal,
  ): Promise<Pick<ReplicaResponse, 'content' | 'usage'> & { reported: string | undefined }> {
    requireContentType(response, request.stream)
    if (!request.stream) {
      const { body, usage, reported } = wholeAnswer(await readBody(response, signal), request, allowance)
      return { content: { body }, usage: () => usage, reported }
    }
    response.on('data', hear)
    const reader = createEventReader(request, allowance)
    const silence_ms = settings.between_bytes_seconds * 1000
    const content = await openStream(response, reader, {
      silence_ms,
      signal,
      broken: (error) =>
        reader.hasBegun
          ? unreadable('broke in the middle of this answer')
          : unreachable(new NoResponse(error.message, true)),
      silent: () => silent('in the middle of this answer', silence_ms),
    }).catch((error) => {
      throw readError(error, signal)
    })
    return { content, usage: reader.usage, reported: reader.reported }
  }

  const adapters = createAdapters({
    root: settings.adapter_root,
    artifacts,
    async post(path, body) {
      const timeout = AbortSignal.timeout(adapterTimeout_ms)
      try {
        const response = await post(path, JSON.stringify(body), {}, timeout)
        return { status: response.status, text: await readText(response, timeout) }
      } catch (error) {
        if (!timeout.aborted || error instanceof ReplicaFailure) throw error
        throw new ReplicaFailure(
          'engine_unavailable',
          `The server of this model did not load the adapter within ${adapterTimeout_ms / 1000} s. ` +
            'Try again in a moment.',
        )
      }
    },
    onRefused: (status, text) =>
      log.error({ replica: name, status, answer: text.slice(0, 2000) }, 'an upstream refused to load an adapter'),
  })

  function errorFor(response: HttpResponse, text: string, body: Record<string, unknown>): ApiError {
    const { status, headers } = response
    const { error, retryable } = upstreamError(status, text, { body, retryAfter: headers['retry-after'] })
    if (status === 401 || status === 402 || status === 403)
      log.error({ replica: name, status }, 'an upstream rejects its API key; see api_key in docs/upstreams.md')
    else if (retryable && status < 500 && status !== 429)
      log.error({ replica: name, status, answer: text.slice(0, 2000) }, 'an upstream does not take what it is sent')
    if (status >= 500) health.markFailed(`it answered ${status}: ${text.slice(0, 500)}`, true)
    return retryable
      ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
      : error
  }

  /** Sends the request, and once more where it did not know the adapter, or has less room than the default length. */
  async function answer(request: ReplicaRequest, clientSignal: AbortSignal): Promise<ReplicaResponse> {
    const { adapter } = request.target
    requireSupported(request.body, settings.fetch_images)
    const started_at = performance.now()
    let load_ms = 0
    const servedName = adapter?.id ?? upstream_model
    for (let attempt = 0, addDefaultLength = true; ; attempt++) {
      if (adapter) {
        await abortable(adapters.ensureLoaded(adapter), clientSignal)
        load_ms = performance.now() - started_at
      }
      const payload = upstreamBody(request, servedName, {
        server: kind,
        addDefaultLength,
        cache_salt: kind === 'vllm' ? cacheSalt(request.account_id) : undefined,
      })
      const allowance = allowanceOf(request, payload, addDefaultLength)
      if (request.progress)
        request.progress.used = { prompt_tokens: allowance.prompt_tokens, completion_tokens: 0, cached_tokens: 0 }
      const limit_ms = firstByteLimit_ms(settings.first_byte_seconds, allowance, request.stream)
      const limit = startTimeLimit(limit_ms, () => heard_at)
      const signal = AbortSignal.any([clientSignal, limit.signal])
      try {
        const response = await post(
          request.path,
          payload,
          { 'x-request-id': request.request_id, ...request.span?.headers() },
          signal,
        )
        if (response.status === 200) {
          const { reported, ...content } = await answerOf(response, request, allowance, signal)
          health.markAnswered()
          return {
            headers: readHeaders(response.headers),
            weights: upstreamWeights(model, reported, response.headers),
            load_ms,
            ...content,
          }
        }
        const { status } = response
        const text = await readText(response, signal)
        health.markAnswered()
        if (attempt === 0 && status === 404 && adapter) {
          // The upstream restarted, or evicted the adapter.
          adapters.forget(adapter.id)
          continue
        }
        if (attempt === 0 && usesDefaultLength(request.body) && exceedsContext(status, text)) {
          // The context has less room than the default length: retry without one, which uses the room that there is.
          addDefaultLength = false
          continue
        }
        throw errorFor(response, text, request.body)
      } catch (error) {
        throw limit.signal.aborted && !clientSignal.aborted && limit.signal.reason instanceof Silence
          ? silent('of this answer', limit_ms)
          : error
      } finally {
        limit.clear()
      }
    }
  }

  return {
    name,
    max_concurrent,
    inFlight: 0,
    isUp: health.isUp,
    admits: health.admits,
    retryAfter_seconds: health.retryAfter_seconds,
    canServe: ({ base, adapter }: Target) =>
      // No such server takes a projector with an adapter.
      base.id === model && (!adapter || (settings.adapters && !adapter.projector)),
    status: ({ adapter }) => (!health.isUp() ? 'not_loaded' : adapter ? adapters.status(adapter.id) : 'loaded'),
    load: async ({ adapter }) => adapter && adapters.ensureLoaded(adapter),
    unload: async ({ adapter }) => adapter && adapters.unload(adapter.id),
    onCapacity: (listener) => void listeners.push(listener),

    send: answer,
  }
}
