// From a row as it was uploaded to the canonical form: what the check writes of a valid row of any format, and all that
// the trainer reads (trainer/data/rows.py, docs/decisions/042-canonical-rows.md).
import type { Columns } from '../../../contract/datasets.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import {
  type CanonicalMessage,
  messageWarnings,
  readMessages,
  readTools,
  textOf,
  withoutNullFields,
} from './row-message.ts'
import { isPicture, type PlacedPicture, withoutPictures } from './row-pictures.ts'
import { isProblem, type Problem } from './row-problem.ts'

type Fields = Record<string, unknown>

/**
 * A row as it was uploaded, under the names that the check reads. `names`: what the file calls them, where it differs.
 * `fields`: what else the file says of the row.
 */
export interface UploadedRow {
  row: Fields
  names: Record<string, string>
  fields: Fields
}

/** A format whose rows are cells: the columns that are read of it, and the values in a row's cells. */
export interface Table {
  columns: string[]
  valuesOf(record: Fields): Fields | Problem
}

/** How a file is read: `columns`, the uploader's names. */
export interface ReadOptions {
  table?: Table
  columns?: Columns | undefined
}

/**
 * `messages`: a conversation, or a rated answer with its `label`. `prompt`, `chosen`, `rejected`: a pair. A row may
 * have both. `line`: its line in the uploaded file, where that is not its number among the rows. `fields`: what the
 * upload says beside messages and tools, for evaluations, with hashes in the place of pictures.
 */
export interface CanonicalRow {
  line?: number
  messages?: CanonicalMessage[]
  tools?: unknown[]
  label?: boolean
  prompt?: CanonicalMessage[]
  chosen?: CanonicalMessage
  rejected?: CanonicalMessage
  fields?: Fields
}

/** A valid row, what it can teach, and warnings about it. */
export interface ValidRow {
  row: CanonicalRow
  objectives: Objective[]
  warnings: Problem[]
}

/** The columns of a prompt and its answer. */
export const pairedColumns = [
  ['prompt', 'completion'],
  ['instruction', 'output'],
  ['question', 'answer'],
] as const

/** The record under the names that are read; with `columns` these alone. */
export const renamed = (record: Fields, columns: Columns | undefined): Fields =>
  columns ? Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, record[column]])) : record

const isPair = (row: object) => ['chosen', 'rejected', 'preferred_output'].some((field) => field in row)

/**
 * Reads a record of any format: nulls are absent, and a prompt with its answer is `prompt` and `completion`, whatever
 * its columns are called.
 */
export function uploadedRow(record: Fields, options: ReadOptions = {}): UploadedRow | Problem {
  const { table, columns } = options
  const values = renamed(record, columns)
  const row = table ? table.valuesOf(values) : withoutNullFields(values)
  if (Array.isArray(row)) return row as Problem
  const fields = otherFields(record, row, options)
  const names: Record<string, string> = { ...columns }
  const problem = 'messages' in row || 'preferred_output' in row ? undefined : nameAlike(row, values, names)
  return problem ?? { row, names, fields }
}

const spokenFields = ['messages', 'tools']

/** The fields beside messages and tools, as the file names them; of a table those that are read. */
function otherFields(record: Fields, row: Fields, { table, columns }: ReadOptions): Fields {
  const fields: Fields = {}
  const readable = columns
    ? Object.entries(columns)
    : (table?.columns ?? spokenFields).map((name) => [name, name] as const)
  const ownName = new Map(readable.map(([name, column]) => [column, name]))
  for (const [column, value] of Object.entries(record)) {
    const name = ownName.get(column)
    if (name !== undefined && spokenFields.includes(name) && name in row) continue
    if (!table) fields[column] = value
    else if (name !== undefined && name in row) fields[column] = row[name]
  }
  return fields
}

/** Moves the prompt and the answer to `prompt` and `completion`, with the text of `input` behind the prompt. */
function nameAlike(row: Fields, record: Fields, names: Record<string, string>): Problem | undefined {
  const paired = (has: (name: string) => boolean) => pairedColumns.find((pair) => pair.every(has))
  const named = isPair(row)
    ? [pairedColumns.map(([prompt]) => prompt).find((name) => name in row)]
    : (paired((name) => name in row) ?? paired((name) => name in record))
  for (const [index, name] of (named ?? []).entries()) {
    const column = index === 0 ? 'prompt' : 'completion'
    if (name === undefined || name === column) continue
    if (name in row) row[column] = row[name]
    delete row[name]
    names[column] = names[name] ?? name
  }
  if (named && named.length === 2 && !('completion' in row)) row.completion = ''
  for (const name of ['prompt', 'completion', 'chosen', 'rejected', 'system'])
    if (isText(row[name])) row[name] = String(row[name])
  if (!isText(row.input)) return undefined
  const input = String(row.input)
  delete row.input
  if (input.trim() === '' || !('prompt' in row)) return undefined
  if (typeof row.prompt !== 'string')
    return ['prompt_invalid', ": 'input' is a text beside a prompt of messages. Write it into one of these."]
  row.prompt = `${row.prompt}\n\n${input}`
  return undefined
}

