// What of an upstream's answer reaches a client: whole answers here, events of streams in stream.ts. And what
// these servers cannot be asked for.
import { isUtf8 } from 'node:buffer'
import { randomUUID } from 'node:crypto'
import { ApiError } from '../../../../contract/errors.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import type { UsageKind } from '../../usage/index.ts'
import type { Headers, HttpResponse } from '../http-client/response.ts'
import { hasRemoteImage } from '../requests/body.ts'
import { ReplicaFailure, type ReplicaRequest } from '../requests/replica.ts'
import type { TokenCounts } from '../requests/usage-scanner.ts'
import {
  createChoiceCounter,
  cutMessage,
  type Fields,
  finishReason,
  firstBytes,
  isFields,
  logprobsOf,
  messageBytes,
  textOrNull,
  toolCalls,
} from './choices.ts'
import { errorInAnswer } from './error.ts'
import { type Allowance, bytesPerToken, reportedCounts, usageBody, usedTokens } from './usage.ts'

/** An answer that is none, for reasons of the server. */
export const unreadable = (what: string) =>
  new ReplicaFailure('upstream_failed', `The server of this model ${what}. Try again, or ask the operator.`, {
    lost: true,
  })

/** Throws a ReplicaFailure for a wrong content type: a proxy's error page may also have status 200. */
export function requireContentType(response: HttpResponse, stream: boolean): void {
  const type = response.headers['content-type'] ?? ''
  if ((stream ? /^text\/event-stream\b/i : /^application\/json\b/i).test(type)) return
  response.destroy()
  throw unreadable(`did not answer with ${stream ? 'an event stream' : 'JSON'}`)
}

/** Throws for what these servers cannot do, or must not. `fetch_images`: whether they may fetch addresses of images. */
export function requireSupported(body: Record<string, unknown>, fetch_images: boolean): void {
  if (!fetch_images && hasRemoteImage(body))
    throw new ApiError(
      'invalid_request',
      "'messages': the server of this model does not fetch images. Send them as data: URLs.",
      { param: 'messages' },
    )
  if (body.parse_special === false)
    throw new ApiError(
      'parameter_not_supported',
      "'parse_special': the server of this model always reads control tokens in prompts. Leave it out.",
      { param: 'parse_special' },
    )
  // Some ignore it, and would continue the prompt as if nothing followed.
  if (body.suffix)
    throw new ApiError(
      'parameter_not_supported',
      "'suffix': the server of this model may ignore it. Leave it out, or write the model's own tokens for prefix, " +
        'suffix and middle into the prompt.',
      { param: 'suffix' },
    )
}

const queue_ms_max = 1e7

/** The headers of an upstream that this service reads: the time in the queue of another engine of Tunery. */
export function readHeaders(headers: Headers): Headers {
  const queue_ms = Number(headers['x-queue-ms'])
  return queue_ms >= 0 && queue_ms < queue_ms_max ? { 'x-queue-ms': String(queue_ms) } : {}
}

/** The fields that every answer and every event has. Ids are our own: some servers give each answer the same. */
export const answerHead = (kind: UsageKind, stream: boolean) => ({
  id: `${kind === 'chat' ? 'chatcmpl' : 'cmpl'}-${randomUUID().replaceAll('-', '')}`,
  object: kind === 'completion' ? 'text_completion' : stream ? 'chat.completion.chunk' : 'chat.completion',
  created: unixSeconds(Date.now()),
})

interface WholeAnswer {
  body: Buffer
  usage: TokenCounts
  /** The model that the server says has answered. */
  reported: string | undefined
}

/** A whole answer in the shape of this API. Throws a ReplicaFailure if it is none. */
export function wholeAnswer(
  bytes: Buffer,
  { kind, model: name, body }: Pick<ReplicaRequest, 'kind' | 'model' | 'body'>,
  allowance: Allowance,
): WholeAnswer {
  try {
    const answer: unknown = JSON.parse(bytes.toString('utf8'))
    if (!isFields(answer)) throw unreadable('answered with something that is not a JSON object')
    if (answer.error != null || answer.object === 'error') throw errorInAnswer(bytes.toString('utf8'), body)
    const reported = typeof answer.model === 'string' ? answer.model : undefined
    return kind === 'embedding'
      ? { ...embeddings(bytes, answer, name, allowance), reported }
      : { ...choicesOf(answer, kind, name, allowance), reported }
  } catch (error) {
    // Nested too deeply to be read or written, or no JSON.
    throw error instanceof ApiError ? error : unreadable('answered with something that is not JSON')
  }
}

