import { isUtf8 } from 'node:buffer'

/** Longest line that is read as a row, in bytes; a longer one is an error of its own and is never held in memory. */
export const maxLineBytes = 16 * 1024 * 1024
const maxListedErrors = 100

export const trainableRoles = ['system', 'user', 'assistant'] as const

/** What the structural check found. `errors` lists the first wrong rows, each with its line. */
export interface Check {
  rows: number
  error_count: number
  errors: string[]
  /** Set where the file cannot be read as lines of text at all: the line that is not UTF-8. */
  not_utf8_line?: number
}

/**
 * Checks a JSONL file as it streams by: one row a line, in constant memory. Feed chunks in order with `add`, then take the result from
 * `end`. A byte order mark, CRLF and blank lines are no errors.
 */
export function createRowChecker() {
  const check: Check = { rows: 0, error_count: 0, errors: [] }
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
    if (tooLong) return wrong(`is longer than ${maxLineBytes / 1024 / 1024} MB. Split the example or shorten its text.`)
    if (!isUtf8(bytes)) {
      check.not_utf8_line ??= line
      return
    }
    let text = bytes.toString('utf8')
    if (line === 1 && text.startsWith('\uFEFF')) text = text.slice(1)
    if (/^[ \t\r]*$/.test(text)) return
    check.rows++
    const problem = rowProblem(text)
    if (problem) {
      check.rows--
      wrong(problem)
    }
  }

  function wrong(problem: string) {
    check.rows++
    check.error_count++
    if (check.errors.length < maxListedErrors) check.errors.push(`line ${line} ${problem}`)
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
    end(): Check {
      if (restBytes > 0 || overlong) finishLine(Buffer.alloc(0))
      return check
    },
  }
}

// Python's parser, which reads the row again for the trainer, gives up at some depth.
const maxDepth = 100

function isDeep(value: unknown, levels: number): boolean {
  if (typeof value !== 'object' || value === null) return false
  return levels === 0 || Object.values(value).some((part) => isDeep(part, levels - 1))
}

/** What is wrong with a row and how to mend it, or undefined. */
function rowProblem(text: string): string | undefined {
  let row: unknown
  try {
    row = JSON.parse(text)
  } catch (error) {
    return `is not valid JSON: ${(error as Error).message.slice(0, 200)}`
  }
  if (typeof row !== 'object' || row === null || Array.isArray(row))
    return 'is not a JSON object. Each line must be like {"messages":[{"role":"user","content":"…"},…]}.'
  if (isDeep(row, maxDepth)) return `is nested more than ${maxDepth} levels deep.`
  const { messages } = row as { messages?: unknown }
  if (messages === undefined)
    return `has no 'messages'. Each line must be like {"messages":[{"role":"user","content":"…"},{"role":"assistant","content":"…"}]}.`
  if (!Array.isArray(messages) || messages.length === 0) return `: 'messages' must be a list with at least one message.`
  for (const [index, message] of messages.entries()) {
    if (typeof message !== 'object' || message === null || Array.isArray(message)) return `: messages[${index}] is not an object with 'role' and 'content'.`
    const { role, content } = message as { role?: unknown; content?: unknown }
    if (!trainableRoles.includes(role as 'user'))
      return `: messages[${index}].role is ${JSON.stringify(role) ?? 'missing'}; it must be one of ${trainableRoles.join(', ')}.`
    if (typeof content !== 'string') return `: messages[${index}].content must be a string.`
    if (!content.isWellFormed()) return `: messages[${index}].content has half of a character (a lone surrogate), which no tokenizer can read.`
    if (role === 'assistant' && content.trim() === '') return `: messages[${index}].content is empty; an answer to learn needs text.`
  }
  if ((messages.at(-1) as { role: string }).role !== 'assistant')
    return 'does not end with a message of the assistant. Add the answer that the model should give, or remove what comes after it.'
  return undefined
}
