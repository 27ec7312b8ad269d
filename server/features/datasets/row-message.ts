// The messages and tools of rows: their shape, and what can be wrong with them.
import { picturesMax } from '../../../pictures/formats.ts'
import { isPicture, type PicturePart, pictureProblem } from './row-pictures.ts'
import { isProblem, type Problem } from './row-problem.ts'

const trainableRoles = ['system', 'developer', 'user', 'assistant', 'tool'] as const

/** A message as the trainer reads it. `weight` 0: not learned. */
export interface CanonicalMessage {
  role: string
  /** Parts only where there is a picture. */
  content: string | ({ type: 'text'; text: string } | PicturePart)[]
  reasoning_content?: string
  weight?: 0
  tool_calls?: unknown[]
  tool_call_id?: string
  name?: string
}

type Fields = Record<string, unknown>

/** The text of a message's content, without its pictures. */
export const textOf = ({ content }: Pick<CanonicalMessage, 'content'>): string =>
  typeof content === 'string' ? content : content.map((part) => (isPicture(part) ? '' : part.text)).join('')

/** The fields of an object that are not null: null is the same as absent. */
export function withoutNullFields(value: Fields): Fields {
  const fields: Fields = {}
  for (const name in value) if (value[name] !== null && value[name] !== undefined) fields[name] = value[name]
  return fields
}

const isObject = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The fields of an object that are not null; of anything else none. */
const fieldsOf = (value: unknown): Fields => (isObject(value) ? withoutNullFields(value) : {})

/** The names under which the thoughts before an answer are written; the first that is given is taken. */
const thoughtFields = ['reasoning_content', 'reasoning', 'thinking']
/** `name`, `refusal`, `annotations` and `audio` are OpenAI's, and nothing of them is taught. */
const messageFields = [
  'role',
  'content',
  'weight',
  'train',
  'tool_calls',
  'tool_call_id',
  'name',
  'refusal',
  'annotations',
  'audio',
]

/** Messages in the canonical form, or the first problem of them; `name` is the field that has them. */
export function readMessages(messages: unknown[], name: string): CanonicalMessage[] | Problem {
  const calls = new Set<unknown>()
  const read: CanonicalMessage[] = []
  let pictures = 0
  for (const [index, value] of messages.entries()) {
    const message = readMessage(value, calls)
    if (Array.isArray(message)) return [message[0], `: ${name}[${index}]${message[1]}`]
    read.push(message)
    if (Array.isArray(message.content)) pictures += message.content.filter(isPicture).length
  }
  if (pictures <= picturesMax) return read
  return [
    'too_many_pictures',
    `has ${pictures} pictures; ${picturesMax} is the most of a row. Divide it, or leave some out.`,
  ]
}

/** `calls` has the ids of the calls of earlier messages; those of this one are added. */
function readMessage(value: unknown, calls: Set<unknown>): CanonicalMessage | Problem {
  if (!isObject(value)) return ['message_not_object', ` is not an object with 'role' and 'content'.`]
  const message = withoutNullFields(value)
  const { role, tool_calls, tool_call_id, name } = message
  if (role === 'function' || message.function_call !== undefined)
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
  const content = message.content === undefined && hasCalls ? '' : readContent(message.content, role as string)
  if (isProblem(content)) return content
  const text = textOf({ content })
  if (!text.isWellFormed())
    return ['content_broken', '.content has half of a character (a lone surrogate), which no tokenizer can read.']
  if (role === 'assistant' && text.trim() === '' && !hasCalls)
    return ['answer_empty', '.content is empty; an answer to learn needs text.']
  const read: CanonicalMessage = { role: role as string, content }
  if (typeof name === 'string' && name.isWellFormed()) read.name = name
  const problem =
    (role === 'assistant' ? readThoughts(message, read) : undefined) ??
    readWeight(message, read) ??
    readCalls(message, read, calls)
  if (problem) return problem
  if (role !== 'tool') return read
  if (!calls.has(tool_call_id)) return ['call_unknown', '.tool_call_id is not the id of a call of an earlier message.']
  read.tool_call_id = tool_call_id as string
  return read
}

function readThoughts(message: Fields, read: CanonicalMessage): Problem | undefined {
  const field = thoughtFields.find((candidate) => typeof message[candidate] === 'string' && message[candidate] !== '')
  if (!field) return undefined
  const thoughts = message[field] as string
  if (!thoughts.isWellFormed())
    return ['content_broken', `.${field} has half of a character (a lone surrogate), which no tokenizer can read.`]
  read.reasoning_content = thoughts
  return undefined
}

function readWeight({ role, weight, train }: Fields, read: CanonicalMessage): Problem | undefined {
  if (weight !== undefined && weight !== 0 && weight !== 1)
    return ['weight_invalid', '.weight must be 0 (not learned) or 1 (learned).']
  const learned = typeof train === 'boolean' ? train : undefined
  if (learned !== undefined && weight !== undefined && learned !== (weight === 1))
    return ['weight_invalid', '.weight and .train contradict each other. Leave one of them out.']
  if (role === 'assistant' && (weight === 0 || learned === false)) read.weight = 0
  return undefined
}

function readCalls({ role, tool_calls }: Fields, read: CanonicalMessage, ids: Set<unknown>): Problem | undefined {
  if (tool_calls === undefined) return undefined
  if (role !== 'assistant' || !Array.isArray(tool_calls))
    return ['calls_invalid', '.tool_calls must be a list, in a message of the assistant.']
  const calls: unknown[] = []
  for (const [index, value] of tool_calls.entries()) {
    const { id, type, function: called } = fieldsOf(value)
    const { name, arguments: text } = fieldsOf(called)
    const call = { id, type, function: { name, arguments: text } }
    const problem = callProblem(call)
    if (problem) return ['call_invalid', `.tool_calls[${index}]${problem}`]
    calls.push(call)
    ids.add(id)
  }
  if (calls.length > 0) read.tool_calls = calls
  return undefined
}

