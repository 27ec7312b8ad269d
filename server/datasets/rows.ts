import { isUtf8 } from 'node:buffer'
import { createDuplicateFinder } from './duplicates.ts'
import { type RowMessage, textOf } from './row-message.ts'

/** The longest line that is parsed as a row, in bytes. A longer one is reported and never buffered. */
export const maxLineBytes = 16 * 1024 * 1024
/** How many errors, and how many warnings, are listed. */
export const maxListed = 100

export const trainableRoles = ['system', 'developer', 'user', 'assistant', 'tool'] as const

/** An error or a warning about a row. The codes are stable. */
export interface Issue {
  line: number
  code: string
  message: string
  /** The earlier line that this one repeats. */
  first_line?: number
}

/**
 * The result of the structural check. The lists have the first hundred; `errors` has the `issues` as sentences that
 * begin with the line.
 */
export interface Check {
  rows: number
  error_count: number
  errors: string[]
  issues: Issue[]
  warning_count: number
  warnings: Issue[]
  /** Rows that repeat an earlier row exactly. */
  duplicates: number
  /** Rows that repeat an earlier prompt with another answer. */
  conflicts: number
  /** The first line that is not UTF-8, if there is one. */
  not_utf8_line?: number
}

/** Collects errors and warnings about rows, in constant memory apart from a hash per row. */
export function createCheck() {
  const check: Check = {
    rows: 0,
    error_count: 0,
    errors: [],
    issues: [],
    warning_count: 0,
    warnings: [],
    duplicates: 0,
    conflicts: 0,
  }
  const finder = createDuplicateFinder()
  const duplicate = ([line, first_line]: [number, number]): Issue => ({
    line,
    code: 'duplicate',
    message: `is an exact duplicate of line ${first_line}.`,
    first_line,
  })
  const conflict = ([line, first_line]: [number, number]): Issue => ({
    line,
    code: 'conflicting_answer',
    message: `has the prompt of line ${first_line} with another answer. Keep one of them, unless both are meant.`,
    first_line,
  })
  return {
    check,
    addInvalid(line: number, [code, message]: Problem): void {
      check.rows++
      check.error_count++
      if (check.issues.length === maxListed) return
      const { issue, error } = describeProblem(line, [code, message])
      check.issues.push(issue)
      check.errors.push(error)
    },
    addValid(line: number, bytes: Buffer, row: unknown): void {
      check.rows++
      finder.add(line, bytes, 'tools' in (row as object) ? [] : (row as Row).messages)
      for (const [code, message] of warningsOf(row as Row)) {
        check.warning_count++
        if (check.warnings.length < maxListed) check.warnings.push({ line, code, message })
      }
    },
    /** Backpressure of the duplicate finder: resolves when more rows may be added. */
    ready: finder.ready,
    async end(): Promise<Check> {
      const { duplicates, conflicts } = await finder.end()
      check.duplicates = duplicates.count
      check.conflicts = conflicts.count
      check.warning_count += duplicates.count + conflicts.count
      check.warnings = [...check.warnings, ...duplicates.lines.map(duplicate), ...conflicts.lines.map(conflict)]
        .sort((a, b) => a.line - b.line)
        .slice(0, maxListed)
      return check
    },
  }
}

/**
 * Streaming check of a JSONL file: feed chunks in order with `add`, then get the result from `end`. A byte order mark,
 * CRLF and blank lines are allowed.
 */
export function createRowChecker() {
  const { check, addInvalid: wrong, addValid: good, ready, end } = createCheck()
  let line = 0
  let rest: Buffer[] = []
  let restBytes = 0
  let overlong = false

  function finishLine(piece: Buffer) {
    line++
    const bytes = restBytes === 0 ? piece : Buffer.concat([...rest, piece])
    const tooLong = overlong || bytes.length > maxLineBytes
    rest = []
    restBytes = 0
    overlong = false
    if (tooLong)
      return wrong(line, [
        'line_too_long',
        `is longer than ${maxLineBytes / 1024 / 1024} MB. Split the example or shorten its text.`,
      ])
    let text = bytes.toString('utf8')
    // Invalid UTF-8 decodes to U+FFFD. Valid rows rarely have it, so the exact check is rarely needed.
    if (text.includes('\uFFFD') && !isUtf8(bytes)) {
      check.not_utf8_line ??= line
      return
    }
    if (line === 1 && text.startsWith('\uFEFF')) text = text.slice(1)
    if (text[0] !== '{' && /^[ \t\r]*$/.test(text)) return
    let row: unknown
    try {
      row = JSON.parse(text)
    } catch (error) {
      return wrong(line, ['invalid_json', `is not valid JSON: ${(error as Error).message.slice(0, 200)}`])
    }
    const problem = rowProblem(row)
    if (problem) wrong(line, problem)
    else good(line, bytes, row)
  }

  return {
    add(chunk: Buffer): void {
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        finishLine(chunk.subarray(from, at))
        from = at + 1
      }
      if (from === chunk.length || overlong) return
      if (restBytes + chunk.length - from > maxLineBytes) {
        overlong = true
        rest = []
        restBytes = 0
        return
      }
      rest.push(Buffer.from(chunk.subarray(from)))
      restBytes += chunk.length - from
    },
    rows: () => check.rows,
    ready,
    async end(): Promise<Check> {
      if (restBytes > 0 || overlong) finishLine(Buffer.alloc(0))
      return end()
    },
  }
}

