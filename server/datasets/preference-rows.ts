// Rows of preferences: two answers to one prompt, or one answer with a label. The trainer reads the same forms
// (trainer/data/rows.py).
import { messagesProblem, type Problem, type RowMessage, textOf, toolsProblem } from './row-message.ts'

type Fields = Record<string, unknown>

/** A prompt and its answers by their fields, as messages if the row is well-formed. */
interface PreferenceRow {
  prompt: unknown
  prompt_field: string
  answers: [field: string, answer: unknown][]
  tools: unknown
}

/** A text is the one message of a role. */
const messagesOf = (value: unknown, role: string) => (typeof value === 'string' ? [{ role, content: value }] : value)

/** A prompt as messages, where it can be read as such. */
export function promptOf({ prompt, system }: Fields): unknown {
  const messages = messagesOf(prompt, 'user')
  return system && Array.isArray(messages) ? [{ role: 'system', content: system }, ...messages] : messages
}

export const isPair = (row: object) => ['chosen', 'rejected', 'preferred_output'].some((field) => field in row)
export const isRated = (row: object) =>
  'label' in row && ('completion' in row || ('messages' in row && typeof row.label === 'boolean'))

/** `input`, `preferred_output` and `non_preferred_output`; or `prompt`, `chosen` and `rejected`. */
function pairOf(row: Fields): PreferenceRow | Problem {
  if ('preferred_output' in row) {
    const { messages, tools } = Object(row.input) as Fields
    const answers = ['preferred_output', 'non_preferred_output'].map((field): [string, unknown] => [field, row[field]])
    return { prompt: messages, prompt_field: 'input.messages', answers, tools }
  }
  const answers = ['chosen', 'rejected'].map((field): [string, unknown] => [field, messagesOf(row[field], 'assistant')])
  const common = { prompt_field: 'prompt', tools: row.tools }
  const [chosen, rejected] = answers.map(([, answer]) => answer)
  if (!Array.isArray(chosen) || !Array.isArray(rejected) || chosen.length < 2 || rejected.length < 2)
    return { ...common, prompt: promptOf(row), answers }
  // Both answers are whole conversations: what they have before their last message is the prompt.
  const prompt = chosen.slice(0, -1)
  if (JSON.stringify(prompt) !== JSON.stringify(rejected.slice(0, -1)))
    return [
      'prompts_differ',
      ": 'chosen' and 'rejected' must be the same conversation up to their last message. Write that part as 'prompt'.",
    ]
  const last = answers.map(([field, answer]): [string, unknown] => [field, (answer as unknown[]).slice(-1)])
  return { ...common, prompt, prompt_field: 'chosen', answers: last }
}

function ratedOf(row: Fields): PreferenceRow {
  const { messages, completion, tools } = row
  if (Array.isArray(messages)) {
    const answers: PreferenceRow['answers'] = [['messages', messages.slice(-1)]]
    return { prompt: messages.slice(0, -1), prompt_field: 'messages', answers, tools }
  }
  const answers: PreferenceRow['answers'] = [['completion', messagesOf(completion, 'assistant')]]
  return { prompt: promptOf(row), prompt_field: 'prompt', answers, tools }
}

export function pairProblem(row: object): Problem | undefined {
  const pair = pairOf(row as Fields)
  return Array.isArray(pair) ? pair : problemOf(pair)
}

export function ratedProblem(row: object): Problem | undefined {
  if (typeof (row as Fields).label !== 'boolean')
    return ['label_invalid', ": 'label' must be true (a good answer) or false (a bad one)."]
  return problemOf(ratedOf(row as Fields))
}

function problemOf({ prompt, prompt_field, answers, tools }: PreferenceRow): Problem | undefined {
  if (!Array.isArray(prompt) || prompt.length === 0)
    return ['prompt_missing', `: '${prompt_field}' must be the prompt: a text, or a list with at least one message.`]
  const problem = messagesProblem(prompt, prompt_field) ?? toolsProblem(tools)
  if (problem) return problem
  for (const [field, answer] of answers) {
    if (!Array.isArray(answer) || answer.length !== 1 || answer[0]?.role !== 'assistant')
      return ['answer_invalid', `: '${field}' must be one answer of the assistant: a text, or a list of one message.`]
    const wrong = messagesProblem(answer, field)
    if (wrong) return wrong
  }
  return undefined
}

/** The messages of a row; of a pair, with the chosen answer, and the rejected one beside them. */
export interface ShownRow {
  messages: unknown[]
  rejected?: unknown
}

/** A valid row of any kind as it is shown to people. */
export function shownRow(row: Fields): ShownRow {
  if (!isPair(row)) {
    const { prompt, answers } = ratedOf(row)
    return {
      messages: 'messages' in row ? (row.messages as unknown[]) : [...(prompt as unknown[]), ...answerOf(answers[0]!)],
    }
  }
  const { prompt, answers } = pairOf(row) as PreferenceRow
  return { messages: [...(prompt as unknown[]), ...answerOf(answers[0]!)], rejected: answerOf(answers[1]!)[0] }
}

const answerOf = ([, answer]: [string, unknown]) => answer as unknown[]

/** Warnings about a valid pair. */
export function pairWarnings(row: object): Problem[] {
  const { answers } = pairOf(row as Fields) as PreferenceRow
  const [chosen, rejected] = answers.map(([, answer]) => (answer as RowMessage[])[0]!)
  const same = textOf(chosen!) === textOf(rejected!) && sameCalls(chosen!, rejected!)
  return same ? [['answers_equal', 'has the same answer as chosen and as rejected, which teaches nothing.']] : []
}

const sameCalls = (a: RowMessage, b: RowMessage) => JSON.stringify(a.tool_calls) === JSON.stringify(b.tool_calls)
