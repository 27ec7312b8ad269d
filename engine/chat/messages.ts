// Converts request messages to the variables of chat templates.
import { createHash } from 'node:crypto'
import type { ChatMessage, ContentPart, Tool } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { asParts, type TemplateContent } from './content.ts'
import type { ThoughtField } from './learn-thoughts.ts'
import type { TemplateSight } from './pictures.ts'
import { parseJson } from './python-text.ts'
import { isWithinBounds } from './template.ts'
import type { ToolFormat } from './tool-formats.ts'

/** `arguments`: JSON text, or the parsed value. */
interface TemplateCall {
  id: string
  type: 'function'
  function: { name: string; arguments: unknown }
}
export interface TemplateMessage {
  role: string
  content: TemplateContent
  /** Thoughts before an answer. */
  thoughts?: string
  tool_calls?: TemplateCall[]
  tool_call_id?: string
  /** Tool name of a result. */
  name?: string
}
export interface TemplateTool {
  type: 'function'
  function: { name: string; description: string; parameters: Record<string, unknown> }
}

const argumentBounds = { depth: 32, values: 20_000, characters: 1_000_000 }

/** What a model can see: `can_see` where it is loaded with its projector. */
interface Sight extends TemplateSight {
  can_see: boolean
}

/**
 * Converts messages for a template. Throws ApiError parameter_not_supported for a part that the model can't read,
 * invalid_request for a tool result without a matching call.
 */
export function templateMessages(
  messages: readonly ChatMessage[],
  takesThoughts: boolean,
  sight: Sight,
): TemplateMessage[] {
  const names = new Map<string, string>()
  const converted = messages.map((message, index): TemplateMessage => {
    const content = contentOf(message.content, sight, index)
    if (message.role === 'tool') {
      const name = names.get(message.tool_call_id)
      if (name === undefined)
        throw new ApiError(
          'invalid_request',
          `No earlier assistant message has a tool call with the id '${message.tool_call_id}'.`,
          { param: `messages.${index}.tool_call_id` },
        )
      return { role: 'tool', content, tool_call_id: message.tool_call_id, name }
    }
    if (message.role !== 'assistant') return { role: message.role === 'developer' ? 'system' : message.role, content }
    const calls = message.tool_calls ?? []
    for (const call of calls) names.set(call.id, call.function.name)
    return {
      role: 'assistant',
      content,
      ...(takesThoughts && thoughtsOf(message) !== '' && { thoughts: thoughtsOf(message) }),
      // Omitted when empty: some templates only test whether the key exists.
      ...(calls.length > 0 && {
        tool_calls: calls.map(({ id, function: { name, arguments: text } }) => ({
          id,
          type: 'function' as const,
          function: { name, arguments: text.trim() || '{}' },
        })),
      }),
    }
  })
  return withResultsInOrder(converted)
}

/** Results in the order of their calls: most templates write no ids, so only the order says which result is whose. */
function withResultsInOrder(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const ordered: TemplateMessage[] = []
  for (let index = 0; index < messages.length; ) {
    const message = messages[index++]!
    ordered.push(message)
    const from = index
    while (messages[index]?.role === 'tool') index++
    const ids = message.tool_calls?.map(({ id }) => id) ?? []
    const place = ({ tool_call_id }: TemplateMessage) => {
      const at = ids.indexOf(tool_call_id!)
      return at < 0 ? ids.length : at
    }
    ordered.push(...messages.slice(from, index).toSorted((a, b) => place(a) - place(b)))
  }
  return ordered
}

/** The thoughts of an answer that a client sends back, under any of their names. */
function thoughtsOf(message: ChatMessage & { role: 'assistant' }): string {
  return message.reasoning_content ?? message.reasoning ?? message.thinking ?? ''
}

/** The message with its thoughts where the template reads them. `excludesContent`: see `LearnedThoughts`. */
export function withThoughts(
  { thoughts, ...message }: TemplateMessage,
  field: ThoughtField,
  excludesContent: boolean,
): object {
  if (thoughts === undefined) return message
  if (excludesContent && message.tool_calls && typeof message.content === 'string' && message.content !== '')
    return { ...message, content: '', [field]: `${thoughts}\n\n${message.content}` }
  if (field !== 'content') return { ...message, [field]: thoughts }
  return { ...message, content: [{ type: 'thinking', thinking: thoughts }, ...asParts(message.content)] }
}

