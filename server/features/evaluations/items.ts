// The rows of an evaluation: what the model is asked, and the fields that templates read.

import { isDeepStrictEqual } from 'node:util'
import type { CreateEvaluation } from '../../../contract/evaluations.ts'
import { contentText } from '../../../contract/graders.ts'
import { readNumberedJsonl } from '../../../lib/jsonl.ts'
import { type CanonicalRow, itemOfRow, promptOf, shownRow, withoutPictures } from '../datasets/index.ts'
import { fill, GraderError, textMax, valueAt } from './graders/template.ts'

/** Longest row, in characters, without the data of its pictures. */
const rowMax = 1_000_000

type Fields = Record<string, unknown>
export type Template = NonNullable<CreateEvaluation['template']>

interface Request {
  messages: unknown[]
  tools?: unknown
}

export interface EvaluationItem {
  row: number
  /** The fields of the row, and those that are made of its answer: with the hashes of its pictures, not their data. */
  item: Fields
  /** Its fields with the data of its pictures, which only models are shown. */
  pictured: Fields
  /** The fields of the row as they were given. */
  given: Fields
  /** The answer that the row brings. */
  sample: Fields
}

/** Which of `total` rows are evaluated: `count` of them at random, but always the same ones. Counted from 1. */
export function drawnRows(total: number, count: number): Set<number> {
  const rows = Int32Array.from({ length: total }, (_, index) => index + 1)
  let state = 42
  for (let index = 0; index < count; index++) {
    // A linear congruential generator (Numerical Recipes): which rows are drawn has to be the same, not unpredictable.
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    const other = index + Math.floor((state / 2 ** 32) * (total - index))
    const moved = rows[index]!
    rows[index] = rows[other]!
    rows[other] = moved
  }
  return new Set(rows.subarray(0, count))
}

/** The rows of an evaluation: drawn from all of its dataset, or from those that a job held out of it. */
export function rowsOf(
  { total_rows, rows }: { total_rows: number; rows: number },
  heldOut: readonly number[] | undefined,
): Set<number> {
  const drawn = drawnRows(total_rows, rows)
  return heldOut ? new Set([...drawn].map((index) => heldOut[index - 1]!)) : drawn
}

/** A file of rows. `canonical`: it is a dataset's; else it has the fields of each row as they were uploaded. */
export interface RowFile {
  path: string
  canonical: boolean
}

/** Yields the rows of a file. Throws GraderError with the row for one that cannot be read. */
export async function* readItems(
  { path, canonical }: RowFile,
  numbers: ReadonlySet<number>,
): AsyncGenerator<EvaluationItem> {
  let row = 0
  for await (const { json } of readNumberedJsonl(path)) {
    if (!numbers.has(++row)) continue
    const { item, pictured, sample } = lineOf(row, json, canonical)
    // Graders, templates and stored answers read text.
    const content = json.includes(pictureType) ? JSON.parse(withoutPictures(item)) : item
    if (content !== item && JSON.stringify(content).length > rowMax) throw tooLong(row)
    yield { row, item: { ...madeOf(content), ...content }, pictured, given: content, sample }
  }
}

/** The fields that are made of a row's answer. */
function madeOf(fields: Fields): Fields {
  const { messages: _, tools: __, ...made } = partsOf(fields)
  return made
}

/** The fields of a row as they were given: without those that are made of its answer. */
export function givenOf(item: Fields): Fields {
  const { reference, reference_calls, ...rest } = item
  const sample = madeOf(rest)
  return Object.fromEntries(
    Object.entries(item).filter(([name, value]) => !(name in sample && isDeepStrictEqual(sample[name], value))),
  )
}

