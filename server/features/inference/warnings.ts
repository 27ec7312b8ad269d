// Requests to tuned models: how they differ from the training, and what they leave to it.
import type { AnswerWarning } from '../../../contract/inference.ts'
import type { UsageKind } from '../usage/index.ts'
import type { Resolved } from './resolve.ts'

interface Body {
  messages?: { role: string; content?: unknown }[]
  tools?: unknown[] | null
  suffix?: unknown
  reasoning_effort?: string | null
  chat_template_kwargs?: Record<string, unknown> | null
}

/** How a request of this kind differs from the training of the model that it is for. */
export function answerWarnings(
  trained: Resolved['trained'],
  kind: UsageKind,
  body: Record<string, unknown>,
): AnswerWarning[] {
  return trained ? warningsOf(trained, kind, body as Body) : []
}

/**
 * The body of a chat that asks for thoughts as the rows of the training did, where the request leaves that to the
 * template, and the template asks for none.
 */
export function askedAsTrained<B extends Record<string, unknown>>(trained: Resolved['trained'], body: B): B {
  const { thoughts, thoughts_asked } = trained?.with ?? {}
  if (thoughts !== 'all' || !thoughts_asked || asksForThoughts(body) !== undefined) return body
  return { ...body, chat_template_kwargs: { enable_thinking: true, ...(body as Body).chat_template_kwargs } }
}

function warningsOf(trained: NonNullable<Resolved['trained']>, kind: UsageKind, body: Body): AnswerWarning[] {
  // No row teaches what belongs between two texts.
  if (kind === 'completion') return body.suffix == null ? ['template_missing'] : []
  if (kind !== 'chat') return []
  const { system_prompt, system_prompt_text, tools, thoughts } = trained.with
  const warnings: AnswerWarning[] = []
  const prompt = systemPrompt(body.messages?.[0])
  if (prompt === undefined && system_prompt === 'same') warnings.push('system_prompt_missing')
  else if (prompt !== undefined && system_prompt === 'none') warnings.push('system_prompt_untrained')
  else if (system_prompt === 'same' && prompt?.trim() !== system_prompt_text?.trim())
    warnings.push('system_prompt_differs')
  const hasTools = (body.tools?.length ?? 0) > 0
  if (!hasTools && tools === 'all') warnings.push('tools_missing')
  if (hasTools && tools === 'none') warnings.push('tools_untrained')
  if (thoughts === 'all' && asksForThoughts(body) === false) warnings.push('thoughts_off')
  if (thoughts === 'none' && asksForThoughts(body) === true) warnings.push('thoughts_untrained')
  if (trained.template_differs) warnings.push('template_differs')
  return warnings
}

function systemPrompt(first: { role: string; content?: unknown } | undefined): string | undefined {
  if (first?.role !== 'system' && first?.role !== 'developer') return undefined
  const { content } = first
  if (!Array.isArray(content)) return String(content ?? '')
  return content.map((part: { text?: string }) => part.text ?? '').join('')
}

/** Whether a request turns thoughts on or off; undefined if it leaves that to the template. */
function asksForThoughts({ reasoning_effort, chat_template_kwargs }: Body): boolean | undefined {
  const kwargs = chat_template_kwargs ?? {}
  for (const value of [kwargs.enable_thinking, kwargs.thinking, kwargs.reasoning])
    if (typeof value === 'boolean') return value
  const { thinking_mode, thinking_budget } = kwargs
  if (typeof thinking_mode === 'string') return thinking_mode === 'thinking' || thinking_mode === 'enabled'
  if (typeof thinking_budget === 'number') return thinking_budget !== 0
  if (kwargs.low_effort === true || kwargs.medium_effort === true) return true
  const effort = kwargs.reasoning_effort ?? kwargs.reasoning_strength ?? kwargs.thinking_effort ?? reasoning_effort
  return typeof effort === 'string' ? effort !== 'none' && effort !== 'no_think' : undefined
}
