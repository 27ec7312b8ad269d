// The messages and tools of rows: their shape, and what can be wrong with them.

export const trainableRoles = ['system', 'developer', 'user', 'assistant', 'tool'] as const

/**
 * A code and a message that continues a sentence about the row ("line 3 …"). A message that is a full sentence begins
 * with a colon.
 */
export type Problem = [code: string, message: string]

/** A message of a valid row. Its content is missing only beside tool calls. */
export interface RowMessage {
  role: string
  content?: string | { type: 'text'; text: string }[] | null
  weight?: number
  tool_calls?: unknown[] | null
}

/** The text of a message's content. */
export const textOf = ({ content }: Pick<RowMessage, 'content'>): string =>
  typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('')

/** The first problem of messages; `name` is the field that has them. */
export function messagesProblem(messages: unknown[], name: string): Problem | undefined {
  const calls = new Set<unknown>()
  for (let index = 0; index < messages.length; index++) {
    const problem = messageProblem(messages[index], calls)
    if (problem) return [problem[0], `: ${name}[${index}]${problem[1]}`]
  }
  return undefined
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
  if (!isContent(content) && !(content == null && hasCalls))
    return ['content_not_text', '.content must be a string, or a list of parts of text.']
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

const isContent = (content: unknown): boolean =>
  typeof content === 'string' ||
  (Array.isArray(content) &&
    content.length > 0 &&
    content.every((part) => part?.type === 'text' && typeof part.text === 'string'))

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