const isText = (value: unknown) => ['string', 'number', 'bigint', 'boolean'].includes(typeof value)

/** What a row can teach, by the fields that it has. */
function objectivesOf(row: Fields): Objective[] {
  const objectives: Objective[] = []
  if (isPrompt(row)) return ['reinforcement']
  const isAnswered = 'prompt' in row && 'completion' in row
  const isRated = 'label' in row && ('messages' in row ? typeof row.label === 'boolean' : 'completion' in row)
  if ('messages' in row || (isAnswered && !isRated && !isPair(row))) objectives.push('sft')
  if (isPair(row)) objectives.push('dpo')
  if (isRated) objectives.push('kto')
  return objectives
}

/** Whether a row is a prompt alone: a conversation that ends with a message of the user or the result of a tool. */
function isPrompt({ messages, ...others }: Fields): boolean {
  const last = Array.isArray(messages) ? messages.at(-1)?.role : undefined
  return (last === 'user' || last === 'tool') && !isPair(others) && typeof others.label !== 'boolean'
}

const exampleRow = '{"messages":[{"role":"user","content":"…"},{"role":"assistant","content":"…"}]}'

// Python's JSON parser, which the trainer uses, has a recursion limit.
const maxDepth = 100

/** The problem of a value that is no row at all. */
export function recordProblem(record: unknown): Problem | undefined {
  if (typeof record !== 'object' || record === null || Array.isArray(record))
    return ['not_an_object', `is not a JSON object. Each row must be like ${exampleRow}.`]
  return isDeep(record, maxDepth) ? ['too_deep', `is nested more than ${maxDepth} levels deep.`] : undefined
}

function isDeep(value: object, levels: number): boolean {
  if (levels === 0) return true
  const parts: unknown[] = Array.isArray(value) ? value : Object.values(value)
  for (const part of parts) if (typeof part === 'object' && part !== null && isDeep(part, levels - 1)) return true
  return false
}

/** A row in the canonical form, or its first problem. */
export function canonicalOf(uploaded: UploadedRow): ValidRow | Problem {
  const { row, names } = uploaded
  const objectives = objectivesOf(row)
  if (objectives.length === 0)
    return [
      'messages_missing',
      `has no 'messages', and no 'prompt' with a 'completion'. Each row must be like ${exampleRow}.`,
    ]
  const canonical: CanonicalRow = {}
  const warnings: Problem[] = []
  const name = (field: string) => names[field] ?? field
  for (const objective of objectives) {
    const part = readers[objective](row, name, warnings, canonical)
    if (Array.isArray(part)) return part
    Object.assign(canonical, part)
  }
  return { row: canonical, objectives, warnings }
}

type Reader = (
  row: Fields,
  name: (field: string) => string,
  warnings: Problem[],
  soFar: CanonicalRow,
) => CanonicalRow | Problem

const readers: Record<Objective, Reader> = { sft: conversationOf, dpo: pairOf, kto: ratedOf, reinforcement: questionOf }

/** A prompt that a model answers in training; its other fields are for graders. */
function questionOf(row: Fields, name: (field: string) => string, warnings: Problem[]): CanonicalRow | Problem {
  const read = readMessages(row.messages as unknown[], name('messages'))
  if (isProblem(read)) return read
  const tools = readTools(row.tools)
  if (isProblem(tools)) return tools
  warnings.push(...messageWarnings(row.messages as unknown[], name('messages')), ...conversationWarnings(read))
  return { messages: read, ...tools }
}

/** The problem of a row without an answer among rows that have one. */
export const noAnswer: Problem = [
  'no_answer_at_end',
  'does not end with a message of the assistant. Add the answer that the model should give, or ' +
    'remove what comes after it.',
]