const base64 = /^[A-Za-z0-9+/]*={0,2}$/
const isVector = (value: unknown): value is Fields =>
  isFields(value) &&
  (Array.isArray(value.embedding)
    ? value.embedding.every((number) => Number.isFinite(number))
    : typeof value.embedding === 'string' && base64.test(value.embedding))

function embeddings(bytes: Buffer, answer: Fields, model: string, allowance: Allowance): Omit<WholeAnswer, 'reported'> {
  const { data } = answer
  if (!Array.isArray(data) || !data.every(isVector)) throw unreadable('answered without embeddings')
  // Clients take the first vector for the first text.
  if (data.length !== allowance.texts || data.some(({ index }, place) => (index ?? place) !== place))
    throw unreadable(`answered with other embeddings than those of ${allowance.texts} texts`)
  const usage = usedTokens({ ...reportedCounts(answer.usage, allowance), completion_tokens: 0 }, allowance, 0)
  const { prompt_tokens } = usage
  const { usage: told } = answer as { usage?: Fields | null }
  const isSame =
    answer.model === model &&
    answer.object === 'list' &&
    told?.prompt_tokens === prompt_tokens &&
    told.total_tokens === prompt_tokens
  // Large, so it is written again only where that changes it.
  if (isSame && isUtf8(bytes)) return { body: bytes, usage }
  const body = { ...answer, object: 'list', model, usage: { prompt_tokens, total_tokens: prompt_tokens } }
  return { body: Buffer.from(JSON.stringify(body)), usage }
}

function choicesOf(
  { choices: sent, usage: told, ...answer }: Fields,
  kind: UsageKind,
  model: string,
  allowance: Allowance,
): Omit<WholeAnswer, 'reported'> {
  const { choices: count, choice_tokens_max, echoed_bytes } = allowance
  const told_tokens = isFields(told) ? Number(told.completion_tokens) : 0
  const isTooLong = told_tokens > count * choice_tokens_max
  const choices = new Map<number, Fields>()
  let counted = 0
  if (Array.isArray(sent))
    for (const [position, choice] of sent.entries()) {
      if (!isFields(choice)) continue
      const index = Number.isSafeInteger(choice.index) ? (choice.index as number) : position
      if (index < 0 || index >= count || choices.has(index)) continue
      const { message, text, ...rest } = choice
      const read = kind === 'chat' ? answerMessage(message) : { text: textOrNull(text) ?? '' }
      const counter = createChoiceCounter(allowance)
      const bytes = kind === 'chat' ? messageBytes(read) : Buffer.byteLength(read.text as string)
      const most = isTooLong ? choice_tokens_max * bytesPerToken + echoed_bytes : bytes
      const fits = counter.add(Math.min(most, bytes), false)
      counted += counter.tokens()
      const cut = fits < bytes
      const content = !cut
        ? read
        : kind === 'chat'
          ? cutMessage(read, fits)
          : { text: firstBytes(read.text as string, fits) }
      choices.set(index, {
        ...rest,
        index,
        ...(kind === 'chat' ? { message: content } : content),
        logprobs: cut ? null : logprobsOf(rest.logprobs),
        finish_reason: cut ? 'length' : (finishReason(rest.finish_reason) ?? 'stop'),
      })
    }
  if (choices.size === 0) throw unreadable('answered without a choice')
  const usage = usedTokens(reportedCounts(told, allowance), allowance, counted)
  const body = {
    ...answer,
    ...answerHead(kind, false),
    model,
    choices: [...choices.values()].sort((a, b) => Number(a.index) - Number(b.index)),
    usage: usageBody(usage),
  }
  return { body: Buffer.from(JSON.stringify(body)), usage }
}

function answerMessage(message: unknown): Fields {
  const { content, reasoning_content, reasoning, tool_calls, ...rest } = isFields(message) ? message : {}
  const thoughts = textOrNull(reasoning_content) ?? textOrNull(reasoning)
  const calls = toolCalls(tool_calls)
  return {
    ...rest,
    role: 'assistant',
    content: textOrNull(content),
    refusal: null,
    ...(thoughts !== null && { reasoning_content: thoughts }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}
