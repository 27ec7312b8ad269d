// An upstream as a replica: an OpenAI-compatible server such as vLLM, llama-server or another Tunery engine.
import type { Logger } from 'pino'
import type { ApiError } from '../../../../contract/errors.ts'
import { abortable } from '../../../../lib/abortable.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import { BodyTooLarge, readAll, send } from '../http-client/client.ts'
import { type ConnectionPool, createConnectionPool, NoResponse } from '../http-client/connection-pool.ts'
import type { HttpResponse } from '../http-client/response.ts'
import { upstreamBody, usesDefaultLength } from '../requests/body.ts'
import {
  type ModelStatus,
  type Replica,
  ReplicaFailure,
  type ReplicaRequest,
  type ReplicaResponse,
  type Target,
} from '../requests/replica.ts'
import { type Adapters, createAdapters } from './adapters.ts'
import { readHeaders, requireContentType, requireSupported, unreadable, wholeAnswer } from './answer.ts'
import { exceedsContext, upstreamError } from './error.ts'
import { createHealth, type Health } from './health.ts'
import type { UpstreamSettings } from './settings.ts'
import { EventReader, openStream } from './stream.ts'
import { firstByteLimit_ms, Silence, startTimeLimit } from './time-limits.ts'
import { type Allowance, allowanceOf } from './usage.ts'
import { upstreamWeights } from './weights.ts'

const probeTimeout_ms = 3000
/** Some servers close idle pool after five seconds without announcing it. */
const idleConnection_ms = 4000
const adapterTimeout_ms = 60_000
const responseMax_bytes = 64e6

export class Upstream implements Replica {
  private readonly settings: UpstreamSettings
  private readonly cacheSalt: (account_id: string) => string
  private readonly log: Logger
  readonly name: string
  readonly max_concurrent: number
  inFlight = 0
  readonly loadsOnDemand = true
  private readonly pool: ConnectionPool
  private readonly headers: Record<string, string>
  private readonly listeners: (() => void)[] = []
  /** When it last sent anything, to whomever. */
  private heard_at = 0
  private readonly health: Health
  private readonly adapters: Adapters

  /** `cacheSalt` separates the accounts in the upstream's prefix cache. */
  constructor(
    settings: UpstreamSettings,
    cacheSalt: (account_id: string) => string,
    log: Logger,
    artifacts?: Pick<Artifacts, 'hold'>,
  ) {
    this.settings = settings
    this.cacheSalt = cacheSalt
    this.log = log
    const { url, model, max_concurrent, api_key, connect_seconds, adapter_root } = settings
    this.name = `${model} at ${url.host}`
    this.max_concurrent = max_concurrent
    const secure = url.protocol === 'https:'
    const address = {
      hostname: url.hostname.replace(/^\[|\]$/g, ''),
      port: Number(url.port) || (secure ? 443 : 80),
      secure,
    }
    this.pool = createConnectionPool(address, idleConnection_ms, connect_seconds * 1000)
    this.headers = api_key ? { authorization: `Bearer ${api_key}` } : {}
    this.health = createHealth({
      name: this.name,
      log,
      onChange: () => {
        for (const listener of this.listeners) listener()
      },
      probe: () => this.probe(),
      trial: () => this.trial(),
    })
    this.adapters = createAdapters({
      root: adapter_root,
      artifacts,
      post: (path, body) => this.postAdapter(path, body),
      onRefused: (status, text) =>
        log.error(
          { replica: this.name, status, answer: text.slice(0, 2000) },
          'an upstream refused to load an adapter',
        ),
    })
  }

  isUp(): boolean {
    return this.health.isUp()
  }

  admits(): boolean {
    return this.health.admits()
  }

  retryAfter_seconds(): number {
    return this.health.retryAfter_seconds()
  }

  canServe({ base, adapter }: Target): boolean {
    const { model, adapters } = this.settings
    // No such server takes a projector with an adapter.
    return base.id === model && (!adapter || (adapters && !adapter.projector))
  }

  status({ adapter }: Target): ModelStatus {
    return !this.isUp() ? 'not_loaded' : adapter ? this.adapters.status(adapter.id) : 'loaded'
  }

  async load({ adapter }: Target): Promise<void> {
    if (adapter) await this.adapters.ensureLoaded(adapter)
  }