function conversationOf(row: Fields, name: (field: string) => string, warnings: Problem[]): CanonicalRow | Problem {
  if ('functions' in row)
    return ['functions_outdated', "has 'functions', the old form of tools. Write them as 'tools'."]
  if (!('messages' in row)) return answeredOf(row, name, warnings)
  const { messages } = row
  if (!Array.isArray(messages) || messages.length === 0)
    return ['messages_empty', `: '${name('messages')}' must be a list with at least one message.`]
  const read = readMessages(messages, name('messages'))
  if (isProblem(read)) return read
  const tools = readTools(row.tools)
  if (isProblem(tools)) return tools
  if (read.at(-1)!.role !== 'assistant') return noAnswer
  if (read.every(({ role, weight }) => role !== 'assistant' || weight === 0))
    return [
      'nothing_to_learn',
      ': every message of the assistant has the weight 0, so the row teaches nothing. Remove it, or give ' +
        'one the weight 1.',
    ]
  warnings.push(...messageWarnings(messages, name('messages')), ...conversationWarnings(read))
  return { messages: read, ...tools }
}

/** A prompt and its completion: the prompt is context, the completion is learned. */
function answeredOf(row: Fields, name: (field: string) => string, warnings: Problem[]): CanonicalRow | Problem {
  const answered = withAnswers(row, name, ['completion'], warnings)
  if (isProblem(answered)) return answered
  const { prompt, answers, tools } = answered
  const messages = [...prompt.map(asContext), ...answers]
  warnings.push(...conversationWarnings(messages))
  return { messages, ...tools }
}

const asContext = (message: CanonicalMessage): CanonicalMessage =>
  message.role === 'assistant' ? { ...message, weight: 0 } : message

function ratedOf(
  row: Fields,
  name: (field: string) => string,
  warnings: Problem[],
  soFar: CanonicalRow,
): CanonicalRow | Problem {
  const { label } = row
  if (typeof label !== 'boolean')
    return ['label_invalid', `: '${name('label')}' must be true (a good answer) or false (a bad one).`]
  if (soFar.messages) return soFar.messages.length > 1 ? { label } : promptMissing(name('messages'))
  const answered = answeredOf(row, name, warnings)
  return Array.isArray(answered) ? answered : { ...answered, label }
}

const promptMissing = (field: string): Problem => [
  'prompt_missing',
  `: '${field}' must be the prompt: a text, or a list with at least one message.`,
]

/** `input`, `preferred_output` and `non_preferred_output`; or `prompt`, `chosen` and `rejected`. */
function pairOf(row: Fields, name: (field: string) => string, warnings: Problem[]): CanonicalRow | Problem {
  const read = 'preferred_output' in row ? openaiPair(row, warnings) : ownPair(row, name, warnings)
  if (isProblem(read)) return read
  const { prompt, answers, tools } = read
  const [chosen, rejected] = answers as [CanonicalMessage, CanonicalMessage]
  if (saidBy(chosen) === saidBy(rejected))
    warnings.push(['answers_equal', 'has the same answer as chosen and as rejected, which teaches nothing.'])
  return { prompt, chosen, rejected, ...tools }
}

/** What two answers must share to be the same for a training. */
export const saidBy = ({ content, reasoning_content, tool_calls }: CanonicalMessage): string =>
  JSON.stringify([textOf({ content }), reasoning_content, tool_calls])

function openaiPair(row: Fields, warnings: Problem[]): Answered | Problem {
  const { messages, tools } = Object(row.input) as Fields
  const fields = ['preferred_output', 'non_preferred_output']
  return withAnswers({ ...row, prompt: messages, tools, system: undefined }, inputName, fields, warnings)
}
const inputName = (field: string) => (field === 'prompt' ? 'input.messages' : field)

function ownPair(row: Fields, name: (field: string) => string, warnings: Problem[]): Answered | Problem {
  const { chosen, rejected } = row
  if (!Array.isArray(chosen) || !Array.isArray(rejected) || chosen.length < 2 || rejected.length < 2)
    return withAnswers(row, name, ['chosen', 'rejected'], warnings)
  // Both answers are whole conversations: what they have before their last message is the prompt.
  const prompt = readMessages(chosen.slice(0, -1), name('chosen'))
  if (isProblem(prompt)) return prompt
  const other = readMessages(rejected.slice(0, -1), name('rejected'))
  if (isProblem(other)) return other
  if (JSON.stringify(prompt) !== JSON.stringify(other))
    return [
      'prompts_differ',
      `: '${name('chosen')}' and '${name('rejected')}' must be the same conversation up to their last message. Write ` +
        "that part as 'prompt'.",
    ]
  const answers = { chosen: chosen.slice(-1), rejected: rejected.slice(-1) }
  const promptName = (field: string) => (field === 'prompt' ? name('chosen') : name(field))
  const whole = { ...row, ...answers, prompt: chosen.slice(0, -1), system: undefined }
  return withAnswers(whole, promptName, ['chosen', 'rejected'], warnings)
}

