import type { Problem } from '../rows.ts'

/** The columns of which the known shapes are made; others are left aside. */
export const knownColumns = ['messages', 'system', 'prompt', 'completion', 'instruction', 'input', 'output']

export type ToRow = (record: Record<string, unknown>) => { messages: unknown } | Problem

/**
 * How the rows of a table with these columns become conversations. Undefined where the columns are of none of the known
 * shapes.
 */
export function rowMaker(columns: string[]): ToRow | undefined {
  const has = (name: string) => columns.includes(name)
  if (has('messages')) return messagesColumn
  if (has('prompt') && has('completion')) return promptColumns
  if (has('instruction') && has('output')) return instructionColumns
  return undefined
}

export const columnsNeeded = `a column 'messages', or 'prompt' and 'completion' (and 'system'), or 'instruction' and 'output' (and 'input')`

function messagesColumn({ messages }: Record<string, unknown>) {
  if (typeof messages !== 'string') return { messages: withoutNulls(messages) }
  try {
    return { messages: JSON.parse(messages) }
  } catch (error) {
    return [
      'invalid_json',
      `: the column 'messages' is not valid JSON: ${(error as Error).message.slice(0, 200)}`,
    ] as Problem
  }
}

// A list of structs gives every message every field; those that a message does not have are null.
function withoutNulls(messages: unknown): unknown {
  if (!Array.isArray(messages)) return messages
  return messages.map((message) =>
    typeof message === 'object' && message !== null
      ? Object.fromEntries(
          Object.entries(message).flatMap(([name, value]) =>
            value === null || value === undefined ? [] : [[name, plain(value)]],
          ),
        )
      : message,
  )
}

// Whole numbers of a table come as bigint.
const plain = (value: unknown) => (typeof value === 'bigint' ? Number(value) : value)

function promptColumns({ system, prompt, completion }: Record<string, unknown>) {
  return conversation(text(system), text(prompt), text(completion), 'completion')
}

function instructionColumns({ system, instruction, input, output }: Record<string, unknown>) {
  const context = text(input)
  return conversation(
    text(system),
    context.trim() ? `${text(instruction)}\n\n${context}` : text(instruction),
    text(output),
    'output',
  )
}

const text = (value: unknown) => (value === null || value === undefined ? '' : String(value))

/** `column` is where the answer comes from. */
function conversation(system: string, question: string, answer: string, column: string): ReturnType<ToRow> {
  if (answer.trim() === '') return ['answer_empty', `: the column '${column}' is empty; an answer to learn needs text.`]
  const messages = [
    { role: 'user', content: question },
    { role: 'assistant', content: answer },
  ]
  return { messages: system.trim() ? [{ role: 'system', content: system }, ...messages] : messages }
}

/** One row of a table: where it stands, and the conversation that it makes, or what is wrong with it. */
export type Found = { line: number; row: ReturnType<ToRow> } | { line: number; problem: Problem }

/**
 * What a library said of a file, as the end of a sentence; what its code stumbled over says nothing to whoever sent the
 * file.
 */
export function because(error: unknown): string {
  const stumbled =
    !(error instanceof Error) || error.name !== 'Error' || /\b(undefined|null|not a function)\b/.test(error.message)
  return stumbled ? '' : `: ${error.message.slice(0, 200).replace(/\.$/, '')}`
}

/** The file is not what its format says, or holds more than it may: nothing of it is kept. */
export class Unreadable extends Error {
  readonly code: 'file_not_readable' | 'file_too_large' | 'file_not_utf8' | 'file_empty'
  constructor(code: Unreadable['code'], message: string) {
    super(message)
    this.code = code
  }
}
