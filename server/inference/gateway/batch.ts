// Many conversations in one request: each is validated, answered and metered as one of its own.
import { type BatchRequest, ChatRequest, Messages } from '../../../contract/chat.ts'
import { ApiError, errorBody } from '../../../contract/errors.ts'
import { validationError } from '../../http/validation.ts'
import type { TokenCounts } from './usage-scanner.ts'

/** How many of a batch's requests are under way at once, at most. */
const concurrency = 16

/** Answers one request of the batch; resolves with the text of its answer. */
export type AnswerOne = (request: ChatRequest, index: number) => Promise<{ bytes: Buffer; counts: TokenCounts }>

/**
 * Each request of a batch counts as one of its own: `admit` counts one or throws, `slot` takes a place among those
 * under way.
 */
export interface BatchLimits {
  admit(): Promise<void>
  slot(): (() => void) | undefined
}

/** Resolves with the JSON text of the whole answer. A request that fails is answered with its error, in its place. */
export async function answerBatch(
  { requests, ...shared }: BatchRequest,
  signal: AbortSignal,
  limits: BatchLimits,
  answer: AnswerOne,
  onFault: (error: unknown) => void,
): Promise<string> {
  const conversation = sharedConversation(shared)
  const responses = new Array<string>(requests.length)
  const total: TokenCounts = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0 }
  let next = 0
  async function work(): Promise<void> {
    while (next < requests.length && !signal.aborted) {
      const index = next++
      try {
        // The first was counted as the request that brought them all.
        if (index > 0) await limits.admit()
        widen()
        const { bytes, counts } = await answer(requestOf(shared, conversation, requests[index]!), index)
        responses[index] = bytes.toString('utf8')
        total.prompt_tokens += counts.prompt_tokens
        total.completion_tokens += counts.completion_tokens
        total.cached_tokens += counts.cached_tokens
      } catch (error) {
        if (signal.aborted) return
        responses[index] = JSON.stringify(errorBody(toApiError(error, onFault), true))
      }
    }
  }
  const others: Promise<void>[] = []
  let working = 1
  /** Takes one more under way, where the account has a place for it now. The first has that of the batch itself. */
  function widen(): void {
    if (working >= concurrency || next >= requests.length) return
    const release = limits.slot()
    if (!release) return
    working++
    others.push(
      work().finally(() => {
        working--
        release()
      }),
    )
  }
  await work()
  // Those that were begun begin no others any more: all requests are taken.
  await Promise.all(others)
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

/** The messages that stand beside the requests, looked at once for all that bring none of their own. */
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

/** The shared fields under its own. Throws an ApiError that names what is wrong in it. */
function requestOf(shared: object, conversation: Conversation, own: Record<string, unknown>): ChatRequest {
  if (own.stream != null && own.stream !== false)
    throw new ApiError(
      'parameter_not_supported',
      "'stream' is not supported. Leave it out: a batch is answered whole.",
      { param: 'stream' },
    )
  const fields = { ...shared, ...own, stream: undefined, stream_options: undefined }
  const brings = 'messages' in own
  const parsed = brings ? ChatRequest.safeParse(fields) : WithoutMessages.safeParse({ ...fields, messages: undefined })
  if (!parsed.success) throw validationError(parsed.error.issues, 'request')
  return brings ? (parsed.data as ChatRequest) : { ...parsed.data, messages: conversation() }
}

function toApiError(error: unknown, onFault: (error: unknown) => void): ApiError {
  if (error instanceof ApiError) return error
  onFault(error)
  return new ApiError('internal_error', 'Something failed inside the service. Its log has the cause.')
}
