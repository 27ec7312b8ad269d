// `chat`: a conversation with one model, or with two side by side.
import { appendFileSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { type AnswerWarning, answerWarnings } from '../../contract/inference.ts'
import type { ChatRequest } from '../../sdk/index.ts'
import { Interrupted, UsageError } from '../support/errors.ts'
import { decimal, type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { note } from '../support/output.ts'
import { readAll } from '../support/prompt.ts'
import { type Connection, connect } from '../support/service.ts'
import { clean, columnsOf, isTerminal, paint } from '../support/text.ts'
import { createColumns } from './columns.ts'
import { callableOf } from './named.ts'

interface ChatOptions extends GlobalOptions {
  system?: string
  temperature?: number
  maxTokens?: number
  file?: string
}

type Message = { role: 'system' | 'user'; content: string } | { role: 'assistant'; content: string }

/** One model and its side of the conversation. */
interface Side {
  model: string
  messages: Message[]
  /** What was said about its last answer. */
  warned?: AnswerWarning[]
}

interface Answer {
  model: string
  content: string
  finish_reason: string | null
  prompt_tokens: number | undefined
  completion_tokens: number | undefined
  /** Until the first token, and from then to the last. */
  first_ms: number | undefined
  rest_ms: number
  /** How the conversation differs from the training of the model. */
  warnings: AnswerWarning[]
}

/** Narrower terminals show two answers one after the other. */
const sideBySide_columns = 80

const commands = `/system TEXT  another system message     /clear  start over
/save FILE    add the conversation to a file of examples     /quit   end (or Ctrl-D)`

export function addChatCommand(program: Program): void {
  runs(
    program
      .command('chat')
      .description('talk to a model, or to two at once; what is piped into it is one message')
      .argument('<model>', 'a model, a base, or the name of a deployment')
      .argument('[other]', 'a second model that gets the same messages')
      .option('--system <text>', 'the system message')
      .option('-t, --temperature <number>', '0 always takes the likeliest token', decimal('--temperature'))
      .option('--max-tokens <count>', 'length of an answer', wholeNumber('--max-tokens', 1))
      .option(
        '--file <file>',
        'begin with the messages of a file that /save wrote, or with its text as the first message',
      ),
    chat,
  )
}

async function chat(model: string, other: string | undefined, options: ChatOptions): Promise<void> {
  const connection = connect(options)
  const models = await Promise.all(
    (other === undefined ? [model] : [model, other]).map((id) => callableOf(connection.tunery, id)),
  )
  const { messages, question } = begin(options)
  const sides: Side[] = models.map((id) => ({ model: id, messages: [...messages] }))
  if (!process.stdin.isTTY || options.json) {
    const piped = process.stdin.isTTY ? '' : (await readAll()).trim()
    const asked = [question, piped].filter(Boolean).join('\n\n')
    if (!asked) throw new UsageError('There is no message. Pipe one in, or leave out --json and talk on a terminal.')
    return await askOnce(connection, sides, asked, options)
  }
  // Each model is looked up before the user types a long message to one that is not there.
  for (const id of models) await connection.tunery.models.callable.get(id)
  await converse(connection, sides, question, options)
}

/** The conversation to continue, and a message to begin with. */
function begin({ system, file }: ChatOptions): { messages: Message[]; question: string } {
  const first: Message[] = system === undefined ? [] : [{ role: 'system', content: system }]
  if (file === undefined) return { messages: first, question: '' }
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    throw new UsageError(`${file} cannot be read: ${(error as Error).message}`)
  }
  const saved = messagesIn(text)
  if (!saved) return { messages: first, question: text.trim() }
  const rest = system === undefined ? saved : saved.filter(({ role }) => role !== 'system')
  return { messages: [...first, ...rest], question: '' }
}

/** The messages of the last line of a file of examples; undefined of any other text. */
function messagesIn(text: string): Message[] | undefined {
  for (const candidate of [text, text.trim().split('\n').at(-1)!]) {
    try {
      const { messages } = JSON.parse(candidate) as { messages?: unknown }
      if (Array.isArray(messages) && messages.every(({ role, content }) => role && typeof content === 'string'))
        return messages as Message[]
    } catch {
      // It is no JSON.
    }
  }
  return undefined
}

/** One question, for pipes. */
async function askOnce(connection: Connection, sides: Side[], question: string, options: ChatOptions): Promise<void> {
  const stop = new AbortController()
  process.once('SIGINT', () => stop.abort())
  try {
    if (options.json) {
      const answers = await Promise.all(
        sides.map((side) => answer(connection, side, question, options, stop.signal, () => {})),
      )
      return console.log(JSON.stringify(sides.length === 1 ? answers[0] : answers))
    }
    for (const [index, side] of sides.entries()) {
      if (sides.length > 1) console.log(`${index > 0 ? '\n' : ''}${side.model}:`)
      const say = (text: string) => process.stdout.write(shown(text))
      const result = await answer(connection, side, question, options, stop.signal, say)
      process.stdout.write('\n')
      warn(side, result)
    }
  } catch (error) {
    throw stop.signal.aborted ? new Interrupted() : error
  }
}

/** What a terminal may obey is taken out; a file gets what the model said. */
const shown = (text: string): string => (isTerminal() ? clean(text) : text)

async function converse(connection: Connection, sides: Side[], question: string, options: ChatOptions): Promise<void> {
  note(
    paint(
      'dim',
      `${sides.map(({ model }) => model).join(' and ')}. /help lists the commands, Ctrl-D ends.`,
      process.stderr,
    ),
  )
  const terminal = createInterface({ input: process.stdin, output: process.stdout, historySize: 200 })
  let stop: AbortController | undefined
  let interrupted = false
  const ended = new AbortController()
  // While an answer comes Ctrl-C ends the answer, else the conversation.
  terminal.on('SIGINT', () => {
    if (stop) return stop.abort()
    interrupted = true
    ended.abort()
  })
  terminal.on('close', () => ended.abort())
  const ask = async (text: string) => {
    stop = new AbortController()
    try {
      await answerAll(connection, sides, text, options, stop.signal)
    } finally {
      stop = undefined
    }
  }
  try {
    if (question) {
      console.log(`${paint('bold', '> ')}${clean(question)}`)
      await ask(question)
    }
    for (;;) {
      const typed = (await terminal.question(paint('bold', '> '), { signal: ended.signal })).trim()
      if (typed === '/quit' || typed === '/exit') return
      if (typed.startsWith('/')) command(typed, sides)
      else if (typed) await ask(typed)
    }
  } catch (error) {
    if (!ended.signal.aborted) throw error
    process.stdout.write('\n')
    if (interrupted) throw new Interrupted()
  } finally {
    terminal.close()
  }
}

function command(typed: string, sides: Side[]): void {
  const [name, ...words] = typed.split(/\s+/)
  const rest = words.join(' ')
  if (name === '/clear') {
    for (const side of sides) side.messages = side.messages.filter(({ role }) => role === 'system')
    console.log(paint('dim', 'The conversation starts over.'))
  } else if (name === '/system') {
    for (const side of sides) {
      const others = side.messages.filter(({ role }) => role !== 'system')
      side.messages = rest ? [{ role: 'system', content: rest }, ...others] : others
    }
    console.log(paint('dim', rest ? 'The system message is set.' : 'There is no system message.'))
  } else if (name === '/save') save(rest, sides)
  else console.log(name === '/help' ? commands : `'${name}' is not a command.\n${commands}`)
}

/** Adds each side's conversation as a line `{"messages": […]}`, so that the file can be uploaded. */
function save(file: string, sides: Side[]): void {
  const answered = sides.filter(({ messages }) => messages.some(({ role }) => role === 'assistant'))
  if (!file) console.log('Give the file: /save conversation.jsonl')
  else if (answered.length === 0) console.log('There is no answer to save yet.')
  else
    try {
      appendFileSync(file, answered.map(({ messages }) => `${JSON.stringify({ messages })}\n`).join(''))
      console.log(paint('dim', `Saved in ${file}.`))
    } catch (error) {
      console.log(`${file} cannot be written: ${(error as Error).message}`)
    }
}

/**
 * Lets all sides answer, and shows the answers as they come. An answer that fails leaves the conversation as it was.
 */
async function answerAll(
  connection: Connection,
  sides: Side[],
  question: string,
  options: ChatOptions,
  signal: AbortSignal,
): Promise<void> {
  const together = sides.length > 1 && columnsOf() >= sideBySide_columns
  const columns = together ? createColumns(sides.map(({ model }) => model)) : undefined
  const one = async (side: Side, index: number) => {
    if (!columns && sides.length > 1) console.log(paint(['bold', 'cyan'], side.model))
    const say = (text: string) => (columns ? columns.write(index, clean(text)) : process.stdout.write(clean(text)))
    try {
      const result = await answer(connection, side, question, options, signal, say)
      side.messages.push({ role: 'user', content: question }, { role: 'assistant', content: result.content })
      if (columns) columns.end(index, describe(result))
      else console.log(`\n${paint('dim', describe(result))}`)
      return result
    } catch (error) {
      const reason = signal.aborted ? 'You ended the answer.' : (error as Error).message
      if (columns) columns.end(index, reason)
      else console.log(`\n${paint('yellow', reason)}`)
      return undefined
    }
  }
  const results = columns ? await Promise.all(sides.map(one)) : []
  if (!columns) for (const [index, side] of sides.entries()) results.push(await one(side, index))
  for (const [index, result] of results.entries()) if (result) warn(sides[index]!, result)
}

/** Says once for each side how the conversation differs from the training of its model. */
function warn(side: Side, { warnings }: Pick<Answer, 'warnings'>): void {
  const said = new Set(side.warned)
  side.warned = warnings
  for (const warning of warnings)
    if (!said.has(warning)) note(paint('yellow', answerWarnings[warning] ?? warning, process.stderr))
}

function describe({ completion_tokens, first_ms, rest_ms, finish_reason }: Answer): string {
  const rate =
    completion_tokens !== undefined && completion_tokens > 1 && rest_ms > 0
      ? (1000 * (completion_tokens - 1)) / rest_ms
      : undefined
  return [
    completion_tokens !== undefined && `${completion_tokens} tokens`,
    rate !== undefined && `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`,
    first_ms !== undefined && `first after ${(first_ms / 1000).toFixed(2)} s`,
    finish_reason === 'length' && 'cut at the greatest length',
  ]
    .filter(Boolean)
    .join(', ')
}

/** Streams one answer; `say` gets its text as it comes. */
async function answer(
  { tunery }: Connection,
  side: Side,
  question: string,
  { temperature, maxTokens }: ChatOptions,
  signal: AbortSignal,
  say: (text: string) => void,
): Promise<Answer> {
  const body: ChatRequest & { stream: true } = {
    model: side.model,
    messages: [...side.messages, { role: 'user', content: question }],
    stream: true,
    stream_options: { include_usage: true },
    ...(temperature !== undefined && { temperature }),
    ...(maxTokens !== undefined && { max_tokens: maxTokens }),
  }
  const start = performance.now()
  let first: number | undefined
  let last = start
  const result: Answer = {
    model: side.model,
    content: '',
    finish_reason: null,
    prompt_tokens: undefined,
    completion_tokens: undefined,
    first_ms: undefined,
    rest_ms: 0,
    warnings: [],
  }
  const stream = await tunery.chat.completions.create(body, { signal })
  result.warnings = (stream.headers.get('x-warnings')?.split(', ') ?? []) as AnswerWarning[]
  for await (const { choices, usage } of stream) {
    const { delta, finish_reason } = choices[0] ?? {}
    if (delta?.content || delta?.reasoning_content) {
      last = performance.now()
      first ??= last
    }
    if (delta?.content) {
      result.content += delta.content
      say(delta.content)
    }
    if (finish_reason) result.finish_reason = finish_reason
    if (usage) {
      result.prompt_tokens = usage.prompt_tokens
      result.completion_tokens = usage.completion_tokens
    }
  }
  result.first_ms = first === undefined ? undefined : first - start
  result.rest_ms = first === undefined ? 0 : last - first
  return result
}
