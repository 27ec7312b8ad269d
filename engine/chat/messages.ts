// The caller's messages in the form that chat templates read.
import { createHash } from 'node:crypto'
import type { ChatMessage, ContentPart, Tool } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { type ChatModel, isWithin } from './template.ts'
import type { ToolFormat } from './tool-formats.ts'

/** `arguments`: text, or what it says as JSON. */
export type TemplateCall = { id: string; type: 'function'; function: { name: string; arguments: unknown } }
export type TemplateMessage = {
  role: string
  content: string
  reasoning_content?: string
  tool_calls?: TemplateCall[]
  tool_call_id?: string
  /** Of the tool that a result is of. */
  name?: string
}
export type TemplateTool = {
  type: 'function'
  function: { name: string; description: string; parameters: Record<string, unknown> }
}

const argumentBounds = { depth: 32, values: 20_000, characters: 1_000_000 }

/**
 * Messages for a template. Throws ApiError: parameter_not_supported for a part that the model can't read,
 * invalid_request for a tool result that no call asked for.
 */
export function templateMessages(
  model: ChatModel,
  messages: readonly ChatMessage[],
  takesReasoning: boolean,
): TemplateMessage[] {
  const reads = modalitiesOf(model)
  const names = new Map<string, string>()
  return messages.map((message, index) => {
    const content = contentText(message.content, reads, index)
    if (message.role === 'tool') {
      const name = names.get(message.tool_call_id)
      if (name === undefined)
        throw new ApiError(
          'invalid_request',
          `No earlier assistant message has a tool call with the id '${message.tool_call_id}'.`,
          {
            param: `messages.${index}.tool_call_id`,
          },
        )
      return { role: 'tool', content, tool_call_id: message.tool_call_id, name }
    }
    if (message.role !== 'assistant') return { role: message.role === 'developer' ? 'system' : message.role, content }
    const calls = message.tool_calls ?? []
    for (const call of calls) names.set(call.id, call.function.name)
    return {
      role: 'assistant',
      content,
      ...(takesReasoning && message.reasoning_content != null && { reasoning_content: message.reasoning_content }),
      // Some templates ask only whether the key is there.
      ...(calls.length > 0 && {
        tool_calls: calls.map(({ id, function: { name, arguments: text } }) => ({
          id,
          type: 'function' as const,
          function: { name, arguments: text.trim() || '{}' },
        })),
      }),
    }
  })
}

/** What templates that know tools want of calls in the history. */
export function adaptHistory(messages: TemplateMessage[], format: ToolFormat['name']): TemplateMessage[] {
  const parsed = messages.map(withParsedArguments)
  if (format === 'mistral') return parsed.map(withShortIds)
  return format === 'llama' ? oneCallAMessage(parsed) : parsed
}

export function templateTool({ function: { name, description, parameters } }: Tool): TemplateTool {
  // Templates join these as text or read into them, so they are always there.
  return {
    type: 'function',
    function: { name, description: description ?? '', parameters: parameters ?? { type: 'object', properties: {} } },
  }
}

type Modality = 'text' | 'image'
/** What a model can read. Every model of this engine reads text only; one that sees says so here. */
function modalitiesOf(_model: ChatModel): ReadonlySet<Modality> {
  return new Set(['text'])
}

function contentText(
  content: string | ContentPart[] | null | undefined,
  reads: ReadonlySet<Modality>,
  index: number,
): string {
  if (content == null) return ''
  if (typeof content === 'string') return content
  return content.map((part) => partText(part, reads, index)).join('')
}

function partText(part: ContentPart, reads: ReadonlySet<Modality>, index: number): string {
  if (part.type === 'text') return part.text
  if (part.type === 'refusal') return part.refusal
  const why = reads.has('image')
    ? 'This engine passes no images on.'
    : 'This model reads text only, so it can’t be sent images. Ask a model that sees.'
  throw new ApiError('parameter_not_supported', why, { param: `messages.${index}.content` })
}

/** Templates write arguments as JSON themselves. What is not JSON, or is out of proportion, stays the text it is. */
function withParsedArguments(message: TemplateMessage): TemplateMessage {
  const { tool_calls } = message
  if (!tool_calls) return message
  return {
    ...message,
    tool_calls: tool_calls.map((call) => ({
      ...call,
      function: { ...call.function, arguments: parsed(call.function.arguments) },
    })),
  }
}

function parsed(text: unknown): unknown {
  try {
    const values: unknown = JSON.parse(String(text))
    return isWithin(values, argumentBounds) ? values : text
  } catch {
    return text
  }
}

/**
 * Mistral's templates refuse ids that are not nine letters and digits: others are replaced, the same one always by the
 * same.
 */
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

/** Llama's templates refuse a message of several calls: each gets a message of its own, with its result after it. */
function oneCallAMessage(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const out: TemplateMessage[] = []
  for (let index = 0; index < messages.length; index++) {
    const message = messages[index]!
    if (!message.tool_calls || message.tool_calls.length < 2) {
      out.push(message)
      continue
    }
    const results: TemplateMessage[] = []
    while (messages[index + 1]?.role === 'tool') results.push(messages[++index]!)
    const left = new Set(results)
    for (const call of message.tool_calls) {
      out.push({ ...message, tool_calls: [call] })
      const result = results.find((each) => each.tool_call_id === call.id && left.delete(each))
      if (result) out.push(result)
    }
    out.push(...left)
  }
  return out
}
