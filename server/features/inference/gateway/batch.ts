// Batch of chat requests in one call: each is validated, rate limited, answered and metered on its own.

import { type BatchRequest, ChatRequest, Messages } from '../../../../contract/chat.ts'
import { ApiError, errorBody } from '../../../../contract/errors.ts'
import { validationError } from '../../../platform/http/validation.ts'
import type { TokenCounts } from '../../serving/index.ts'

/** Maximum concurrent requests of one batch. */
const concurrency = 16

/** Answers one request of the batch with JSON. */
type AnswerOne = (request: ChatRequest, index: number) => Promise<{ bytes: Buffer; counts: TokenCounts }>

/** The account's limits, which apply to each request of a batch. */
interface BatchLimits {
  /** Counts one request. Throws an ApiError if the limit is reached. */
  countRequest(): Promise<void>
  /** Takes a concurrency slot. Resolves with its release function; undefined if none is free. */
  acquireSlot(): Promise<(() => void) | undefined>
}

/** Resolves with the JSON text of the batch response. A failed request has its error at its index. */
export async function answerBatch(
  { requests, ...shared }: BatchRequest,
  signal: AbortSignal,
  limits: BatchLimits,
  answer: AnswerOne,
  onUnexpected: (error: unknown) => void,
): Promise<string> {
  const conversation = sharedConversation(shared)
  const responses = new Array<string>(requests.length)
  const total: TokenCounts = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0 }
  let next = 0
  async function work(): Promise<void> {
    while (next < requests.length && !signal.aborted) {
      const index = next++
      try {
        // The first was already counted, as the batch request itself.
        if (index > 0) await limits.countRequest()
        workers.push(addWorker())
        const { bytes, counts } = await answer(requestOf(shared, conversation, requests[index]!), index)
        responses[index] = bytes.toString('utf8')
        total.prompt_tokens += counts.prompt_tokens
        total.completion_tokens += counts.completion_tokens
        total.cached_tokens += counts.cached_tokens
      } catch (error) {
        if (signal.aborted) return
        responses[index] = JSON.stringify(errorBody(toApiError(error, onUnexpected), true))
      }
    }
  }
  const workers: Promise<void>[] = []
  let working = 1
  /** Starts another worker if the account has a free slot. The first worker uses the slot of the batch request. */
  async function addWorker(): Promise<void> {
    if (working >= concurrency || next >= requests.length) return
    working++
    const release = await limits.acquireSlot()
    if (release) await work().finally(release)
    working--
  }
  await work()
  // A worker that is added from here on finds nothing to do: every request has started.
  await Promise.all(workers)
  signal.throwIfAborted()
  const usage = {
    prompt_tokens: total.prompt_tokens,
    completion_tokens: total.completion_tokens,
    total_tokens: total.prompt_tokens + total.completion_tokens,
    prompt_tokens_details: { cached_tokens: total.cached_tokens },
  }
  return `{"object":"chat.completion.batch","responses":[${responses.join(',')}],"usage":${JSON.stringify(usage)}}`
}

const WithoutMessages = ChatRequest.omit({ messages: true })
type Conversation = () => ChatRequest['messages']

/** The batch's shared messages, validated once, on first use by a request without its own messages. */
function sharedConversation({ messages }: Record<string, unknown>): Conversation {
  let parsed: ReturnType<typeof Messages.safeParse> | undefined
  return () => {
    parsed ??= Messages.safeParse(messages)
    if (parsed.success) return parsed.data
    throw validationError(
      parsed.error.issues.map((issue) => ({ ...issue, path: ['messages', ...issue.path] })),
      'request',
    )
  }
}

/** Merges a request's own fields over the shared ones and validates the result. Throws an ApiError. */
function requestOf(shared: object, conversation: Conversation, overrides: Record<string, unknown>): ChatRequest {
  if (overrides.stream != null && overrides.stream !== false)
    throw new ApiError(
      'parameter_not_supported',
      "'stream' is not supported. Leave it out: a batch is answered whole.",
      { param: 'stream' },
    )
  const fields = { ...shared, ...overrides, stream: undefined, stream_options: undefined }
  const hasMessages = 'messages' in overrides
  const parsed = hasMessages
    ? ChatRequest.safeParse(fields)
    : WithoutMessages.safeParse({ ...fields, messages: undefined })
  if (!parsed.success) throw validationError(parsed.error.issues, 'request')
  return hasMessages ? (parsed.data as ChatRequest) : { ...parsed.data, messages: conversation() }
}

function toApiError(error: unknown, onUnexpected: (error: unknown) => void): ApiError {
  if (error instanceof ApiError) return error
  onUnexpected(error)
  return new ApiError('internal_error', 'Something failed inside the service. Its log has the cause.')
}
