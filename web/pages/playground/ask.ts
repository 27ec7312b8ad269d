// One question to one model, streamed.
import type { AnswerWarning } from '../../../contract/inference.ts'
import type { ChatChunk, ChatRequest } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { inFrames } from '../../lib/frames.ts'
import { type Content, contentOf } from '../../lib/pictures.ts'
import { type Answer, type Parameters, type Token, type Turn, tokensMax } from './state.ts'

export interface Message {
  role: 'system' | 'user' | 'assistant'
  content: Content
}

/** The conversation up to a turn as one column has it. */
export function messagesOf(turns: readonly Turn[], column: string, { system }: Parameters): Message[] {
  return [
    ...(system.trim() ? [{ role: 'system' as const, content: system }] : []),
    ...turns.flatMap((turn): Message[] => {
      const answer = turn.answers[column]
      const user: Message = { role: 'user', content: contentOf(turn.user, turn.pictures ?? []) }
      return answer?.text ? [user, { role: 'assistant', content: answer.text }] : [user]
    }),
  ]
}

/** The request with the parameters that are set. Throws an Error that names JSON which cannot be read. */
export function requestOf(model: string, messages: Message[], parameters: Parameters): ChatRequest {
  const { temperature, top_p, max_tokens, seed, presence_penalty, frequency_penalty } = parameters
  const numbers = { temperature, top_p, max_tokens, seed, presence_penalty, frequency_penalty }
  const { reasoning_effort } = parameters
  const stop = parameters.stop.split('\n').filter(Boolean)
  const tools = parsed(parameters.tools, 'Tools')
  const schema = parsed(parameters.schema, 'The schema')
  return {
    model,
    messages: messages as ChatRequest['messages'],
    ...Object.fromEntries(Object.entries(numbers).filter(([, value]) => value !== null)),
    ...(reasoning_effort && { reasoning_effort }),
    ...(stop.length > 0 && { stop }),
    ...(tools !== undefined && { tools: tools as ChatRequest['tools'] }),
    ...(schema !== undefined && {
      response_format: { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } } as never,
    }),
  }
}

function parsed(text: string, what: string): unknown {
  if (!text.trim()) return undefined
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error(`${what}: this is not JSON. ${(error as Error).message}`)
  }
}

/** Tells each change of the answer, and returns the last one. Never rejects: a failure is part of the answer. */
export async function ask(request: ChatRequest, signal: AbortSignal, tell: (answer: Answer) => void): Promise<Answer> {
  const started = performance.now()
  let answer: Answer = { status: 'streaming', text: '', model: request.model }
  const change = (next: Partial<Answer>) => {
    answer = { ...answer, ...next }
  }
  const tokens: Token[] = []
  const frames = inFrames(() => tell(answer))
  try {
    const stream = await tunery.chat.completions.create(
      {
        ...request,
        stream: true,
        stream_options: { include_usage: true },
        // Constrained answers have log-probabilities of what the schema left only.
        logprobs: true,
        top_logprobs: 4,
      },
      { signal, timeout_ms: 300_000 },
    )
    const weights = stream.headers.get('x-weights')
    if (weights) change({ weights })
    const warnings = stream.headers.get('x-warnings')
    if (warnings) change({ warnings: warnings.split(', ') as AnswerWarning[] })
    for await (const chunk of stream) {
      change(partsOf(chunk, answer, tokens, started))
      await frames.next()
    }
    change({ status: 'done', tokens, total_ms: performance.now() - started })
  } catch (error) {
    const total_ms = performance.now() - started
    if (signal.aborted) change({ status: 'stopped', total_ms })
    else change({ status: 'failed', error: (error as Error).message, total_ms })
  }
  frames.stop()
  tell(answer)
  return answer
}

/** `tokens`: those of the answer are added, as far as they are shown. */
function partsOf(chunk: ChatChunk, answer: Answer, tokens: Token[], started: number): Partial<Answer> {
  const next: Partial<Answer> = {}
  if (chunk.usage) {
    next.prompt_tokens = chunk.usage.prompt_tokens
    next.completion_tokens = chunk.usage.completion_tokens
  }
  const choice = chunk.choices[0]
  if (!choice) return next
  const { delta, logprobs, finish_reason } = choice as {
    delta: {
      content?: string | null
      reasoning_content?: string | null
      tool_calls?: { index: number; function?: { name?: string; arguments?: string } }[]
    }
    logprobs?: { content?: LogprobEntry[] | null } | null
    finish_reason?: string | null
  }
  if (finish_reason) next.finish_reason = finish_reason
  if (answer.first_ms === undefined && (delta.content || delta.reasoning_content || delta.tool_calls))
    next.first_ms = performance.now() - started
  if (delta.content) next.text = answer.text + delta.content
  if (delta.reasoning_content) next.reasoning = (answer.reasoning ?? '') + delta.reasoning_content
  if (logprobs?.content && tokens.length <= tokensMax) tokens.push(...logprobs.content.map(tokenOf))
  if (delta.tool_calls) {
    const calls = [...(answer.tool_calls ?? [])]
    for (const { index, function: call } of delta.tool_calls) {
      const before = calls[index] ?? { name: '', arguments: '' }
      calls[index] = { name: before.name + (call?.name ?? ''), arguments: before.arguments + (call?.arguments ?? '') }
    }
    next.tool_calls = calls
  }
  return next
}

interface LogprobEntry {
  token: string
  logprob: number
  top_logprobs?: { token: string; logprob: number }[]
}
const tokenOf = ({ token, logprob, top_logprobs = [] }: LogprobEntry): Token => ({
  text: token,
  logprob,
  top: top_logprobs.map((topLogprob) => ({ text: topLogprob.token, logprob: topLogprob.logprob })),
})
