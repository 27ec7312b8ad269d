// The events of an upstream's stream as those of our own engine: read as JSON, counted, cut where the answer is longer
// than was asked for, and ended by one usage and one [DONE]. Whatever else a server sends does not reach a client.
import { type ApiError, errorBody } from '../../../../contract/errors.ts'
import { readFirstChunk } from '../http-client/client.ts'
import { HttpResponse } from '../http-client/response.ts'
import type { ReplicaRequest } from '../requests/replica.ts'
import type { TokenCounts } from '../requests/usage-scanner.ts'
import { answerHead, readHeaders, unreadable } from './answer.ts'
import {
  type ChoiceCounter,
  createCallPlaces,
  createChoiceCounter,
  cutMessage,
  type Fields,
  finishReason,
  firstBytes,
  isFields,
  logprobsOf,
  messageBytes,
  type PlaceOfCall,
  textOrNull,
  toolCalls,
} from './choices.ts'
import { streamError } from './error.ts'
import { type Allowance, type ReportedCounts, reportedCounts, usageBody, usedTokens } from './usage.ts'

/** Characters of one event. */
const eventMax = 4 * 1024 * 1024
const streamMax_bytes = 64e6
/** Events without text that an answer may have, beside a few for each token. */
const emptyEventsMax = 10_000
/** What follows the end is read up to here, so that the connection can be used again. */
const restMax_bytes = 64 * 1024
const rest_ms = 1000
/** How long the end of a stream may take once all its choices have ended. */
const ending_ms = 5000
/** Events without text keep an answer alive for so many times as long as silence does. */
const textless_max = 4

export interface EventReader {
  /** Takes the next bytes, and returns the events for the client. */
  feed(chunk: Buffer): string
  /** The last events of a stream whose body has ended or broken off; '' if they were returned already. */
  end(error: () => ApiError): string
  usage(): TokenCounts
  /** The model that the server says has answered. */
  readonly reported: string | undefined
  /** An event for the client has come. */
  readonly hasBegun: boolean
  /** Bytes of text that have come, cut ones too. */
  readonly text_bytes: number
  /** Each choice has its end: what is still to come is the usage. */
  readonly isComplete: boolean
  /** The last event has passed; `error`: it was one. */
  readonly hasEnded: boolean
  readonly error: ApiError | undefined
}

interface Choice {
  counter: ChoiceCounter
  placeOfCall: PlaceOfCall
  hasEnded: boolean
}

/** `request`: only what is named here lives as long as the stream. */
export function createEventReader(
  { kind, model, body }: Pick<ReplicaRequest, 'kind' | 'model' | 'body'>,
  allowance: Allowance,
): EventReader {
  const options = body.stream_options as { continuous_usage_stats?: unknown } | null | undefined
  const keepsChunkUsage = options?.continuous_usage_stats === true
  return readEvents(kind, model, keepsChunkUsage, allowance)
}