interface Answered {
  prompt: CanonicalMessage[]
  answers: CanonicalMessage[]
  tools: Pick<CanonicalRow, 'tools'>
}

/** A prompt and one or two answers to it, each a text or messages. */
function withAnswers(
  row: Fields,
  name: (field: string) => string,
  fields: string[],
  warnings: Problem[],
): Answered | Problem {
  const asked = promptOf(row)
  if (!Array.isArray(asked) || asked.length === 0) return promptMissing(name('prompt'))
  const prompt = readMessages(asked, name('prompt'))
  if (isProblem(prompt)) return prompt
  const tools = readTools(row.tools)
  if (isProblem(tools)) return tools
  warnings.push(...messageWarnings(asked, name('prompt')))
  const answers: CanonicalMessage[] = []
  for (const field of fields) {
    const answer = messagesOf(row[field], 'assistant')
    if (!Array.isArray(answer) || answer.length !== 1 || answer[0]?.role !== 'assistant')
      return [
        'answer_invalid',
        `: '${name(field)}' must be one answer of the assistant: a text, or a list of one message.`,
      ]
    if (typeof row[field] === 'string' && row[field].trim() === '')
      return ['answer_empty', `: '${name(field)}' is empty; an answer to learn needs text.`]
    const read = readMessages(answer, name(field))
    if (isProblem(read)) return read
    warnings.push(...messageWarnings(answer, name(field)))
    const { weight: _, ...learned } = read[0]!
    answers.push(learned)
  }
  return { prompt, answers, tools }
}

/** A text is the one message of a role. */
const messagesOf = (value: unknown, role: string) => (typeof value === 'string' ? [{ role, content: value }] : value)

/** A prompt as messages, with the system message that the row has beside it. */
export function promptOf({ prompt, system }: Fields): unknown {
  const messages = messagesOf(prompt, 'user')
  const isEmpty = system === undefined || system === null || (typeof system === 'string' && system.trim() === '')
  return !isEmpty && Array.isArray(messages) ? [{ role: 'system', content: system }, ...messages] : messages
}

function conversationWarnings(messages: CanonicalMessage[]): Problem[] {
  const problems: Problem[] = []
  if (messages.some((message) => message.role === 'user' && textOf(message).trim() === '' && !hasPicture(message)))
    problems.push(['question_empty', 'has a message of the user without text.'])
  if (messages[0]!.role === 'assistant')
    problems.push(['no_question', 'begins with the assistant; most models expect a message of the user before it.'])
  return problems
}

const hasPicture = ({ content }: CanonicalMessage) => Array.isArray(content) && content.some(isPicture)

/** The pictures of a valid row, with their places for messages. Both answers of a pair have those of its prompt. */
export function picturesOf({ messages, prompt }: Pick<CanonicalRow, 'messages' | 'prompt'>): PlacedPicture[] {
  const pictures: PlacedPicture[] = []
  for (const [field, list] of Object.entries({ messages, prompt })) {
    for (const [index, { content }] of (list ?? []).entries()) {
      if (!Array.isArray(content)) continue
      for (const [number, part] of content.entries())
        if (isPicture(part)) pictures.push({ at: `${field}[${index}].content[${number}]`, url: part.image_url.url })
    }
  }
  return pictures
}

/** The line of a canonical file, with its line feed. `number`: of the row in that file. */
export function canonicalLine({ row }: ValidRow, fields: Fields, number: number, line: number): string {
  const json = JSON.stringify(line === number ? row : { line, ...row })
  if (Object.keys(fields).length === 0) return `${json}\n`
  return `${json.slice(0, -1)},"fields":${withoutPictures(fields)}}\n`
}

/** The messages of a row; of a pair, with the chosen answer, and the rejected one beside them. */
export interface ShownRow {
  messages: unknown[]
  rejected?: unknown
}

/** A row of a canonical file as it is shown to people. */
export const shownRow = ({ messages, prompt, chosen, rejected }: CanonicalRow): ShownRow =>
  prompt ? { messages: [...prompt, chosen], rejected } : { messages: messages! }

/** A row of a canonical file as evaluations read it: the fields of the upload, with the messages and tools. */
export const itemOfRow = ({ fields, messages, tools }: CanonicalRow): Fields => ({
  ...fields,
  ...(messages && { messages }),
  ...(tools && messages && { tools }),
})