  async unload({ adapter }: Target): Promise<void> {
    if (adapter) await this.adapters.unload(adapter.id)
  }

  onCapacity(listener: () => void): void {
    this.listeners.push(listener)
  }

  /** Sends the request, and once more where it did not know the adapter, or has less room than the default length. */
  async send(request: ReplicaRequest, clientSignal: AbortSignal): Promise<ReplicaResponse> {
    const { kind, model, upstream_model } = this.settings
    const { adapter } = request.target
    requireSupported(request.body, this.settings.fetch_images)
    const started_at = performance.now()
    let load_ms = 0
    const servedName = adapter?.id ?? upstream_model
    for (let attempt = 0, addDefaultLength = true; ; attempt++) {
      if (adapter) {
        await abortable(this.adapters.ensureLoaded(adapter), clientSignal)
        load_ms = performance.now() - started_at
      }
      const payload = upstreamBody(request, servedName, {
        server: kind,
        addDefaultLength,
        cache_salt: kind === 'vllm' ? this.cacheSalt(request.account_id) : undefined,
      })
      const allowance = allowanceOf(request, payload, addDefaultLength)
      if (request.progress)
        request.progress.used = { prompt_tokens: allowance.prompt_tokens, completion_tokens: 0, cached_tokens: 0 }
      const limit_ms = firstByteLimit_ms(this.settings.first_byte_seconds, allowance, request.stream)
      const limit = startTimeLimit(limit_ms, () => this.heard_at)
      const signal = AbortSignal.any([clientSignal, limit.signal])
      try {
        const response = await this.post(
          request.path,
          payload,
          { 'x-request-id': request.request_id, ...request.span?.headers() },
          signal,
        )
        if (response.status === 200) {
          const { reported, ...content } = await this.answerOf(response, request, allowance, signal)
          this.health.markAnswered()
          return {
            headers: readHeaders(response.headers),
            weights: upstreamWeights(model, reported, response.headers),
            load_ms,
            ...content,
          }
        }
        const { status } = response
        const text = await this.readText(response, signal)
        this.health.markAnswered()
        if (attempt === 0 && status === 404 && adapter) {
          // The upstream restarted, or evicted the adapter.
          this.adapters.forget(adapter.id)
          continue
        }
        if (attempt === 0 && usesDefaultLength(request.body) && exceedsContext(status, text)) {
          // The context has less room than the default length: retry without one, which uses the room that there is.
          addDefaultLength = false
          continue
        }
        throw this.errorFor(response, text, request.body)
      } catch (error) {
        throw limit.signal.aborted && !clientSignal.aborted && limit.signal.reason instanceof Silence
          ? this.silent('of this answer', limit_ms)
          : error
      } finally {
        limit.clear()
      }
    }
  }

  private async probe(): Promise<boolean> {
    const { url, kind } = this.settings
    // Every server lists its models; vLLM's /health also checks its engine process.
    const path = kind === 'vllm' ? `${url.pathname.slice(0, -'/v1'.length)}/health` : `${url.pathname}/models`
    const inTime = AbortSignal.timeout(probeTimeout_ms)
    const response = await send(this.pool, { method: 'GET', path, headers: this.headers }, inTime, true)
    response.resume()
    return response.status === 200
  }

  private async trial(): Promise<boolean> {
    const { url, upstream_model, first_byte_seconds } = this.settings
    const inTime = AbortSignal.timeout(first_byte_seconds * 1000)
    const messages = [{ role: 'user', content: 'Say yes.' }]
    const payload = JSON.stringify({ model: upstream_model, messages, max_tokens: 1 })
    const path = `${url.pathname}/chat/completions`
    const response = await send(this.pool, { method: 'POST', path, headers: this.headers, payload }, inTime, true)
    await readAll(response, responseMax_bytes)
    // A model that does not chat refuses, and so does not hang.
    return response.status < 500
  }

  private async postAdapter(path: string, body: object): Promise<{ status: number; text: string }> {
    const timeout = AbortSignal.timeout(adapterTimeout_ms)
    try {
      const response = await this.post(path, JSON.stringify(body), {}, timeout)
      return { status: response.status, text: await this.readText(response, timeout) }
    } catch (error) {
      if (!timeout.aborted || error instanceof ReplicaFailure) throw error
      throw new ReplicaFailure(
        'engine_unavailable',
        `The server of this model did not load the adapter within ${adapterTimeout_ms / 1000} s. ` +
          'Try again in a moment.',
      )
    }
  }

