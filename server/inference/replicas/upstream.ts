// An upstream as a replica: an OpenAI-compatible server such as vLLM, llama-server or another Tunery engine.
import { createHmac } from 'node:crypto'
import path from 'node:path'
import type { Logger } from 'pino'
import type { ApiError } from '../../../contract/errors.ts'
import { abortable } from '../../../lib/abortable.ts'
import { readOrCreateKey } from '../../storage/key-file.ts'
import type { Artifacts } from '../../storage/objects/index.ts'
import { createAdapters } from './adapters.ts'
import { upstreamBody, usesDefaultLength } from './body.ts'
import { createHealth } from './health.ts'
import { BodyTooLarge, readAll, send } from './http-client/client.ts'
import { createConnectionPool, NoResponse } from './http-client/connection-pool.ts'
import type { HttpResponse } from './http-client/response.ts'
import { type Replica, ReplicaFailure, type ReplicaResponse, type Target } from './replica.ts'
import type { UpstreamSettings } from './settings.ts'
import { firstOfStream, requireContentType, requireSupported, withModelName } from './upstream-answer.ts'
import { exceedsContext, upstreamError } from './upstream-error.ts'
import { upstreamWeights } from './upstream-weights.ts'

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
  const pool = createConnectionPool(address, idleConnection_ms)
  const headers: Record<string, string> = settings.api_key ? { authorization: `Bearer ${settings.api_key}` } : {}
  const listeners: (() => void)[] = []

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
  })

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
        'engine_failed',
        `The server of this model cannot be read: ${error.message}. Ask for less at once.`,
        { lost: true },
      )
    return error instanceof NoResponse ? unreachable(error) : error
  }

  async function readBody(response: HttpResponse, signal: AbortSignal): Promise<Buffer> {
    return readAll(response, responseMax_bytes).catch((error) => {
      throw readError(error, signal)
    })
  }
  const readText = async (response: HttpResponse, signal: AbortSignal) =>
    (await readBody(response, signal)).toString('utf8')

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

  async function errorFor(status: number, text: string): Promise<ApiError> {
    const { error, retryable } = upstreamError(status, text)
    if (status === 401 || status === 403)
      log.error({ replica: name, status }, 'an upstream rejects its API key; see api_key in docs/upstreams.md')
    if (status >= 500) health.markFailed(`it answered ${status}: ${error.message}`, true)
    return retryable
      ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
      : error
  }

  return {
    name,
    max_concurrent,
    inFlight: 0,
    isUp: health.isUp,
    canServe: ({ base, adapter }: Target) =>
      // No such server takes a projector with an adapter.
      base.id === model && (!adapter || (settings.adapters && !adapter.projector)),
    status: ({ adapter }) => (!health.isUp() ? 'not_loaded' : adapter ? adapters.status(adapter.id) : 'loaded'),
    load: async ({ adapter }) => adapter && adapters.ensureLoaded(adapter),
    unload: async ({ adapter }) => adapter && adapters.unload(adapter.id),
    onCapacity: (listener) => void listeners.push(listener),

    async send(request, signal): Promise<ReplicaResponse> {
      const { adapter } = request.target
      requireSupported(request.body, settings.fetch_images)
      const started_at = performance.now()
      let load_ms = 0
      const servedName = adapter?.id ?? upstream_model
      for (let attempt = 0, addDefaultLength = true; ; attempt++) {
        if (adapter) {
          await abortable(adapters.ensureLoaded(adapter), signal)
          load_ms = performance.now() - started_at
        }
        const response = await post(
          request.path,
          upstreamBody(request, servedName, {
            server: kind,
            addDefaultLength,
            cache_salt: kind === 'vllm' ? cacheSalt(request.account_id) : undefined,
          }),
          { 'x-request-id': request.request_id, ...request.span?.headers() },
          signal,
        )
        if (response.status === 200) {
          requireContentType(response, request.stream)
          try {
            const answer = request.stream
              ? await firstOfStream(response)
              : withModelName(await readBody(response, signal), request.model)
            return {
              headers: response.headers,
              weights: upstreamWeights(model, answer.reported, response.headers),
              load_ms,
              content: answer.content,
              // The upstream's own model name may differ.
              renameModelTo: request.model,
              fromUpstream: true,
              addedChunkUsage: kind === 'vllm',
            }
          } catch (error) {
            throw readError(error, signal)
          }
        }
        const { status } = response
        const text = await readText(response, signal)
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
        throw await errorFor(status, text)
      }
    },
  }
}

/**
 * Derives one secret salt per account. It separates the accounts in an upstream's prefix cache, where response times
 * would otherwise reveal other accounts' prompts. The key is created in the data folder on first use.
 */
export function createCacheSalt(dataDir: string): (account_id: string) => string {
  let secret: Buffer | undefined
  return (account_id) => {
    secret ??= readOrCreateKey(path.join(dataDir, 'salt.key'))
    return createHmac('sha256', secret).update(account_id).digest('hex')
  }
}
