// The body that goes on: the client's own, with the name that the model has where it goes.
import { ApiError } from '../../../contract/errors.ts'
import { samplingDefaults } from '../../../contract/sampling.ts'
import type { Ask } from './replica.ts'

/** The client's body with another model, as its bytes were wherever that can be done. */
export function bodyFor({ body, text, model }: Pick<Ask, 'body' | 'text' | 'model'>, name: string): string {
  if (text !== undefined) {
    if (name === model) return text
    const spliced = withModel(text, model, name)
    if (spliced !== undefined) return spliced
  }
  return serialize({ ...body, model: name })
}

/**
 * The text with the value of its key `model` replaced. Only where the key can be no other: it appears once, and nothing
 * in the text is spelled in escapes. Undefined where that is not so.
 */
function withModel(text: string, model: string, name: string): string | undefined {
  const key = text.indexOf('"model"')
  if (key === -1 || text.indexOf('"model"', key + 1) !== -1 || text.includes('\\u')) return undefined
  const colon = /\s*:\s*/y
  colon.lastIndex = key + '"model"'.length
  if (!colon.test(text)) return undefined
  const literal = JSON.stringify(model)
  const at = colon.lastIndex
  return text.startsWith(literal, at)
    ? text.slice(0, at) + JSON.stringify(name) + text.slice(at + literal.length)
    : undefined
}

interface Sent {
  server: 'vllm' | 'openai'
  /** Whether the default length is said where the client says none. */
  withMax: boolean
  /** Requests share computed prompts with those of the same salt alone. */
  cache_salt: string | undefined
}

/**
 * What an upstream is sent: the client's fields, without nulls, which mean 'not given' here and are errors elsewhere;
 * this service's defaults, so that an answer does not depend on where it was made; and the wish to hear what a stream
 * used. Only what OpenAI's protocol itself has is added for servers of which nothing more is known.
 */
export function upstreamBody(
  { body, kind, stream }: Pick<Ask, 'body' | 'kind' | 'stream'>,
  name: string,
  { server, withMax, cache_salt }: Sent,
): string {
  // A client that could name the salt could look into the cache of others.
  const given: Record<string, unknown> = {}
  for (const field in body) if (body[field] !== null && field !== 'cache_salt') given[field] = body[field]
  if (kind === 'embedding') return serialize({ ...given, model: name })
  const { max_completion_tokens, ...fields } = given
  const max_tokens = max_completion_tokens ?? fields.max_tokens ?? (withMax ? samplingDefaults.max_tokens : undefined)
  return serialize({
    temperature: samplingDefaults.temperature,
    top_p: samplingDefaults.top_p,
    ...(server === 'vllm' && { top_k: samplingDefaults.top_k }),
    ...fields,
    ...(max_tokens !== undefined && { max_tokens }),
    ...(Array.isArray(fields.messages) && { messages: fields.messages.map(asSystem) }),
    ...(stream
      ? {
          stream_options: {
            ...(fields.stream_options as object),
            include_usage: true,
            ...(server === 'vllm' && { continuous_usage_stats: true }),
          },
        }
      : { stream_options: undefined }),
    ...(cache_salt !== undefined && { cache_salt }),
    model: name,
  })
}

/** Whether a request leaves the length of its answer to the defaults. */
export const leavesLength = ({ max_tokens, max_completion_tokens }: Record<string, unknown>) =>
  max_tokens == null && max_completion_tokens == null

/**
 * Whether the conversation has an image that the server would fetch: from inside the operator's network, on a client's
 * word.
 */
export function fetchedImage({ messages }: Record<string, unknown>): boolean {
  if (!Array.isArray(messages)) return false
  return messages.some((message) => Array.isArray(message?.content) && message.content.some(isFetched))
}

const isFetched = (part: { image_url?: unknown } | null) => {
  if (part?.image_url == null) return false
  const url = typeof part.image_url === 'object' ? (part.image_url as { url?: unknown }).url : part.image_url
  return typeof url !== 'string' || !/^data:/i.test(url)
}

/** Chat templates know the role by its older name. */
const asSystem = (message: { role?: unknown }) =>
  message.role === 'developer' ? { ...message, role: 'system' } : message

function serialize(body: unknown): string {
  try {
    return JSON.stringify(body)
  } catch {
    throw new ApiError('invalid_request', 'The body is nested too deeply.')
  }
}