  private hear(): void {
    this.heard_at = performance.now()
  }

  private silent(where: string, limit_ms: number): ReplicaFailure {
    // One that answers others meanwhile does not hang.
    if (performance.now() - this.heard_at >= limit_ms) this.health.markHung(`it sent nothing ${where} in time`)
    else this.log.warn({ replica: this.name }, `an upstream sent nothing ${where} in time`)
    return new ReplicaFailure(
      'upstream_timeout',
      `The server of this model sent nothing ${where} in time. Try again later, or ask for less at once.`,
      { lost: true },
    )
  }

  private unreachable(error: NoResponse): ReplicaFailure {
    this.health.markFailed(error.message, false)
    this.adapters.forgetAll()
    return new ReplicaFailure(
      'engine_unavailable',
      `The server of this model could not be reached (${error.message}). Try again in a moment.`,
      { lost: error.mayHaveStarted },
    )
  }

  private async post(
    path: string,
    payload: string,
    extraHeaders: Record<string, string>,
    signal: AbortSignal,
  ): Promise<HttpResponse> {
    const { url } = this.settings
    this.health.markUsed()
    try {
      return await send(
        this.pool,
        { method: 'POST', path: url.pathname + path, headers: { ...this.headers, ...extraHeaders }, payload },
        signal,
      )
    } catch (error) {
      throw error instanceof NoResponse && !signal.aborted ? this.unreachable(error) : error
    }
  }

  /** The error for a response that broke while it was read. An abort's own error passes unchanged. */
  private readError(error: unknown, signal: AbortSignal): unknown {
    if (signal.aborted) return error
    if (error instanceof BodyTooLarge)
      return new ReplicaFailure(
        'upstream_failed',
        `The server of this model cannot be read: ${error.message}. Ask for less at once.`,
        { lost: true },
      )
    return error instanceof NoResponse ? this.unreachable(error) : error
  }

  private async readBody(response: HttpResponse, signal: AbortSignal): Promise<Buffer> {
    response.on('data', () => this.hear())
    return readAll(response, responseMax_bytes).catch((error) => {
      throw this.readError(error, signal)
    })
  }

  private async readText(response: HttpResponse, signal: AbortSignal): Promise<string> {
    const text = (await this.readBody(response, signal)).toString('utf8')
    return this.settings.api_key ? text.replaceAll(this.settings.api_key, '…') : text
  }

  private async answerOf(
    response: HttpResponse,
    request: ReplicaRequest,
    allowance: Allowance,
    signal: AbortSignal,
  ): Promise<Pick<ReplicaResponse, 'content' | 'usage'> & { reported: string | undefined }> {
    requireContentType(response, request.stream)
    if (!request.stream) {
      const { body, usage, reported } = wholeAnswer(await this.readBody(response, signal), request, allowance)
      return { content: { body }, usage: () => usage, reported }
    }
    response.on('data', () => this.hear())
    const reader = new EventReader(request, allowance)
    const silence_ms = this.settings.between_bytes_seconds * 1000
    const content = await openStream(response, reader, {
      silence_ms,
      signal,
      broken: (error) =>
        reader.hasBegun
          ? unreadable('broke in the middle of this answer')
          : this.unreachable(new NoResponse(error.message, true)),
      silent: () => this.silent('in the middle of this answer', silence_ms),
    }).catch((error) => {
      throw this.readError(error, signal)
    })
    return { content, usage: () => reader.usage(), reported: reader.reported }
  }

  private errorFor(response: HttpResponse, text: string, body: Record<string, unknown>): ApiError {
    const { status, headers } = response
    const { error, retryable } = upstreamError(status, text, { body, retryAfter: headers['retry-after'] })
    if (status === 401 || status === 402 || status === 403)
      this.log.error(
        { replica: this.name, status },
        'an upstream rejects its API key; see api_key in docs/upstreams.md',
      )
    else if (retryable && status < 500 && status !== 429)
      this.log.error(
        { replica: this.name, status, answer: text.slice(0, 2000) },
        'an upstream does not take what it is sent',
      )
    if (status >= 500) this.health.markFailed(`it answered ${status}: ${text.slice(0, 500)}`, true)
    return retryable
      ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
      : error
  }
}