/** Warnings about the fields of messages that nothing reads: one for each name, with its first place. */
export function messageWarnings(messages: unknown[], name: string): Problem[] {
  let warned: Map<string, number> | undefined
  for (const [index, message] of messages.entries())
    for (const field in message as Fields)
      if (!isRead(field, message as Fields) && !warned?.has(field)) {
        warned ??= new Map()
        warned.set(field, index)
      }
  return [...(warned ?? [])].map(([field, index]) => {
    const near = [...messageFields, ...thoughtFields].find((candidate) => isMisspelt(field, candidate))
    return [
      'field_unknown',
      `: ${name}[${index}] has the field '${field.slice(0, 60)}', which nothing reads.` +
        (near ? ` Is '${near}' meant?` : ''),
    ]
  })
}

function isRead(field: string, message: Fields): boolean {
  const value = message[field]
  if (value === null || value === undefined) return true
  if (field === 'train') return typeof value === 'boolean'
  if (thoughtFields.includes(field)) return message.role === 'assistant' && typeof value === 'string'
  return messageFields.includes(field)
}

/** Whether a name is another one with a letter more, less, or other, or with two neighbours exchanged. */
function isMisspelt(written: string, name: string): boolean {
  if (Math.abs(written.length - name.length) > 1) return false
  let start = 0
  while (start < name.length && written[start] === name[start]) start++
  let end = 0
  while (end < name.length - start && written.at(-1 - end) === name.at(-1 - end)) end++
  const [one, other] = [written.slice(start, written.length - end), name.slice(start, name.length - end)]
  return one.length + other.length <= 2 || (one.length === 2 && one === [...other].reverse().join(''))
}

/** A text, or a list of parts: texts and, from the user, pictures. Without pictures it becomes a text. */
function readContent(content: unknown, role: string): CanonicalMessage['content'] | Problem {
  if (typeof content === 'string') return content
  if (!Array.isArray(content) || content.length === 0)
    return ['content_not_text', '.content must be a string, or a list of parts.']
  const parts: Exclude<CanonicalMessage['content'], string> = []
  for (const [index, value] of content.entries()) {
    const at = `.content[${index}]`
    const part = fieldsOf(value)
    const last = parts.at(-1)
    if (isPicture(part)) {
      if (role !== 'user')
        return [
          'picture_misplaced',
          `${at} is a picture in a message of the role ${role}. Only messages of the user may have pictures.`,
        ]
      const { url, detail } = fieldsOf(part.image_url)
      const picture = { type: 'image_url', image_url: isObject(part.image_url) ? { url, detail } : part.image_url }
      const problem = pictureProblem(picture)
      if (problem) return [problem[0], `${at}${problem[1]}`]
      parts.push(picture as PicturePart)
    } else if (part.type !== 'text' || typeof part.text !== 'string')
      return [
        'content_not_text',
        `${at} must be {"type":"text","text":"…"} or, from the user, ` +
          '{"type":"image_url","image_url":{"url":"data:image/png;base64,…"}}.',
      ]
    else if (last?.type === 'text') last.text += part.text
    else parts.push({ type: 'text', text: part.text })
  }
  const [only, ...others] = parts
  return only!.type === 'text' && others.length === 0 ? only!.text : parts
}

function callProblem({
  id,
  type,
  function: called,
}: {
  id: unknown
  type: unknown
  function: { name: unknown; arguments: unknown }
}): string | undefined {
  if (typeof id !== 'string' || id === '') return ".id must be a text, which the tool's message repeats."
  if (type !== 'function') return ".type must be 'function'."
  if (typeof called.name !== 'string' || called.name === '') return '.function.name must be the name of a tool.'
  const values = typeof called.arguments === 'string' ? parsed(called.arguments) : undefined
  if (!isObject(values)) return '.function.arguments must be a JSON object, written as a string.'
  return hasLoneSurrogate([id, called, values]) ? ' has half of a character (a lone surrogate).' : undefined
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** The tools of a row, if it has some; or the first problem of them. */
export function readTools(tools: unknown): { tools?: unknown[] } | Problem {
  if (tools == null) return {}
  if (!Array.isArray(tools)) return ['tools_invalid', ": 'tools' must be a list."]
  const read: unknown[] = []
  for (const [index, value] of tools.entries()) {
    const tool = fieldsOf(value)
    const offered = fieldsOf(tool.function)
    const { name, parameters, description } = offered
    const isGood =
      tool.type === 'function' &&
      typeof name === 'string' &&
      name !== '' &&
      (description === undefined || typeof description === 'string') &&
      (parameters === undefined || isObject(parameters)) &&
      !hasLoneSurrogate([tool, offered])
    if (!isGood)
      return [
        'tools_invalid',
        `: tools[${index}] must be like ` +
          '{"type":"function","function":{"name":"…","description":"…","parameters":{…}}}.',
      ]
    read.push({ ...tool, function: offered })
  }
  return read.length > 0 ? { tools: read } : {}
}

/** Whether a text in it, or the name of a field, has half of a character. */
function hasLoneSurrogate(value: unknown): boolean {
  if (typeof value === 'string') return !value.isWellFormed()
  if (typeof value !== 'object' || value === null) return false
  return Object.entries(value).some(([name, part]) => !name.isWellFormed() || hasLoneSurrogate(part))
}
