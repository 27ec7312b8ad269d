// The messages and tools of rows: their shape, and what can be wrong with them.
import { picturesMax } from '../../pictures/formats.ts'
import { isPicture, type PicturePart, pictureProblem } from './row-pictures.ts'

export const trainableRoles = ['system', 'developer', 'user', 'assistant', 'tool'] as const

/**
 * A code and a message that continues a sentence about the row ("line 3 …"). A message that is a full sentence begins
 * with a colon.
 */
export type Problem = [code: string, message: string]

/** A message of a valid row. Its content is missing only beside tool calls. */
export interface RowMessage {
  role: string
  content?: string | ({ type: 'text'; text: string } | PicturePart)[] | null
  weight?: number
  tool_calls?: unknown[] | null
}

/** The text of a message's content, without its pictures. */
export const textOf = ({ content }: Pick<RowMessage, 'content'>): string =>
  typeof content === 'string' ? content : (content ?? []).map((part) => (isPicture(part) ? '' : part.text)).join('')

/** The first problem of messages; `name` is the field that has them. */
export function messagesProblem(messages: unknown[], name: string): Problem | undefined {
  const calls = new Set<unknown>()
  let pictures = 0
  for (let index = 0; index < messages.length; index++) {
    const problem = messageProblem(messages[index], calls)
    if (problem) return [problem[0], `: ${name}[${index}]${problem[1]}`]
    const { content } = messages[index] as RowMessage
    if (Array.isArray(content)) pictures += content.filter(isPicture).length
  }
  return pictures > picturesMax
    ? [
        'too_many_pictures',
        `has ${pictures} pictures; ${picturesMax} is the most of a row. Divide it, or leave some out.`,
      ]
    : undefined
}

/** `calls` has the ids of the calls of earlier messages; those of this one are added. */
function messageProblem(message: unknown, calls: Set<unknown>): Problem | undefined {
  if (typeof message !== 'object' || message === null || Array.isArray(message))
    return ['message_not_object', ` is not an object with 'role' and 'content'.`]
  const { role, content, weight, tool_calls, tool_call_id, function_call } = message as Record<string, unknown>
  if (role === 'function' || function_call != null)
    return [
      'functions_outdated',
      " uses 'function_call', the old form of calls. Write it as 'tool_calls' and role 'tool'.",
    ]
  if (!trainableRoles.includes(role as 'user'))
    return [
      'role_unknown',
      `.role is ${JSON.stringify(role)?.slice(0, 60) ?? 'missing'}; it must be one of ${trainableRoles.join(', ')}.`,
    ]
  const hasCalls = Array.isArray(tool_calls) && tool_calls.length > 0
  const wrong = content == null && hasCalls ? undefined : contentProblem(content, role as string)
  if (wrong) return wrong
  const text = textOf(message as RowMessage)
  if (!text.isWellFormed())
    return ['content_broken', '.content has half of a character (a lone surrogate), which no tokenizer can read.']
  if (role === 'assistant' && text.trim() === '' && !hasCalls)
    return ['answer_empty', '.content is empty; an answer to learn needs text.']
  if (weight !== undefined && weight !== 0 && weight !== 1)
    return ['weight_invalid', '.weight must be 0 (not learned) or 1 (learned).']
  if (tool_calls != null) {
    if (role !== 'assistant' || !Array.isArray(tool_calls))
      return ['calls_invalid', '.tool_calls must be a list, in a message of the assistant.']
    for (const [index, call] of tool_calls.entries()) {
      const problem = callProblem(call)
      if (problem) return ['call_invalid', `.tool_calls[${index}]${problem}`]
      calls.add((call as { id: string }).id)
    }
  }
  if (role === 'tool' && !calls.has(tool_call_id))
    return ['call_unknown', '.tool_call_id is not the id of a call of an earlier message.']
  return undefined
}

/** A text, or a list of parts: texts and, from the user, pictures. */
function contentProblem(content: unknown, role: string): Problem | undefined {
  if (typeof content === 'string') return undefined
  if (!Array.isArray(content) || content.length === 0)
    return ['content_not_text', '.content must be a string, or a list of parts.']
  for (const [index, part] of content.entries()) {
    const at = `.content[${index}]`
    if (isPicture(part)) {
      if (role !== 'user')
        return [
          'picture_misplaced',
          `${at} is a picture in a message of the role ${role}. Only messages of the user may have pictures.`,
        ]
      const problem = pictureProblem(part)
      if (problem) return [problem[0], `${at}${problem[1]}`]
    } else if (part?.type !== 'text' || typeof part.text !== 'string')
      return [
        'content_not_text',
        `${at} must be {"type":"text","text":"…"} or, from the user, ` +
          '{"type":"image_url","image_url":{"url":"data:image/png;base64,…"}}.',
      ]
  }
  return undefined
}

function callProblem(call: unknown): string | undefined {
  const { id, type, function: called } = Object(call)
  if (typeof id !== 'string' || id === '') return ".id must be a text, which the tool's message repeats."
  if (type !== 'function') return ".type must be 'function'."
  if (typeof called?.name !== 'string' || called.name === '') return '.function.name must be the name of a tool.'
  if (typeof called.arguments !== 'string' || !isJsonObject(called.arguments))
    return '.function.arguments must be a JSON object, written as a string.'
  return JSON.stringify(call).isWellFormed() ? undefined : ' has half of a character (a lone surrogate).'
}

function isJsonObject(text: string): boolean {
  try {
    const value = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
  } catch {
    return false
  }
}

export function toolsProblem(tools: unknown): Problem | undefined {
  if (tools == null) return undefined
  if (!Array.isArray(tools)) return ['tools_invalid', ": 'tools' must be a list."]
  for (const [index, tool] of tools.entries()) {
    const { type, function: offered } = Object(tool)
    const { name, parameters, description } = Object(offered)
    const isGood =
      type === 'function' &&
      typeof name === 'string' &&
      name !== '' &&
      (description == null || typeof description === 'string') &&
      (parameters == null || (typeof parameters === 'object' && !Array.isArray(parameters))) &&
      JSON.stringify(tool).isWellFormed()
    if (!isGood)
      return [
        'tools_invalid',
        `: tools[${index}] must be like {"type":"function","function":{"name":"…","description":"…","parameters":{…}}}.`,
      ]
  }
  return undefined
}
