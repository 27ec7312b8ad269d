// The structural check of uploaded rows, of any format: errors, warnings, duplicates. Valid rows are written in the
// canonical form (canonical.ts).
import { isUtf8 } from 'node:buffer'
import type { Objective } from '../../../contract/hyperparameters.ts'
import {
  canonicalLine,
  canonicalOf,
  noAnswer,
  picturesOf,
  type ReadOptions,
  recordProblem,
  saidBy,
  type UploadedRow,
  uploadedRow,
  type ValidRow,
} from './canonical.ts'
import { createDuplicateFinder } from './duplicates.ts'
import { maxListed } from './row-comparison.ts'
import { createPictureCheck, type PictureCheck, withoutPictures } from './row-pictures.ts'
import type { Problem } from './row-problem.ts'

/** The longest row of text, in bytes of its line. */
export const maxLineBytes = 16 * 1024 * 1024
/**
 * The longest row with pictures, in bytes of its line: 24 MB of pictures, as base64 takes 4 bytes for 3. A longer line
 * is reported and never buffered. The server and the trainer hold such rows in memory several times over.
 */
export const maxPictureLineBytes = 32 * 1024 * 1024

/** An error or a warning about a row. The codes are stable. */
export interface Issue {
  line: number
  code: string
  message: string
  /** The earlier line that this one repeats. */
  first_line?: number | undefined
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
  /** Whether all rated answers are the same. Missing where rows are not rated, and in checks of earlier versions. */
  answers_equal?: boolean
  /** The first line that is not UTF-8, if there is one. */
  not_utf8_line?: number
}

