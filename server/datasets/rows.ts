import { isUtf8 } from 'node:buffer'
import type { Objective } from '../../contract/hyperparameters.ts'
import { createDuplicateFinder } from './duplicates.ts'
import { isPair, isRated, pairProblem, pairWarnings, ratedProblem } from './preference-rows.ts'
import { maxListed } from './row-comparison.ts'
import { messagesProblem, type Problem, type RowMessage, textOf, toolsProblem } from './row-message.ts'
import { createPictureCheck, isPicture, type PlacedPicture, withoutPictures } from './row-pictures.ts'

/** The longest row of text, in bytes of its line. */
export const maxLineBytes = 16 * 1024 * 1024
/**
 * The longest row with pictures, in bytes of its line: 24 MB of pictures, as base64 takes 4 bytes for 3. A longer line is
 * reported and never buffered. The server and the trainer hold such rows in memory several times over.
 */
export const maxPictureLineBytes = 32 * 1024 * 1024

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
  /** What all valid rows can teach. Missing in checks of earlier versions, whose rows are conversations. */
  objectives?: Objective[]
  /** How many pictures the valid rows have. Missing in checks of earlier versions, whose rows have none. */
  pictures?: number
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
  let objectives: Objective[] | undefined
  let pictures = 0

  function addInvalid(line: number, [code, message]: Problem): void {
    check.rows++
    check.error_count++
    if (check.issues.length === maxListed) return
    const { issue, error } = describeProblem(line, [code, message])
    check.issues.push(issue)
    check.errors.push(error)
  }

  return {
    check,
    addInvalid,
    /**
     * Adds a row without problems. False, and invalid, if it teaches something else than the rows before it. `bytes` are
     * the row as it is compared with others; one with pictures (`found`) is compared by their hashes.
     */
    addValid(line: number, bytes: Buffer, row: object, found: PlacedPicture[]): boolean {
      const own = objectivesOf(row)
      const common = objectives?.filter((each) => own.includes(each)) ?? own
      if (common.length === 0) {
        addInvalid(line, kindDiffers(own, objectives!))
        return false
      }
      objectives = common
      check.rows++
      pictures += found.length
      finder.add(
        line,
        found.length > 0 ? Buffer.from(withoutPictures(row)) : bytes,
        'tools' in row || !('messages' in row) ? [] : (row as Row).messages,
      )
      for (const [code, message] of warningsOf(row as Row)) {
        check.warning_count++
        if (check.warnings.length < maxListed) check.warnings.push({ line, code, message })
      }
      return true
    },
    /** Backpressure of the duplicate finder: resolves when more rows may be added. */
    ready: finder.ready,
    async end(): Promise<Check> {
      const { duplicates, conflicts } = await finder.end()
      check.objectives = objectives ?? []
      check.pictures = pictures
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

const kinds: Record<Objective, string> = { sft: 'a conversation', dpo: 'a pair of answers', kto: 'a rated answer' }
const kindDiffers = (own: Objective[], others: Objective[]): Problem => [
  'kind_differs',
  `is ${kinds[own[0]!]}, and the rows before it are each ${kinds[others[0]!]}. A dataset has rows of one kind: divide it.`,
]

/**
 * Streaming check of a JSONL file: feed chunks in order with `add`, one after the other, then get the result from `end`.
 * A byte order mark, CRLF and blank lines are allowed. `known` are problems found before, by line.
 */
export function createRowChecker(known: ReadonlyMap<number, Problem> = new Map()) {
  const pictureCheck = createPictureCheck()
  const { check, addInvalid: wrong, addValid: good, ready, end } = createCheck()
  let line = 0
  let rest: Buffer[] = []
  let restBytes = 0
  let overlong = false

  /** Resolves once the row's pictures are decoded; undefined for a row without any. */
  function finishLine(piece: Buffer): Promise<void> | undefined {
    line++
    const bytes = restBytes === 0 ? piece : Buffer.concat([...rest, piece])
    const tooLong = overlong ? lineTooLong : lengthProblem(bytes)
    rest = []
    restBytes = 0
    overlong = false
    if (tooLong) return void wrong(line, tooLong)
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
      return void wrong(line, ['invalid_json', `is not valid JSON: ${(error as Error).message.slice(0, 200)}`])
    }
    const problem = known.get(line) ?? rowProblem(row)
    if (problem) return void wrong(line, problem)
    const pictures = picturesOf(row as object)
    if (pictures.length === 0) return void good(line, bytes, row as object, pictures)
    return pictureCheck.problemOf(pictures).then((damage) => {
      if (damage) wrong(line, damage)
      else good(line, bytes, row as object, pictures)
    })
  }

  return {
    async add(chunk: Buffer): Promise<void> {
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        const decoding = finishLine(chunk.subarray(from, at))
        // Most rows have no pictures; waiting for each would take longer than its check.
        if (decoding) await decoding
        from = at + 1
      }
      if (from === chunk.length || overlong) return
      if (restBytes + chunk.length - from > maxPictureLineBytes) {
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
      if (restBytes > 0 || overlong) await finishLine(Buffer.alloc(0))
      pictureCheck.close()
      return end()
    },
  }
}

const megabytes = (bytes: number) => `${bytes / 1024 / 1024} MB`
const lineTooLong: Problem = [
  'line_too_long',
  `is longer than ${megabytes(maxLineBytes)}, or ${megabytes(maxPictureLineBytes)} with pictures. Split the example, ` +
    'shorten its text, or make its pictures smaller.',
]

/** The problem of a line that is too long for what it has. */
export function lengthProblem(line: Buffer): Problem | undefined {
  const most = line.length > maxLineBytes && line.includes('"image_url"') ? maxPictureLineBytes : maxLineBytes
  return line.length > most ? lineTooLong : undefined
}

// Python's JSON parser, which the trainer uses, has a recursion limit.
const maxDepth = 100

function isDeep(value: object, levels: number): boolean {
  if (levels === 0) return true
  const parts: unknown[] = Array.isArray(value) ? value : Object.values(value)
  for (const part of parts) if (typeof part === 'object' && part !== null && isDeep(part, levels - 1)) return true
  return false
}

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
  const found = objectivesOf(row)
  if (found.length === 0) return ['messages_missing', `has no 'messages'. Each row must be like ${exampleRow}.`]
  for (const objective of found) {
    const problem = problems[objective](row)
    if (problem) return problem
  }
  return undefined
}