/** Adapts calls in the history to a template that supports tools. */
export function adaptHistory(messages: TemplateMessage[], format: ToolFormat): TemplateMessage[] {
  const given = format.arguments === 'object' ? messages.map(withParsedArguments) : messages
  const named = format.short_ids ? given.map(withShortIds) : given
  return format.takes_one ? splitParallelCalls(named) : named
}

export function templateTool({ function: { name, description, parameters } }: Tool): TemplateTool {
  // Always set: templates join them as text or access their fields.
  const whole = { ...(parameters ?? { type: 'object' }) }
  // Some clients write an empty object as a list.
  if (whole.properties == null || isEmptyList(whole.properties)) whole.properties = {}
  return { type: 'function', function: { name, description: description ?? '', parameters: whole } }
}

const isEmptyList = (value: unknown) => Array.isArray(value) && value.length === 0

function contentOf(content: string | ContentPart[] | null | undefined, sight: Sight, index: number): TemplateContent {
  if (content == null) return ''
  if (typeof content === 'string') return content
  if (!content.some(({ type }) => type === 'image_url')) return content.map(partText).join('')
  requireSight(sight, `messages.${index}.content`)
  return content.flatMap((part) => (part.type === 'image_url' ? [{ type: 'image' as const }] : asParts(partText(part))))
}

function partText(part: ContentPart): string {
  return part.type === 'text' ? part.text : part.type === 'refusal' ? part.refusal : ''
}

function requireSight({ can_see, marker }: Sight, param: string): void {
  if (can_see && marker) return
  const why = can_see
    ? 'This model’s chat template has no place for pictures, so it can’t be sent images.'
    : marker
      ? 'This model reads images only together with its projector (a file mmproj-….gguf), which is not loaded.'
      : 'This model reads text only, so it can’t be sent images. Ask a model that sees.'
  throw new ApiError('parameter_not_supported', why, { param })
}

/** Templates serialize arguments themselves, so parse them. Invalid or oversized JSON stays text. */
function withParsedArguments(message: TemplateMessage): TemplateMessage {
  const { tool_calls } = message
  if (!tool_calls) return message
  return {
    ...message,
    tool_calls: tool_calls.map((call) => ({
      ...call,
      function: { ...call.function, arguments: parseArguments(call.function.arguments) },
    })),
  }
}

function parseArguments(text: unknown): unknown {
  try {
    const values = parseJson(String(text))
    return isWithinBounds(values, argumentBounds) ? values : text
  } catch {
    return text
  }
}

/** Mistral's templates require ids of nine letters and digits. Others are replaced by a hash, equal ids by the same. */
function withShortIds(message: TemplateMessage): TemplateMessage {
  const { tool_calls, tool_call_id } = message
  return {
    ...message,
    ...(tool_calls && { tool_calls: tool_calls.map((call) => ({ ...call, id: shortId(call.id) })) }),
    ...(tool_call_id !== undefined && { tool_call_id: shortId(tool_call_id) }),
  }
}

function shortId(id: string): string {
  return /^[a-zA-Z0-9]{9}$/.test(id) ? id : createHash('sha256').update(id).digest('hex').slice(0, 9)
}

/**
 * Some templates reject several calls in one message, or write the first alone: split it into one message per call,
 * each followed by its result.
 */
function splitParallelCalls(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const split: TemplateMessage[] = []
  for (let index = 0; index < messages.length; index++) {
    const message = messages[index]!
    if (!message.tool_calls || message.tool_calls.length < 2) {
      split.push(message)
      continue
    }
    const results: TemplateMessage[] = []
    while (messages[index + 1]?.role === 'tool') results.push(messages[++index]!)
    const unmatched = new Set(results)
    for (const call of message.tool_calls) {
      split.push({ ...message, tool_calls: [call] })
      const result = results.find((result) => result.tool_call_id === call.id && unmatched.delete(result))
      if (result) split.push(result)
    }
    split.push(...unmatched)
  }
  return split
}