/** Collects errors and warnings about rows, in constant memory apart from a hash per row. */
function createCheck() {
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
  let firstAnswer: string | undefined
  let answers_equal = true

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
     * Adds a row without problems, and returns its number among them. Undefined, and invalid, if it teaches something
     * else than the rows before it. `bytes` are the row as it is compared with others; one with pictures is compared by
     * their hashes.
     */
    addValid(line: number, bytes: Buffer, valid: ValidRow): number | undefined {
      const { row, warnings } = valid
      const common = objectives?.filter((objective) => valid.objectives.includes(objective)) ?? valid.objectives
      if (common.length === 0) {
        addInvalid(line, kindDiffers(valid.objectives, objectives!))
        return undefined
      }
      objectives = common
      if (answers_equal && common.includes('kto')) {
        const answer = saidBy(row.messages!.at(-1)!)
        firstAnswer ??= answer
        answers_equal = answer === firstAnswer
      }
      check.rows++
      const count = picturesOf(row).length
      pictures += count
      finder.add(
        line,
        count > 0 ? Buffer.from(withoutPictures(row)) : bytes,
        row.tools || row.prompt ? [] : (row.messages ?? []),
      )
      check.warning_count += warnings.length
      for (const warning of warnings)
        if (check.warnings.length < maxListed) check.warnings.push(describeProblem(line, warning).issue)
      return check.rows - check.error_count
    },
    /** Backpressure of the duplicate finder: resolves when more rows may be added. */
    ready: finder.ready,
    async end(): Promise<Check> {
      const { duplicates, conflicts } = await finder.end()
      check.objectives = objectives ?? []
      check.pictures = pictures
      if (objectives?.includes('kto')) check.answers_equal = answers_equal
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

const kinds: Record<Objective, string> = {
  sft: 'a conversation',
  dpo: 'a pair of answers',
  kto: 'a rated answer',
  reinforcement: 'a prompt without an answer',
}
const kindDiffers = (objectives: Objective[], others: Objective[]): Problem =>
  objectives[0] === 'reinforcement' ? noAnswer : differentKind(objectives, others)
const differentKind = (objectives: Objective[], others: Objective[]): Problem => [
  'kind_differs',
  `is ${kinds[objectives[0]!]}, and the rows before it are each ${kinds[others[0]!]}. ` +
    'A dataset has rows of one kind: divide it.',
]

/** Adds rows to a check, with their pictures decoded, and writes the valid ones in the canonical form. */
export function createRowWriter(write: (line: string) => void = () => {}) {
  const { check, addInvalid, addValid, ready, end } = createCheck()
  const pictureCheck = createPictureCheck()

  function writeValid(line: number, bytes: Buffer, valid: ValidRow, { fields }: UploadedRow): void {
    const number = addValid(line, bytes, valid)
    if (number !== undefined) write(canonicalLine(valid, fields, number, line))
  }

  return {
    check,
    pictureCheck: pictureCheck as PictureCheck,
    addInvalid,
    /** Resolves once the row's pictures are decoded; undefined for a row without any. */
    add(line: number, bytes: Buffer, uploaded: UploadedRow): Promise<void> | undefined {
      const valid = canonicalOf(uploaded)
      if (Array.isArray(valid)) return void addInvalid(line, valid)
      const pictures = picturesOf(valid.row)
      if (pictures.length === 0) return void writeValid(line, bytes, valid, uploaded)
      return pictureCheck.problemOf(pictures).then((damage) => {
        if (damage) addInvalid(line, damage)
        else writeValid(line, bytes, valid, uploaded)
      })
    },
    ready,
    async end(): Promise<Check> {
      pictureCheck.close()
      return await end()
    },
  }
}

interface CheckerOptions {
  columns?: ReadOptions['columns']
  /** Receives each valid row in the canonical form. */
  write?: (line: string) => void
  /** Replaces addresses of pictures in a row; undefined for a row without any. */
  embed?: (row: object, pictures: PictureCheck) => Promise<Problem | undefined> | undefined
  /** The line in the file of a line that is read, where these differ. */
  lineOf?: ((line: number) => number) | undefined
  /** Rows that an earlier version wrote of another format have their line in `source_line`. */
  source_lines?: boolean
}

/**
 * Streaming check of a JSONL file: feed chunks in order with `add`, one after the other, then get the result from
 * `end`. A byte order mark, CRLF and blank lines are allowed.
 */
export function createRowChecker({ columns, write, embed, lineOf, source_lines }: CheckerOptions = {}) {
  const writer = createRowWriter(write)
  const { check, addInvalid: wrong } = writer
  let physicalLine = 0
  let rest: Buffer[] = []
  let restBytes = 0
  let overlong = false

  /** Resolves once the row's pictures are here and decoded; undefined for a row without any. */
  function finishLine(piece: Buffer): Promise<void> | undefined {
    physicalLine++
    let line = lineOf ? lineOf(physicalLine) : physicalLine
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
    let record: Record<string, unknown>
    try {
      record = JSON.parse(text)
    } catch (error) {
      return void wrong(line, ['invalid_json', `is not valid JSON: ${(error as Error).message.slice(0, 200)}`])
    }
    const problem = recordProblem(record)
    if (problem) return void wrong(line, problem)
    if (source_lines && typeof record.source_line === 'number') {
      line = record.source_line
      delete record.source_line
    }
    const embedded = embed?.(record, writer.pictureCheck)
    if (!embedded) return addRecord(line, bytes, record)
    return embedded.then((unfetched) => (unfetched ? void wrong(line, unfetched) : addRecord(line, bytes, record)))
  }

  function addRecord(line: number, bytes: Buffer, record: Record<string, unknown>): Promise<void> | undefined {
    const uploaded = uploadedRow(record, { columns })
    return Array.isArray(uploaded) ? void wrong(line, uploaded) : writer.add(line, bytes, uploaded)
  }

  return {
    async add(chunk: Buffer): Promise<void> {
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        const decoding = finishLine(chunk.subarray(from, at))
        // Most rows have no pictures; waiting for each would take longer than its check.
        if (decoding !== undefined) await decoding
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
    ready: writer.ready,
    async end(): Promise<Check> {
      if (restBytes > 0 || overlong) await finishLine(Buffer.alloc(0))
      return writer.end()
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

/** A problem of a row as an issue, and as the sentence of `errors`. */
export function describeProblem(line: number, [code, message]: Problem): { issue: Issue; error: string } {
  const sentence = message.replace(/^: /, '')
  return {
    issue: { line, code, message: sentence },
    error: sentence === message ? `line ${line} ${sentence}` : `line ${line}: ${sentence}`,
  }
}
