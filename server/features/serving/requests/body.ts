// What replicas are sent: the client's body, with the name that the replica knows the model by, and headers of ours.
import { ApiError } from '../../../../contract/errors.ts'
import { samplingDefaults } from '../../../../contract/sampling.ts'
import { pictureChars } from './pictures.ts'
import type { ReplicaRequest } from './replica.ts'

/** Most characters of a request beside its pictures. */
const textCharsMax = 8 * 1024 * 1024

/**
 * The client's body with the model renamed. Splices the text if possible: faster than serializing it again. Throws
 * body_too_large.
 */
export function engineBody(request: Pick<ReplicaRequest, 'body' | 'text' | 'model'>, name: string): string {
  const payload = renamed(request, name)
  if (payload.length > textCharsMax && payload.length - pictureChars(request.body) > textCharsMax)
    throw new ApiError('body_too_large', 'The request has more than 8 MiB beside its pictures. Send less at once.')
  return payload
}

function renamed({ body, text, model }: Pick<ReplicaRequest, 'body' | 'text' | 'model'>, name: string): string {
  if (text !== undefined) {
    if (name === model) return text
    const spliced = replaceModel(text, model, name)
    if (spliced !== undefined) return spliced
  }
  return serialize({ ...body, model: name })
}

/** What our engine gets of a request beside its body. */
export const engineHeaders = (request: ReplicaRequest): Record<string, string> => ({
  'x-served-model-name': request.model,
  'x-tunery-account': request.account_id,
  'x-request-id': request.request_id,
  ...(request.background && { 'x-tunery-priority': 'background' }),
  ...(request.stream && { 'x-tunery-usage': 'always' }),
  ...request.span?.headers(),
  ...(request.prompt_tokens_max && { 'x-tunery-prompt-tokens-max': String(request.prompt_tokens_max) }),
})

/**
 * Replaces the value of the key `model` in JSON text. Undefined if the position is ambiguous: the key appears more than
 * once, or the text has `\u` escapes.
 */
function replaceModel(text: string, model: string, name: string): string | undefined {
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

interface UpstreamBodyOptions {
  server: 'vllm' | 'openai'
  /** Whether to send the default `max_tokens` if the client sent none. */
  addDefaultLength: boolean
  /** The prefix cache is shared only among requests with the same salt. */
  cache_salt: string | undefined
}

/**
 * The body for an upstream: the client's fields without nulls, which mean 'not given' here and are errors elsewhere;
 * this service's defaults, so that all replicas sample alike; and `include_usage` for streams. Kind `openai` gets no
 * added fields beyond OpenAI's own protocol.
 */
export function upstreamBody(
  { body, kind, stream }: Pick<ReplicaRequest, 'body' | 'kind' | 'stream'>,
  name: string,
  { server, addDefaultLength, cache_salt }: UpstreamBodyOptions,
): string {
  // A client that could set the salt could probe the prefix cache of other accounts.
  const clientFields: Record<string, unknown> = {}
  for (const field in body) if (body[field] !== null && field !== 'cache_salt') clientFields[field] = body[field]
  if (kind === 'embedding') return serialize({ ...clientFields, model: name })
  const { max_completion_tokens, ...fields } = clientFields
  const max_tokens =
    max_completion_tokens ?? fields.max_tokens ?? (addDefaultLength ? samplingDefaults.max_tokens : undefined)
  return serialize({
    temperature: samplingDefaults.temperature,
    top_p: samplingDefaults.top_p,
    ...(server === 'vllm' && { top_k: samplingDefaults.top_k }),
    ...fields,
    ...(max_tokens !== undefined && { max_tokens }),
    ...(Array.isArray(fields.messages) && { messages: fields.messages.map(developerToSystem) }),
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

/** Whether a request sets no length limit itself. */
export const usesDefaultLength = ({ max_tokens, max_completion_tokens }: Record<string, unknown>) =>
  max_tokens == null && max_completion_tokens == null

/** Whether the conversation has an image URL that the upstream would fetch inside the operator's network (SSRF). */
export function hasRemoteImage({ messages }: Record<string, unknown>): boolean {
  if (!Array.isArray(messages)) return false
  return messages.some((message) => Array.isArray(message?.content) && message.content.some(isRemote))
}

const isRemote = (part: { image_url?: unknown } | null) => {
  if (part?.image_url == null) return false
  const url = typeof part.image_url === 'object' ? (part.image_url as { url?: unknown }).url : part.image_url
  return typeof url !== 'string' || !/^data:/i.test(url)
}

/** Chat templates know the role `developer` as `system`. */
const developerToSystem = (message: { role?: unknown }) =>
  message.role === 'developer' ? { ...message, role: 'system' } : message

function serialize(body: unknown): string {
  try {
    return JSON.stringify(body)
  } catch {
    throw new ApiError('invalid_request', 'The body is nested too deeply.')
  }
}