function readEvents(
  kind: ReplicaRequest['kind'],
  model: string,
  keepsChunkUsage: boolean,
  allowance: Allowance,
): EventReader {
  const decoder = new TextDecoder()
  const head = answerHead(kind, true)
  const choices = new Map<number, Choice>()
  const events_max = allowance.choices * allowance.choice_tokens_max * 4 + emptyEventsMax
  let partial = ''
  let data: string[] = []
  let data_length = 0
  let bytes = 0
  let events = 0
  let told: ReportedCounts = {}

  const reader = {
    reported: undefined as string | undefined,
    hasBegun: false,
    text_bytes: 0,
    isComplete: false,
    hasEnded: false,
    error: undefined as ApiError | undefined,
    feed,
    end(error: () => ApiError) {
      if (reader.hasEnded) return ''
      return reader.isComplete ? finish() : fail(error())
    },
    usage() {
      const counted = [...choices.values()].reduce((sum, { counter }) => sum + counter.tokens(), 0)
      const isCut = [...choices.values()].some(({ counter }) => counter.isCut)
      return usedTokens(isCut ? { ...told, completion_tokens: undefined } : told, allowance, counted)
    },
  }

  function fail(error: ApiError): string {
    reader.hasEnded = true
    reader.error = error
    return `data: ${JSON.stringify(errorBody(error, true))}\n\n`
  }

  function finish(): string {
    reader.hasEnded = true
    const usage = { ...head, model, choices: [], usage: usageBody(reader.usage()) }
    return `data: ${JSON.stringify(usage)}\n\ndata: [DONE]\n\n`
  }

  function feed(chunk: Buffer): string {
    if (reader.hasEnded) return ''
    bytes += chunk.length
    const lines = (partial + decoder.decode(chunk, { stream: true })).replaceAll('\r', '').split('\n')
    partial = lines.pop()!
    let out = ''
    let isAlive = false
    for (const line of lines) {
      if (reader.hasEnded) return out
      if (line.startsWith('data:')) {
        data.push(line.slice('data:'.length))
        data_length += line.length
      } else if (line.startsWith(':')) isAlive = true
      else if (line === '' && data.length > 0) {
        const text = data.join('\n').trim()
        data = []
        data_length = 0
        out += readEvent(text)
      }
    }
    if (reader.hasEnded) return out
    if (partial.length + data_length > eventMax || bytes > streamMax_bytes * Math.max(1, allowance.choices))
      return out + fail(unreadable('sent more than an answer can be'))
    // A comment keeps the connection of the client alive too.
    return out === '' && isAlive && reader.hasBegun ? ': keepalive\n\n' : out
  }

  function readEvent(text: string): string {
    if (text === '') return ''
    if (text === '[DONE]') return finish()
    if (++events > events_max) return fail(unreadable('did not end its answer'))
    try {
      const event: unknown = JSON.parse(text)
      if (!isFields(event)) return fail(unreadable('sent an event that is not a JSON object'))
      if (event.error != null || event.object === 'error') return fail(streamError(text))
      return readChunk(event)
    } catch {
      return fail(unreadable('sent an event that is not JSON'))
    }
  }

  function readChunk({ choices: sent, usage, model: reported, ...chunk }: Fields): string {
    if (typeof reported === 'string') reader.reported ??= reported
    if (usage != null) told = { ...told, ...reportedCounts(usage, allowance) }
    if (sent != null && !Array.isArray(sent)) return fail(unreadable('sent an event without choices'))
    const cleaned = ((sent ?? []) as unknown[]).flatMap((choice, position) => readChoice(choice, position) ?? [])
    if (cleaned.length === 0) return ''
    reader.hasBegun = true
    const all = [...choices.values()]
    reader.isComplete = all.length === allowance.choices && all.every(({ hasEnded }) => hasEnded)
    const event = {
      ...chunk,
      ...head,
      model,
      choices: cleaned,
      ...(keepsChunkUsage && { usage: usageBody(reader.usage()) }),
    }
    const out = `data: ${JSON.stringify(event)}\n\n`
    // A server that does not keep to the length is not waited for.
    return reader.isComplete && all.some(({ counter }) => counter.isCut) ? out + finish() : out
  }

  /** The choice in an event, for the client; undefined for one that nobody asked for, or that has ended. */
  function readChoice(received: unknown, position: number): Fields | undefined {
    if (!isFields(received)) return undefined
    const { index: sent, delta, text, finish_reason, logprobs, ...rest } = received
    const index = Number.isSafeInteger(sent) ? (sent as number) : position
    if (index < 0 || index >= allowance.choices) return undefined
    const choice = choices.get(index) ?? {
      counter: createChoiceCounter(allowance),
      placeOfCall: createCallPlaces(),
      hasEnded: false,
    }
    choices.set(index, choice)
    if (choice.hasEnded) return undefined
    const content = kind === 'chat' ? deltaOf(delta, choice.placeOfCall) : { text: textOrNull(text) ?? '' }
    const bytes = kind === 'chat' ? messageBytes(content) : Buffer.byteLength(content.text as string)
    reader.text_bytes += bytes
    const fits = bytes === 0 ? 0 : choice.counter.add(bytes, !isStartOfCall(content))
    const isCut = fits < bytes
    const finish = isCut ? 'length' : finishReason(finish_reason)
    if (finish !== null) choice.hasEnded = true
    const taken = !isCut
      ? content
      : kind === 'chat'
        ? cutMessage(content, fits)
        : { text: firstBytes(content.text as string, fits) }
    return {
      ...rest,
      index,
      ...(kind === 'chat' ? { delta: isCut && fits === 0 ? {} : taken } : taken),
      logprobs: isCut ? null : logprobsOf(logprobs),
      finish_reason: finish,
    }
  }

  return reader
}