/** What the model is asked for a row. Throws GraderError for a row that cannot be asked. */
export function requestOf(
  { row, item, pictured = item }: Pick<EvaluationItem, 'row' | 'item'> & { pictured?: Fields },
  template: Template | undefined,
): Request {
  const { messages, tools } = partsOf(pictured)
  const request = (messages: unknown[]) => ({ messages: messages, ...(tools !== undefined && { tools }) })
  if (Array.isArray(template)) {
    let left = textMax
    return request(
      template.map(({ role, content }) => {
        const text = fill(contentText(content), { item }, left)
        left -= text.length
        return { role, content: text }
      }),
    )
  }
  if (template) {
    const name = template.item_reference
    const value = valueAt(name.startsWith('item.') ? name : `item.${name}`, { item: { ...item, ...pictured } })
    if (typeof value === 'string') return request([{ role: 'user', content: value }])
    if (Array.isArray(value)) return request(value)
    throw new GraderError(`'${template.item_reference}' of row ${row} is no text and no list of messages.`)
  }
  if (!Array.isArray(messages) || messages.length === 0)
    throw new GraderError(`Row ${row} has no messages to answer. Give a template that makes them of its fields.`)
  return request(messages)
}

/** What the text of a row with pictures has. */
export const pictureType = '"image_url"'
const tooLong = (row: number) => new GraderError(`Row ${row} is longer than ${rowMax} characters.`)

const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/**
 * The fields of a line; of OpenAI's files for `evals` those below `item`, beside those below `sample`. `pictured`: the
 * same as models are shown it, of a dataset's pair with its messages.
 */
export function lineOf(row: number, json: string, canonical: boolean): Record<'item' | 'pictured' | 'sample', Fields> {
  // A canonical row may have its texts twice: as messages, and as they were uploaded.
  if (json.length > (canonical ? 2 : 1) * rowMax && !json.includes(pictureType)) throw tooLong(row)
  let value: unknown
  try {
    value = JSON.parse(json)
  } catch {
    value = undefined
  }
  if (!isFields(value)) throw new GraderError(`Row ${row} is not a JSON object.`)
  const fields = canonical ? itemOfRow(value as CanonicalRow) : value
  const { item, sample } = fields
  if (isFields(item)) return { item, pictured: item, sample: isFields(sample) ? sample : {} }
  const { prompt, tools } = value as CanonicalRow
  const shown = canonical && prompt ? { ...shownRow(value as CanonicalRow), ...(tools && { tools }) } : undefined
  return { item: fields, pictured: shown ? { ...fields, ...shown } : fields, sample: {} }
}

interface Parts {
  messages?: unknown
  tools?: unknown
  reference?: string
  reference_calls?: unknown
}

interface Message {
  role?: unknown
  content?: unknown
  tool_calls?: unknown
}

/** The prompt and the known answer of a row of any kind. */
function partsOf(fields: Fields): Parts {
  const { messages, tools, input, completion, chosen, preferred_output } = fields
  if (Array.isArray(messages)) {
    const last = messages.at(-1) as Message | undefined
    const answered = last?.role === 'assistant'
    const asked = answered ? messages.slice(0, -1) : messages
    return { messages: asked.map(withoutWeight), tools, ...(answered && referenceOf(last)) }
  }
  if (Array.isArray((input as Fields | undefined)?.messages))
    return { messages: (input as Fields).messages, tools: (input as Fields).tools, ...referenceOf(preferred_output) }
  const asked = promptOf(fields)
  if (!Array.isArray(asked) && Array.isArray(chosen)) return { messages: chosen.slice(0, -1), ...referenceOf(chosen) }
  return { ...(Array.isArray(asked) && { messages: asked }), tools, ...referenceOf(chosen ?? completion) }
}

function withoutWeight(message: unknown): unknown {
  if (typeof message !== 'object' || message === null) return message
  const { weight: _, ...rest } = message as Fields
  return rest
}

function referenceOf(answer: unknown): Pick<Parts, 'reference' | 'reference_calls'> {
  const message = (Array.isArray(answer) ? answer.at(-1) : answer) as Message | string | undefined
  if (typeof message === 'string') return { reference: message }
  if (typeof message !== 'object' || message === null) return {}
  const { content, tool_calls } = message
  const text = Array.isArray(content) ? content.map((part) => part?.text ?? '').join('') : content
  return {
    ...(typeof text === 'string' && { reference: text }),
    ...(Array.isArray(tool_calls) && tool_calls.length > 0 && { reference_calls: tool_calls }),
  }
}
