// Random documents generated under a grammar's masks, with the vocabulary of a real model.
import { join } from 'node:path'
import type { GrammarSession, GrammarVocab } from '../../../engine/grammar/grammars.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import { loadModel } from '../../../engine/llama/model.ts'
import type { Vocab } from '../../../engine/llama/vocab.ts'
import { root } from '../../process/engine/engine-process.ts'

export async function realVocab(): Promise<Vocab> {
  const library = openLibrary(join(root, '.local/llama/lib'))
  return (await loadModel(library, join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/model.gguf'))).vocab
}

/** Reproducible random numbers from 0 to 1. */
export function seeded(seed: number): () => number {
  let state = seed * 2_654_435_761 + 1
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) | 0
    return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32
  }
}

export function allowedTokens(mask: Uint32Array, size: number): number[] {
  const tokens: number[] = []
  for (let word = 0; word < mask.length; word++) {
    if (mask[word] === 0) continue
    for (let bit = 0; bit < 32; bit++)
      if ((mask[word]! >>> bit) & 1 && word * 32 + bit < size) tokens.push(word * 32 + bit)
  }
  return tokens
}

export async function nextMask(session: GrammarSession): Promise<Uint32Array> {
  for (;;) {
    const mask = session.mask(5)
    if (mask) return mask
    await new Promise((resolve) => setImmediate(resolve))
  }
}

export interface Walk {
  text: string
  tokens: number[]
  ended: boolean
}

/** What the walk asks of a token, a bit each. */
const [isEnd, isClosing, isMark, isShort, isBlank] = [1, 2, 4, 8, 16]
const kinds = new WeakMap<GrammarVocab, Uint8Array>()

/** The answers for every token, computed once: a walk asks for thousands of tokens at each step. */
function kindsOf(vocab: GrammarVocab): Uint8Array {
  const cached = kinds.get(vocab)
  if (cached) return cached
  const kind = Uint8Array.from({ length: vocab.size }, (_, token) => {
    const bytes = vocab.bytes(token)
    const text = Buffer.from(bytes).toString('latin1')
    return (
      (vocab.isEndOfGeneration(token) ? isEnd : 0) |
      (/^[\]}"]$/.test(text) ? isClosing : 0) |
      (/^[@.:/\-TZ]$/.test(text) ? isMark : 0) |
      (bytes.length <= 2 ? isShort : 0) |
      (/^\s*$/.test(text) ? isBlank : 0)
    )
  })
  kinds.set(vocab, kind)
  return kind
}

/**
 * Walks until the end of generation or `most` tokens. Towards the end it prefers tokens that close open brackets and
 * quotes.
 */
export async function walk(
  session: GrammarSession,
  vocab: GrammarVocab,
  random: () => number,
  tokensMax = 300,
): Promise<Walk> {
  const tokens: number[] = []
  const kind = kindsOf(vocab)
  const are = (list: number[], bit: number) => list.filter((token) => kind[token]! & bit)
  const areNot = (list: number[], bit: number) => list.filter((token) => !(kind[token]! & bit))
  const text = () => Buffer.concat(tokens.map((token) => vocab.bytes(token))).toString('utf8')
  while (tokens.length < tokensMax) {
    const allowed = allowedTokens(await nextMask(session), vocab.size)
    const others = areNot(allowed, isEnd)
    const ends = allowed.length - others.length
    if (ends > 0 && (others.length === 0 || random() < 0.3 || tokens.length > tokensMax / 4))
      return { text: text(), tokens, ended: true }
    const closes = are(allowed, isClosing)
    // Prefer separators sometimes: those of an address or a date are one character of thousands, and a walk would
    // hardly ever choose one.
    const marks = are(others, isMark)
    const from =
      marks.length > 0 && closes.length === 0 && random() < 0.2
        ? marks
        : closes.length > 0 && random() < (tokens.length > tokensMax / 4 ? 0.95 : 0.2)
          ? closes
          : others
    // Choose short tokens as often as long ones, or nearly everything would be words.
    const hasShort = from.some((token) => kind[token]! & isShort)
    const wordy = areNot(from, isBlank)
    const choice =
      wordy.length > 0 && random() < 0.9 ? (hasShort && random() < 0.5 ? are(wordy, isShort) : wordy) : from
    const token = (choice.length > 0 ? choice : from)[Math.floor(random() * (choice.length || from.length))]!
    tokens.push(token)
    session.accept(token)
  }
  return { text: text(), tokens, ended: false }
}