function deltaOf(delta: unknown, placeOfCall: PlaceOfCall): Fields {
  const { role, content, reasoning_content, reasoning, tool_calls, ...rest } = isFields(delta) ? delta : {}
  const thoughts = textOrNull(reasoning_content) ?? textOrNull(reasoning)
  const calls = toolCalls(tool_calls, placeOfCall)
  return {
    ...rest,
    ...(typeof role === 'string' && { role: 'assistant' }),
    ...(typeof content === 'string' && { content }),
    ...(thoughts !== null && { reasoning_content: thoughts }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}

/** Servers send the name of a call beside or before the first token of its arguments. */
const isStartOfCall = ({ tool_calls }: Fields) =>
  ((tool_calls ?? []) as { function: Fields }[]).some((call) => call.function.name !== undefined)

/** What a stream has to tell its upstream. */
interface StreamWatch {
  /** How long the server may be silent in the middle of an answer. */
  silence_ms: number
  signal: AbortSignal
  /** The error for a connection that broke, or a server that was silent for too long. */
  broken(error: Error): ApiError
  silent(): ApiError
}

/**
 * Resolves with the first events and the stream of the rest, once the first event has come. Rejects with the error if
 * that is the first.
 */
export async function openStream(
  source: HttpResponse,
  reader: EventReader,
  watch: StreamWatch,
): Promise<{ firstChunk: Buffer | undefined; stream: HttpResponse }> {
  const stream = cleanStream(source, reader, watch)
  const firstChunk = await readFirstChunk(stream)
  if (reader.error && !reader.hasBegun) {
    stream.destroy()
    throw reader.error
  }
  return { firstChunk, stream }
}

function cleanStream(source: HttpResponse, reader: EventReader, { silence_ms, signal, broken, silent }: StreamWatch) {
  let isPaused = false
  let heard_at = performance.now()
  let text_at = heard_at
  let timer: NodeJS.Timeout | undefined
  const clean = new HttpResponse(source.status, readHeaders(source.headers), {
    pause() {
      isPaused = true
      source.pause()
    },
    resume() {
      isPaused = false
      heard_at = text_at = performance.now()
      source.resume()
    },
    destroy() {
      clearTimeout(timer)
      source.destroy()
    },
  })

  /** Begins with the first event: until then the limit of the whole request holds. */
  function listen(ms: number): void {
    timer = setTimeout(() => {
      const now = performance.now()
      const left = reader.isComplete
        ? heard_at + ending_ms - now
        : Math.min(heard_at + silence_ms, text_at + textless_max * silence_ms) - now
      if (isPaused) listen(silence_ms)
      else if (left > 0) listen(left)
      else {
        end(silent)
        source.destroy()
      }
    }, ms).unref()
  }

  function end(error: () => ApiError): void {
    clearTimeout(timer)
    const last = reader.end(error)
    if (last !== '') clean.push(Buffer.from(last))
    clean.complete()
  }

  /** Reads a little of what follows the end. */
  function drain(): void {
    clearTimeout(timer)
    let rest = 0
    const late = setTimeout(() => source.destroy(), rest_ms).unref()
    source.on('close', () => clearTimeout(late))
    source.on('data', (chunk) => {
      rest += chunk.length
      if (rest > restMax_bytes) source.destroy()
    })
    if (reader.error) source.destroy()
    else source.resume()
  }

  source.on('data', (chunk) => {
    if (reader.hasEnded) return
    const { hasBegun, isComplete, text_bytes } = reader
    const out = reader.feed(chunk)
    if (out !== '' && !out.startsWith(':')) heard_at = performance.now()
    if (!hasBegun || reader.text_bytes > text_bytes) text_at = performance.now()
    if (out !== '') clean.push(Buffer.from(out))
    if (reader.hasEnded) {
      clean.complete()
      drain()
    } else if (reader.isComplete && !isComplete) {
      clearTimeout(timer)
      listen(ending_ms)
    } else if (reader.hasBegun && !hasBegun) listen(silence_ms)
  })
  source.on('end', () => end(() => broken(new Error('it ended in the middle of the answer'))))
  source.on('error', (error) => {
    if (reader.hasEnded) return
    // The abort's own error: the relay knows what to say.
    if (signal.aborted) {
      clearTimeout(timer)
      clean.fail(error)
    } else end(() => broken(error))
  })
  source.on('close', () => clearTimeout(timer))
  return clean
}