const problems: Record<Objective, (row: object) => Problem | undefined> = {
  sft: conversationProblem,
  dpo: pairProblem,
  kto: ratedProblem,
}

/** What a row can teach, by the fields that it has. */
function objectivesOf(row: object): Objective[] {
  const found: Objective[] = []
  if ('messages' in row) found.push('sft')
  if (isPair(row)) found.push('dpo')
  if (isRated(row)) found.push('kto')
  return found
}

/**
 * The pictures of a row without problems. Of a pair whose answers are whole conversations, those of the chosen one: the
 * rejected one has the same.
 */
export function picturesOf(row: object): PlacedPicture[] {
  const { messages, prompt, chosen, input } = row as Record<string, unknown>
  const lists = {
    messages,
    ...((isPair(row) || isRated(row)) && { prompt, chosen, 'input.messages': Object(input).messages }),
  }
  const found: PlacedPicture[] = []
  for (const [field, list] of Object.entries(lists)) {
    if (!Array.isArray(list)) continue
    for (const [index, message] of list.entries()) {
      const { content } = Object(message)
      if (!Array.isArray(content)) continue
      for (const [number, part] of content.entries()) {
        // In a field that the row's kind does not read, anything may be.
        const url = isPicture(part) ? Object(part.image_url).url : undefined
        if (typeof url === 'string') found.push({ at: `${field}[${index}].content[${number}]`, url })
      }
    }
  }
  return found
}

function conversationProblem(row: object): Problem | undefined {
  const { messages, tools } = row as { messages?: unknown; tools?: unknown }
  if ('functions' in row)
    return ['functions_outdated', "has 'functions', the old form of tools. Write them as 'tools'."]
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

/** Warnings about a valid row. */
function warningsOf(row: Row): Problem[] {
  return [...('messages' in row ? conversationWarnings(row) : []), ...(isPair(row) ? pairWarnings(row) : [])]
}

function conversationWarnings({ messages }: Row): Problem[] {
  const found: Problem[] = []
  if (messages.some((message) => message.role === 'user' && textOf(message).trim() === '' && !hasPicture(message)))
    found.push(['question_empty', 'has a message of the user without text.'])
  if (messages[0]!.role === 'assistant')
    found.push(['no_question', 'begins with the assistant; most models expect a message of the user before it.'])
  return found
}

const hasPicture = ({ content }: RowMessage) => Array.isArray(content) && content.some(isPicture)
