// Texts to tokens: in pieces between the steps of the streams, in turn for the accounts that wait, and no further than
// a text can be used.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { Vocab } from '../llama/vocab.ts'
import { piecesOf } from './pieces.ts'
import { createSpecialTokenFinder, type Part, type SpecialTokenFinder } from './special-tokens.ts'

export type PromptText = {
  text: string
  /**
   * What may become control tokens: every written one; those without this mark inside, which is no part of the text;
   * none.
   */
  controls: 'all' | 'none' | { unless_marked_by: string }
}

export type TokenizeOptions = {
  account: string
  /** Ends the work when it aborts. */
  signal: AbortSignal
  /** Work ends with `tooLong` once there are more tokens than this, or must be. */
  tokens_max: number
  /** The error for a text of at least this many tokens. */
  tooLong(tokens_min: number): ApiError
}

export type Tokenizer = {
  /**
   * The tokens of a text, without any that the model wants around it. Throws ApiError: what `tooLong` says, overloaded
   * after half a minute.
   */
  tokenize(vocab: Vocab, prompt: PromptText, options: TokenizeOptions): Promise<number[]>
}

// Between two turns of the event loop, in which streams go on. Plain text comes at about 1 MB a second.
const charactersAtOnce = 8192
// What a text costs beside its characters.
const charactersPerText = 64
const waitMsMax = 30_000

type Step = { tokens: readonly number[]; characters: number }
type Task = TokenizeOptions & {
  steps: Generator<Step>
  characters: number
  tokens: number[]
  until_ms: number
  done(tokens: number[]): void
  failed(error: unknown): void
}

/**
 * `onProgress` is called after each slice of work, `onBusy` when there is some: what it returns, when there is none.
 */
export function createTokenizer(
  onProgress: () => void = () => {},
  onBusy: () => () => void = () => () => {},
): Tokenizer {
  /** Of each account, in the order of their turns. */
  const waiting = new Map<string, Task[]>()
  let working = false

  /** Works on the first task of the account whose turn it is. Returns the characters that were read. */
  const slice = (budget: number): number => {
    const [account, tasks] = waiting.entries().next().value!
    waiting.delete(account)
    const task = tasks[0]!
    const before = task.characters
    try {
      if (work(task, budget)) {
        tasks.shift()
        task.done(task.tokens)
      }
    } catch (error) {
      tasks.shift()
      task.failed(error)
    }
    if (tasks.length > 0) waiting.set(account, tasks)
    return task.characters - before
  }

  const loop = async () => {
    working = true
    const idle = onBusy()
    while (waiting.size > 0) {
      for (let budget = charactersAtOnce; budget > 0 && waiting.size > 0; budget -= charactersPerText)
        budget -= slice(budget)
      onProgress()
      // Also after the last: texts that come one after the other are one long text to the streams.
      await nextTurn()
    }
    idle()
    working = false
  }

  return {
    tokenize: (vocab, prompt, options) =>
      new Promise((done, failed) => {
        const tokens_min = Math.ceil(Buffer.byteLength(withoutMarks(prompt)) / vocab.longest_token_bytes)
        if (tokens_min > options.tokens_max) throw options.tooLong(tokens_min)
        const task: Task = {
          ...options,
          steps: stepsOf(vocab, prompt),
          characters: 0,
          tokens: [],
          until_ms: performance.now() + waitMsMax,
          done,
          failed,
        }
        const tasks = waiting.get(options.account)
        if (tasks) tasks.push(task)
        else waiting.set(options.account, [task])
        if (!working) void loop()
      }),
  }
}

/** The text that the tokens are of. */
export const withoutMarks = ({ text, controls }: PromptText): string =>
  typeof controls === 'object' ? text.replaceAll(controls.unless_marked_by, '') : text

/**
 * The tokens of a prompt, with the one BOS that the model wants, whether or not the text has it already. Throws as
 * `tokenize` does.
 */
export async function tokenizePrompt(
  tokenizer: Tokenizer,
  vocab: Vocab,
  prompt: PromptText,
  options: TokenizeOptions,
): Promise<number[]> {
  const tokens = await tokenizer.tokenize(vocab, prompt, options)
  if (vocab.wants_bos && tokens[0] !== vocab.bos) tokens.unshift(vocab.bos!)
  return tokens
}

/** Goes on with a task for about `budget` characters; whether it has ended. */
function work(task: Task, budget: number): boolean {
  if (task.signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  if (performance.now() > task.until_ms)
    throw new ApiError('overloaded', 'Too many long prompts are being read at the moment. Try again soon.')
  const end = task.characters + budget
  while (task.characters < end) {
    const { value, done } = task.steps.next()
    if (done) return true
    for (const token of value.tokens) task.tokens.push(token)
    if (task.tokens.length > task.tokens_max) throw task.tooLong(task.tokens.length)
    task.characters += value.characters
  }
  return false
}

function* stepsOf(vocab: Vocab, { text, controls }: PromptText): Generator<Step> {
  const { all, control, other } = findersOf(vocab)
  const marked = typeof controls === 'object'
  const first = marked ? control : controls === 'all' ? all : other
  for (const part of first.partition(text)) {
    if (typeof part !== 'string' || !marked) yield* partSteps(vocab, part)
    // Without the marks, tokens that stand for their own text may come to light.
    else
      for (const within of other.partition(part.replaceAll(controls.unless_marked_by, '')))
        yield* partSteps(vocab, within)
  }
}

function* partSteps(vocab: Vocab, part: Part): Generator<Step> {
  if (typeof part !== 'string') yield { tokens: [part.token], characters: part.text.length }
  // A pause in a long search.
  else if (part === '') yield { tokens: [], characters: charactersAtOnce }
  else for (const piece of piecesOf(part, vocab)) yield { tokens: vocab.tokenize(piece), characters: piece.length }
}

type Finders = { all: SpecialTokenFinder; control: SpecialTokenFinder; other: SpecialTokenFinder }
const known = new WeakMap<Vocab, Finders>()

/** Of a vocabulary: all special tokens, those that steer the model, and those that stand for their own text. */
export function findersOf(vocab: Vocab): Finders {
  const before = known.get(vocab)
  if (before) return before
  const { special_tokens } = vocab
  const finders: Finders = {
    all: createSpecialTokenFinder(special_tokens),
    control: createSpecialTokenFinder(special_tokens.filter(({ control }) => control)),
    other: createSpecialTokenFinder(special_tokens.filter(({ control }) => !control)),
  }
  known.set(vocab, finders)
  return finders
}
