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

interface Choice {
  counter: ChoiceCounter
  placeOfCall: PlaceOfCall
  hasEnded: boolean
}

/** Reads one stream. */
export class EventReader {
  /** The model that the server says has answered. */
  reported: string | undefined
  /** An event for the client has come. */
  hasBegun = false
  /** Bytes of text that have come, cut ones too. */
  text_bytes = 0
  /** Each choice has its end: what is still to come is the usage. */
  isComplete = false
  /** The last event has passed; `error`: it was one. */
  hasEnded = false
  error: ApiError | undefined
  private readonly kind: ReplicaRequest['kind']
  private readonly model: string
  private readonly keepsChunkUsage: boolean
  private readonly allowance: Allowance
  private readonly decoder = new TextDecoder()
  private readonly head: ReturnType<typeof answerHead>
  private readonly choices = new Map<number, Choice>()
  private readonly events_max: number
  private partial = ''
  private data: string[] = []
  private data_length = 0
  private bytes = 0
  private events = 0
  private told: ReportedCounts = {}

  /** Only what is named here of the request lives as long as the stream. */
  constructor({ kind, model, body }: Pick<ReplicaRequest, 'kind' | 'model' | 'body'>, allowance: Allowance) {
    const options = body.stream_options as { continuous_usage_stats?: unknown } | null | undefined
    this.kind = kind
    this.model = model
    this.keepsChunkUsage = options?.continuous_usage_stats === true
    this.allowance = allowance
    this.head = answerHead(kind, true)
    this.events_max = allowance.choices * allowance.choice_tokens_max * 4 + emptyEventsMax
  }

  /** Takes the next bytes, and returns the events for the client. */
  feed(chunk: Buffer): string {
    if (this.hasEnded) return ''
    this.bytes += chunk.length
    const lines = (this.partial + this.decoder.decode(chunk, { stream: true })).replaceAll('\r', '').split('\n')
    this.partial = lines.pop()!
    let out = ''
    let isAlive = false
    for (const line of lines) {
      if (this.hasEnded) return out
      if (line.startsWith('data:')) {
        this.data.push(line.slice('data:'.length))
        this.data_length += line.length
      } else if (line.startsWith(':')) isAlive = true
      else if (line === '' && this.data.length > 0) {
        const text = this.data.join('\n').trim()
        this.data = []
        this.data_length = 0
        out += this.readEvent(text)
      }
    }
    if (this.hasEnded) return out
    if (
      this.partial.length + this.data_length > eventMax ||
      this.bytes > streamMax_bytes * Math.max(1, this.allowance.choices)
    )
      return out + this.fail(unreadable('sent more than an answer can be'))
    // A comment keeps the connection of the client alive too.
    return out === '' && isAlive && this.hasBegun ? ': keepalive\n\n' : out
  }

  /** The last events of a stream whose body has ended or broken off; '' if they were returned already. */
  end(error: () => ApiError): string {
    if (this.hasEnded) return ''
    return this.isComplete ? this.finish() : this.fail(error())
  }

  usage(): TokenCounts {
    const counted = [...this.choices.values()].reduce((sum, { counter }) => sum + counter.tokens(), 0)
    const isCut = [...this.choices.values()].some(({ counter }) => counter.isCut)
    return usedTokens(isCut ? { ...this.told, completion_tokens: undefined } : this.told, this.allowance, counted)
  }

  private fail(error: ApiError): string {
    this.hasEnded = true
    this.error = error
    return `data: ${JSON.stringify(errorBody(error, true))}\n\n`
  }

  private finish(): string {
    this.hasEnded = true
    const usage = { ...this.head, model: this.model, choices: [], usage: usageBody(this.usage()) }
    return `data: ${JSON.stringify(usage)}\n\ndata: [DONE]\n\n`
  }

  private readEvent(text: string): string {
    if (text === '') return ''
    if (text === '[DONE]') return this.finish()
    if (++this.events > this.events_max) return this.fail(unreadable('did not end its answer'))
    try {
      const event: unknown = JSON.parse(text)
      if (!isFields(event)) return this.fail(unreadable('sent an event that is not a JSON object'))
      if (event.error != null || event.object === 'error') return this.fail(streamError(text))
      return this.readChunk(event)
    } catch {
      return this.fail(unreadable('sent an event that is not JSON'))
    }
  }

  private readChunk({ choices: sent, usage, model: reported, ...chunk }: Fields): string {
    if (typeof reported === 'string') this.reported ??= reported
    if (usage != null) this.told = { ...this.told, ...reportedCounts(usage, this.allowance) }
    if (sent != null && !Array.isArray(sent)) return this.fail(unreadable('sent an event without choices'))
    const cleaned = ((sent ?? []) as unknown[]).flatMap((choice, position) => this.readChoice(choice, position) ?? [])
    if (cleaned.length === 0) return ''
    this.hasBegun = true
    const all = [...this.choices.values()]
    this.isComplete = all.length === this.allowance.choices && all.every(({ hasEnded }) => hasEnded)
    const event = {
      ...chunk,
      ...this.head,
      model: this.model,
      choices: cleaned,
      ...(this.keepsChunkUsage && { usage: usageBody(this.usage()) }),
    }
    const out = `data: ${JSON.stringify(event)}\n\n`
    // A server that does not keep to the length is not waited for.
    return this.isComplete && all.some(({ counter }) => counter.isCut) ? out + this.finish() : out
  }

  /** The choice in an event, for the client; undefined for one that nobody asked for, or that has ended. */
  private readChoice(received: unknown, position: number): Fields | undefined {
    if (!isFields(received)) return undefined
    const { index: sent, delta, text, finish_reason, logprobs, ...rest } = received
    const index = Number.isSafeInteger(sent) ? (sent as number) : position
    if (index < 0 || index >= this.allowance.choices) return undefined
    const choice = this.choices.get(index) ?? {
      counter: createChoiceCounter(this.allowance),
      placeOfCall: createCallPlaces(),
      hasEnded: false,
    }
    this.choices.set(index, choice)
    if (choice.hasEnded) return undefined
    const content = this.kind === 'chat' ? deltaOf(delta, choice.placeOfCall) : { text: textOrNull(text) ?? '' }
    const bytes = this.kind === 'chat' ? messageBytes(content) : Buffer.byteLength(content.text as string)
    this.text_bytes += bytes
    const fits = bytes === 0 ? 0 : choice.counter.add(bytes, !isStartOfCall(content))
    const isCut = fits < bytes
    const finish = isCut ? 'length' : finishReason(finish_reason)
    if (finish !== null) choice.hasEnded = true
    const taken = !isCut
      ? content
      : this.kind === 'chat'
        ? cutMessage(content, fits)
        : { text: firstBytes(content.text as string, fits) }
    return {
      ...rest,
      index,
      ...(this.kind === 'chat' ? { delta: isCut && fits === 0 ? {} : taken } : taken),
      logprobs: isCut ? null : logprobsOf(logprobs),
      finish_reason: finish,
    }
  }
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
