// Tokenizes prompts in slices between decode steps, round robin over accounts. Stops as soon as a prompt is too long.
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import { ApiError } from '../../contract/errors.ts'
import type { FimTokens, Vocab } from '../llama/vocab.ts'
import { splitText } from './pieces.ts'
import { createSpecialTokenFinder, type Part, type SpecialTokenFinder } from './special-tokens.ts'

export interface PromptText {
  text: string
  /**
   * Which written control tokens become control tokens: all, none, or those without `escape_marker` inside. The marker
   * itself is not part of the text.
   */
  controls: 'all' | 'none' | { escape_marker: string }
}

export interface TokenizeOptions {
  account: string
  /** Aborts the work. */
  signal: AbortSignal
  /** A longer text fails with `tooLong`, as soon as its minimum length is known. */
  tokens_max: number
  /** Makes the error for a text of at least this many tokens. */
  tooLong(tokens_min: number): ApiError
}

export interface Tokenizer {
  /**
   * Tokens of a text, without BOS or other tokens around it. Throws ApiError: the one from `tooLong`, or overloaded
   * after half a minute.
   */
  tokenize(vocab: Vocab, prompt: PromptText, options: TokenizeOptions): Promise<number[]>
}

// Characters per slice, after which streams continue. Plain text is tokenized at about 1 MB per second.
const sliceCharacters = 8192
// Fixed cost of a text, in characters.
const charactersPerText = 64
const wait_ms_max = 30_000

interface Piece {
  tokens: readonly number[]
  characters: number
}
interface Task extends TokenizeOptions {
  pieces: Generator<Piece>
  characters: number
  tokens: number[]
  deadline_ms: number
  resolve(tokens: number[]): void
  reject(error: unknown): void
}

/** Calls `onProgress` after each slice of work, `onBusy` when work begins, and the function it returns at its end. */
export function createTokenizer(
  onProgress: () => void = () => {},
  onBusy: () => () => void = () => () => {},
): Tokenizer {
  // By account. Insertion order is the round robin.
  const waiting = new Map<string, Task[]>()
  let working = false

  /** Works on the first task of the next account. Returns the characters read. */
  const runSlice = (budget: number): number => {
    const [account, tasks] = waiting.entries().next().value!
    waiting.delete(account)
    const task = tasks[0]!
    const charactersBefore = task.characters
    try {
      if (advanceTask(task, budget)) {
        tasks.shift()
        task.resolve(task.tokens)
      }
    } catch (error) {
      tasks.shift()
      task.reject(error)
    }
    if (tasks.length > 0) waiting.set(account, tasks)
    return task.characters - charactersBefore
  }

  const loop = async () => {
    working = true
    const endWork = onBusy()
    while (waiting.size > 0) {
      for (let budget = sliceCharacters; budget > 0 && waiting.size > 0; budget -= charactersPerText)
        budget -= runSlice(budget)
      onProgress()
      // Also after the last slice: many short texts in sequence must not block streams either.
      await yieldToEventLoop()
    }
    endWork()
    working = false
  }

  return {
    tokenize: (vocab, prompt, options) =>
      new Promise((resolve, reject) => {
        const tokens_min = Math.ceil(Buffer.byteLength(stripMarkers(prompt)) / vocab.longest_token_bytes)
        if (tokens_min > options.tokens_max) throw options.tooLong(tokens_min)
        const task: Task = {
          ...options,
          pieces: tokenizePieces(vocab, prompt),
          characters: 0,
          tokens: [],
          deadline_ms: performance.now() + wait_ms_max,
          resolve,
          reject,
        }
        const tasks = waiting.get(options.account)
        if (tasks) tasks.push(task)
        else waiting.set(options.account, [task])
        if (!working) void loop()
      }),
  }
}

/** The text without escape markers. */
export const stripMarkers = ({ text, controls }: PromptText): string =>
  typeof controls === 'object' ? text.replaceAll(controls.escape_marker, '') : text

/** Tokens of a prompt, with BOS exactly once if the model wants it. Throws like `tokenize`. */
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

/** Tokens that have the model write what is between prefix and suffix; BOS, if the model wants it, stays first. */
export function fimPrompt(
  { bos, wants_bos }: Pick<Vocab, 'bos' | 'wants_bos'>,
  fim: FimTokens,
  prefix: number[],
  suffix: number[],
): number[] {
  const withoutBos = (tokens: number[]) => (wants_bos && tokens[0] === bos ? tokens.slice(1) : tokens)
  const start = wants_bos ? [bos!] : []
  return [...start, fim.prefix, ...withoutBos(prefix), fim.suffix, ...withoutBos(suffix), fim.middle]
}

/** Advances a task by about `budget` characters. Returns whether it is done. */
function advanceTask(task: Task, budget: number): boolean {
  if (task.signal.aborted) throw new ApiError('engine_unavailable', 'The caller has left.')
  if (performance.now() > task.deadline_ms)
    throw new ApiError('overloaded', 'Too many long prompts are being read at the moment. Try again soon.')
  const end = task.characters + budget
  while (task.characters < end) {
    const { value, done } = task.pieces.next()
    if (done) return true
    for (const token of value.tokens) task.tokens.push(token)
    if (task.tokens.length > task.tokens_max) throw task.tooLong(task.tokens.length)
    task.characters += value.characters
  }
  return false
}

function* tokenizePieces(vocab: Vocab, { text, controls }: PromptText): Generator<Piece> {
  const { all, control, other } = findersOf(vocab)
  const hasMarkers = typeof controls === 'object'
  const first = hasMarkers ? control : controls === 'all' ? all : other
  for (const part of first.partition(text)) {
    if (typeof part !== 'string' || !hasMarkers) yield* tokenizePart(vocab, part)
    // With the markers removed, non-control special tokens may match.
    else
      for (const within of other.partition(part.replaceAll(controls.escape_marker, '')))
        yield* tokenizePart(vocab, within)
  }
}

function* tokenizePart(vocab: Vocab, part: Part): Generator<Piece> {
  if (typeof part !== 'string') yield { tokens: [part.token], characters: part.text.length }
  // A pause in a long search uses up the slice.
  else if (part === '') yield { tokens: [], characters: sliceCharacters }
  else for (const piece of splitText(part, vocab)) yield { tokens: vocab.tokenize(piece), characters: piece.length }
}

interface Finders {
  all: SpecialTokenFinder
  control: SpecialTokenFinder
  other: SpecialTokenFinder
}
const finderCache = new WeakMap<Vocab, Finders>()

/** Finders for all special tokens of a vocabulary, for its control tokens, and for the others. Cached. */
export function findersOf(vocab: Vocab): Finders {
  const cached = finderCache.get(vocab)
  if (cached) return cached
  const { special_tokens } = vocab
  const finders: Finders = {
    all: createSpecialTokenFinder(special_tokens),
    control: createSpecialTokenFinder(special_tokens.filter(({ control }) => control)),
    other: createSpecialTokenFinder(special_tokens.filter(({ control }) => !control)),
  }
  finderCache.set(vocab, finders)
  return finders
}
