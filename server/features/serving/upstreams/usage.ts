// What a request to an upstream may use at most, and what it used: as the upstream says if that is possible, otherwise
// counted here.
import { samplingDefaults } from '../../../../contract/sampling.ts'
import { requestTokensMax } from '../../usage/index.ts'
import { pictureChars } from '../requests/pictures.ts'
import type { ReplicaRequest } from '../requests/replica.ts'
import type { TokenCounts } from '../requests/usage-scanner.ts'

/**
 * The vocabulary of an upstream is not known here: a token is counted for each four bytes of text, the average of
 * English and code, and of Chinese and Japanese, with the vocabularies of today.
 */
export const bytesPerToken = 4
/** A chat template's own tokens around a message. */
const messageTokens = 4
/** A picture, and the most that models of today make of one. */
const pictureTokens = 256
const pictureTokensMax = 16_384
/** Most tokens that a chat template adds by itself, such as a system message and how to call tools. */
const templateTokensMax = 8192
/** The most tokens of an answer whose length nobody limited. */
const unlimitedTokens = 131_072

/** What a request may use. */
export interface Allowance {
  /** Tokens of the prompt, counted here. */
  prompt_tokens: number
  /** No prompt of this size has more. */
  prompt_tokens_max: number
  choices: number
  /** Texts to embed. */
  texts: number
  /** Tokens of each choice. */
  choice_tokens_max: number
  /** Bytes that each choice repeats of its prompt (`echo`). */
  echoed_bytes: number
}

/** `payload`: the body that is sent. `hasDefaultLength`: whether it limits the length though the client does not. */
export function allowanceOf(
  { body, kind }: Pick<ReplicaRequest, 'body' | 'kind'>,
  payload: string,
  hasDefaultLength: boolean,
): Allowance {
  const prompts = kind === 'chat' ? [] : promptsOf(kind === 'embedding' ? body.input : body.prompt)
  const pictures = kind === 'chat' ? picturesIn(body.messages) : 0
  const prompt_tokens =
    kind === 'chat' ? chatTokens(body) + pictures * pictureTokens : prompts.reduce((sum, { tokens }) => sum + tokens, 0)
  const sent = Buffer.byteLength(payload) - (kind === 'chat' ? pictureChars(body) : 0)
  const most = sent + pictures * pictureTokensMax + templateTokensMax
  const asked = (body.max_completion_tokens ?? body.max_tokens) as number | null | undefined
  return {
    prompt_tokens: Math.max(1, prompt_tokens),
    prompt_tokens_max: Math.min(requestTokensMax, most),
    texts: kind === 'embedding' ? prompts.length : 0,
    choices: kind === 'embedding' ? 0 : Number(body.n ?? 1) * Math.max(1, prompts.length),
    choice_tokens_max: asked ?? (hasDefaultLength ? samplingDefaults.max_tokens : unlimitedTokens),
    echoed_bytes: kind === 'completion' && body.echo ? Math.max(0, ...prompts.map(({ bytes }) => bytes)) : 0,
  }
}

export const tokensIn = (bytes: number) => Math.ceil(bytes / bytesPerToken)

/** A text, or the numbers of its tokens, or a list of either. A token in numbers is taken for 16 bytes of text. */
function promptsOf(prompt: unknown): { bytes: number; tokens: number }[] {
  if (typeof prompt === 'string') {
    const bytes = Buffer.byteLength(prompt)
    return [{ bytes, tokens: tokensIn(bytes) }]
  }
  if (!Array.isArray(prompt)) return []
  if (typeof prompt[0] === 'number') return [{ bytes: prompt.length * 16, tokens: prompt.length }]
  return prompt.flatMap(promptsOf)
}

function chatTokens({ messages, tools }: Record<string, unknown>): number {
  const bytes = tools == null ? 0 : Buffer.byteLength(JSON.stringify(tools))
  return asList(messages).reduce((sum: number, message) => {
    const { content, tool_calls, reasoning_content } = (message ?? {}) as Record<string, unknown>
    const texts = typeof content === 'string' ? [content] : asList(content).map((part) => (part as Part)?.text)
    const calls = tool_calls == null ? '' : JSON.stringify(tool_calls)
    return sum + messageTokens + tokensIn(bytesOf([...texts, calls, reasoning_content]))
  }, tokensIn(bytes))
}

interface Part {
  type?: unknown
  text?: unknown
}

const picturesIn = (messages: unknown) =>
  asList(messages)
    .flatMap((message) => asList((message as { content?: unknown })?.content))
    .filter((part) => (part as Part)?.type === 'image_url').length

const asList = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

export const bytesOf = (texts: readonly unknown[]): number =>
  texts.reduce<number>((sum, text) => sum + (typeof text === 'string' ? Buffer.byteLength(text) : 0), 0)

/** What an upstream says that it used. Undefined where that is no count, or more than is possible. */
export type ReportedCounts = { [K in keyof TokenCounts]?: number | undefined }

export function reportedCounts(usage: unknown, allowance: Allowance): ReportedCounts {
  if (typeof usage !== 'object' || usage === null) return {}
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = usage as Record<string, unknown>
  const cached = (prompt_tokens_details as { cached_tokens?: unknown } | null | undefined)?.cached_tokens
  const prompt = countUpTo(prompt_tokens, allowance.prompt_tokens_max)
  return {
    prompt_tokens: prompt,
    completion_tokens: countUpTo(completion_tokens, allowance.choices * allowance.choice_tokens_max),
    cached_tokens: countUpTo(cached, prompt ?? allowance.prompt_tokens),
  }
}

const countUpTo = (value: unknown, max: number) =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) <= max ? (value as number) : undefined

/** The counts that are metered, and that the client gets. `completion_tokens`: counted here. */
export function usedTokens(
  { prompt_tokens, completion_tokens, cached_tokens }: ReportedCounts,
  allowance: Allowance,
  counted: number,
): TokenCounts {
  const most = allowance.choices * allowance.choice_tokens_max
  return {
    // No prompt is empty, and no text is without tokens: a 0 means that nobody counted.
    prompt_tokens: prompt_tokens || allowance.prompt_tokens,
    completion_tokens: completion_tokens || Math.min(counted, most),
    cached_tokens: Math.min(cached_tokens ?? 0, prompt_tokens || allowance.prompt_tokens),
  }
}

/** The `usage` of an answer. */
export const usageBody = ({ prompt_tokens, completion_tokens, cached_tokens }: TokenCounts) => ({
  prompt_tokens,
  completion_tokens,
  total_tokens: prompt_tokens + completion_tokens,
  prompt_tokens_details: { cached_tokens },
})