// Python's JSON parser, which the trainer uses, has a recursion limit.
const maxDepth = 100

function isDeep(value: object, levels: number): boolean {
  if (levels === 0) return true
  const parts: unknown[] = Array.isArray(value) ? value : Object.values(value)
  for (const part of parts) if (typeof part === 'object' && part !== null && isDeep(part, levels - 1)) return true
  return false
}

/**
 * A code and a message that continues a sentence about the row ("line 3 …"). A message that is a full sentence begins
 * with a colon.
 */
export type Problem = [code: string, message: string]

/** A problem of a row as an issue, and as the sentence of `errors`. */
export function describeProblem(line: number, [code, message]: Problem): { issue: Issue; error: string } {
  const sentence = message.replace(/^: /, '')
  return {
    issue: { line, code, message: sentence },
    error: sentence === message ? `line ${line} ${sentence}` : `line ${line}: ${sentence}`,
  }
}

interface Row {
  messages: RowMessage[]
}

const exampleRow = '{"messages":[{"role":"user","content":"…"},{"role":"assistant","content":"…"}]}'

/** The first problem of a row, or undefined. */
export function rowProblem(row: unknown): Problem | undefined {
  if (typeof row !== 'object' || row === null || Array.isArray(row))
    return ['not_an_object', `is not a JSON object. Each row must be like ${exampleRow}.`]
  if (isDeep(row, maxDepth)) return ['too_deep', `is nested more than ${maxDepth} levels deep.`]
  const { messages, tools } = row as { messages?: unknown; tools?: unknown }
  if ('functions' in row)
    return ['functions_outdated', "has 'functions', the old form of tools. Write them as 'tools'."]
  if (messages === undefined && 'preferred_output' in row) return preferenceProblem(row)
  if (messages === undefined) return ['messages_missing', `has no 'messages'. Each row must be like ${exampleRow}.`]
  if (!Array.isArray(messages) || messages.length === 0)
    return ['messages_empty', `: 'messages' must be a list with at least one message.`]
  const problem = messagesProblem(messages, 'messages') ?? toolsProblem(tools)
  if (problem) return problem
  if ((messages.at(-1) as { role: string }).role !== 'assistant')
    return [
      'no_answer_at_end',
      'does not end with a message of the assistant. Add the answer that the model should give, or ' +
        'remove what comes after it.',
    ]
  if ((messages as Row['messages']).every(({ role, weight }) => role !== 'assistant' || weight === 0))
    return [
      'nothing_to_learn',
      ': every message of the assistant has the weight 0, so the row teaches nothing. Remove it, or give ' +
        'one the weight 1.',
    ]
  return undefined
}

function messagesProblem(messages: unknown[], name: string): Problem | undefined {
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

function toolsProblem(tools: unknown): Problem | undefined {
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
      (parameters == null || (typeof parameters === 'object' && !Array.isArray(parameters)))
    if (!isGood)
      return [
        'tools_invalid',
        `: tools[${index}] must be like {"type":"function","function":{"name":"…","description":"…","parameters":{…}}}.`,
      ]
  }
  return undefined
}

/** A row of preferences, in OpenAI's form: what is wrong with it, or that only preference tuning learns from it. */
function preferenceProblem(row: object): Problem {
  const { input, preferred_output, non_preferred_output } = row as Record<string, unknown>
  const { messages, tools } = Object(input) as Record<string, unknown>
  if (!Array.isArray(messages) || messages.length === 0)
    return ['preference_invalid', ": 'input.messages' must be a list with at least one message."]
  const found = messagesProblem(messages, 'input.messages') ?? toolsProblem(tools)
  if (found) return found
  for (const [name, output] of Object.entries({ preferred_output, non_preferred_output })) {
    if (!Array.isArray(output) || output.length !== 1 || output[0]?.role !== 'assistant')
      return ['preference_invalid', `: '${name}' must be a list with one message of the assistant.`]
    const problem = messagesProblem(output, name)
    if (problem) return problem
  }
  return [
    'preference_row',
    'is a row of preferences. Supervised training learns from one answer: write the preferred one as the last message ' +
      `of a row like ${exampleRow}.`,
  ]
}

/** Warnings about a valid row. */
function warningsOf({ messages }: Row): Problem[] {
  const found: Problem[] = []
  if (messages.some((message) => message.role === 'user' && textOf(message).trim() === ''))
    found.push(['question_empty', 'has a message of the user without text.'])
  if (messages[0]!.role === 'assistant')
    found.push(['no_question', 'begins with the assistant; most models expect a message of the user before it.'])
  return found
}
