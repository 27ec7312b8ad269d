// A server elsewhere that speaks OpenAI's protocol: vLLM, llama-server, another Tunery's engine.
import { isUtf8 } from 'node:buffer'
import { createHmac } from 'node:crypto'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { unlessAborted } from '../../../lib/abortable.ts'
import { keyOf } from '../../storage/key-file.ts'
import { createAdapters } from './adapters.ts'
import { fetchedImage, leavesLength, upstreamBody } from './body.ts'
import { createHealth } from './health.ts'
import { readAll, readFirst, send, TooLarge } from './http-client/client.ts'
import { NotAnswered } from './http-client/connection.ts'
import { createConnections } from './http-client/connection-pool.ts'
import type { Incoming } from './http-client/response.ts'
import { type Answer, type Replica, ReplicaFailure, type Target } from './replica.ts'
import type { UpstreamSettings } from './settings.ts'
import { upstreamError } from './upstream-error.ts'

const probeTimeout_ms = 3000
/** Some servers close an idle connection after five seconds without having said so. */
const idleConnection_ms = 4000
const adapterTimeout_ms = 60_000
const answerMax_bytes = 64e6

/** `salt` gives what keeps an account's prompts apart from others'. */
export function createUpstream(settings: UpstreamSettings, salt: (account_id: string) => string, log: Logger): Replica {
  const { url, kind, model, upstream_model, max_concurrent } = settings
  const name = `${model} at ${url.host}`
  const secure = url.protocol === 'https:'
  const place = {
    hostname: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port) || (secure ? 443 : 80),
    secure,
  }
  const connections = createConnections(place, idleConnection_ms)
  const headers: Record<string, string> = settings.api_key ? { authorization: `Bearer ${settings.api_key}` } : {}
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
      const response = await send(
        connections,
        { method: 'GET', path, headers },
        AbortSignal.timeout(probeTimeout_ms),
        true,
      )
      response.resume()
      return response.status === 200
    },
  })

  const gone = (error: NotAnswered) => {
    health.failed(error.message, false)
    adapters.forgetAll()
    return new ReplicaFailure(
      'engine_unavailable',
      `The server of this model could not be reached (${error.message}). Try again in a moment.`,
      {
        lost: error.taken,
      },
    )
  }

  async function post(
    path: string,
    payload: string,
    more: Record<string, string>,
    signal: AbortSignal,
  ): Promise<Incoming> {
    health.used()
    try {
      return await send(
        connections,
        { method: 'POST', path: url.pathname + path, headers: { ...headers, ...more }, payload },
        signal,
      )
    } catch (error) {
      throw error instanceof NotAnswered && !signal.aborted ? gone(error) : error
    }
  }

  /** What becomes of an answer that breaks while it is read; whoever aborted knows why. */
  function broken(error: unknown, signal: AbortSignal): unknown {
    if (signal.aborted) return error
    if (error instanceof TooLarge)
      return new ReplicaFailure(
        'engine_failed',
        `The server of this model cannot be read: ${error.message}. Ask for less at once.`,
        { lost: true },
      )
    return error instanceof NotAnswered ? gone(error) : error
  }

  async function readWhole(response: Incoming, signal: AbortSignal): Promise<Buffer> {
    return readAll(response, answerMax_bytes).catch((error) => {
      throw broken(error, signal)
    })
  }
  const readText = async (response: Incoming, signal: AbortSignal) =>
    (await readWhole(response, signal)).toString('utf8')

  const adapters = createAdapters({
    root: settings.adapter_root,
    async ask(path, body) {
      const timeout = AbortSignal.timeout(adapterTimeout_ms)
      try {
        const response = await post(path, JSON.stringify(body), {}, timeout)
        return { status: response.status, text: await readText(response, timeout) }
      } catch (error) {
        if (!timeout.aborted || error instanceof ReplicaFailure) throw error
        throw new ReplicaFailure(
          'engine_unavailable',
          `The server of this model did not load the adapter within ${adapterTimeout_ms / 1000} s. Try again in a moment.`,
        )
      }
    },
    refused: (status, text) =>
      log.error({ replica: name, status, answer: text.slice(0, 2000) }, 'an upstream refused to load an adapter'),
  })

  async function failure(status: number, text: string): Promise<ApiError> {
    const { error, elsewhere } = upstreamError(status, text)
    if (status === 401 || status === 403)
      log.error(
        { replica: name, status },
        'an upstream does not take the key it is sent; see api_key in docs/upstreams.md',
      )
    if (status >= 500) health.failed(`it answered ${status}: ${error.message}`, true)
    return elsewhere
      ? new ReplicaFailure(error.code, error.message, { ...(error.details && { details: error.details }) })
      : error
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
      if (!settings.fetch_images && fetchedImage(ask.body)) throw imagesRefused()
      if (ask.body.parse_special === false) throw parseSpecialRefused()
      const began = performance.now()
      let load_ms = 0
      const served = adapter?.id ?? upstream_model
      for (let attempt = 0, withMax = true; ; attempt++) {
        if (adapter) {
          await unlessAborted(adapters.ensure(adapter), signal)
          load_ms = performance.now() - began
        }
        const response = await post(
          ask.path,
          upstreamBody(ask, served, {
            server: kind,
            withMax,
            cache_salt: kind === 'vllm' ? salt(ask.account_id) : undefined,
          }),
          { 'x-request-id': ask.request_id },
          signal,
        )
        if (response.status === 200) {
          requireType(response, ask.stream)
          try {
            return {
              headers: response.headers,
              load_ms,
              content: ask.stream
                ? { first: await readFirst(response), rest: response }
                : { whole: renamed(await readWhole(response, signal), ask.model) },
              // What it says itself is not to be relied on.
              rename: ask.model,
              foreign: true,
              askedRunning: kind === 'vllm',
            }
          } catch (error) {
            throw broken(error, signal)
          }
        }
        const { status } = response
        const text = await readText(response, signal)
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

/**
 * Something else on the way, such as a proxy's page, answers with 200 too. Throws a ReplicaFailure where this is not
 * what was asked for.
 */
function requireType(response: Incoming, stream: boolean): void {
  const type = response.headers['content-type'] ?? 'no type'
  if ((stream ? /^text\/event-stream\b/i : /^application\/json\b/i).test(type)) return
  response.destroy()
  throw new ReplicaFailure(
    'engine_failed',
    `The server of this model answered with ${type.slice(0, 100)} in place of ${stream ? 'an event stream' : 'JSON'}.`,
  )
}

const imagesRefused = () =>
  new ApiError(
    'invalid_request',
    "'messages': the server of this model does not fetch images. Send them as data: URLs.",
    { param: 'messages' },
  )

const parseSpecialRefused = () =>
  new ApiError(
    'parameter_not_supported',
    "'parse_special': the server of this model always reads control tokens in prompts. Leave it out.",
    {
      param: 'parse_special',
    },
  )

/** A whole answer that says the client's name of the model. */
function renamed(bytes: Buffer, name: string): Buffer {
  let answer: unknown
  try {
    answer = JSON.parse(bytes.toString('utf8'))
  } catch {}
  if (typeof answer !== 'object' || answer === null || Array.isArray(answer))
    throw new ReplicaFailure(
      'engine_failed',
      'The server of this model answered with something that is not a JSON object.',
    )
  if ((answer as { model?: unknown }).model === name && isUtf8(bytes)) return bytes
  return Buffer.from(JSON.stringify({ ...answer, model: name }))
}

// What keeps the accounts' prompts apart in the prefix cache of a server elsewhere: how long an answer takes would tell
// one account what another has asked.

/**
 * Gives each account a salt that others cannot guess. The secret behind it is made once for the data folder, where it
 * is first needed.
 */
export function createSalt(dataDir: string): (account_id: string) => string {
  let secret: Buffer | undefined
  return (account_id) => {
    secret ??= keyOf(path.join(dataDir, 'salt.key'))
    return createHmac('sha256', secret).update(account_id).digest('hex')
  }
}
