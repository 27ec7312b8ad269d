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

export type Walk = { text: string; tokens: number[]; ended: boolean }

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
  const closing = new Set(
    Array.from({ length: vocab.size }, (_, token) => token).filter((token) =>
      /^[\]}"]$/.test(Buffer.from(vocab.bytes(token)).toString('latin1')),
    ),
  )
  const text = () => Buffer.concat(tokens.map((token) => vocab.bytes(token))).toString('utf8')
  while (tokens.length < tokensMax) {
    const allowed = allowedTokens(await nextMask(session), vocab.size)
    const ends = allowed.filter((token) => vocab.isEndOfGeneration(token))
    const closes = allowed.filter((token) => closing.has(token))
    if (ends.length > 0 && (ends.length === allowed.length || random() < 0.3 || tokens.length > tokensMax / 4))
      return { text: text(), tokens, ended: true }
    const others = allowed.filter((token) => !vocab.isEndOfGeneration(token))
    // Prefer separators sometimes: those of an address or a date are one character of thousands, and a walk would
    // hardly ever choose one.
    const marks = others.filter((token) => /^[@.:/\-TZ]$/.test(Buffer.from(vocab.bytes(token)).toString('latin1')))
    const from =
      marks.length > 0 && closes.length === 0 && random() < 0.2
        ? marks
        : closes.length > 0 && random() < (tokens.length > tokensMax / 4 ? 0.95 : 0.2)
          ? closes
          : others
    // Choose short tokens as often as long ones, or nearly everything would be words.
    const short = from.filter((token) => vocab.bytes(token).length <= 2)
    const wordy = from.filter((token) => !/^\s*$/.test(Buffer.from(vocab.bytes(token)).toString('latin1')))
    const choice =
      wordy.length > 0 && random() < 0.9
        ? short.length > 0 && random() < 0.5
          ? wordy.filter((token) => vocab.bytes(token).length <= 2)
          : wordy
        : from
    const token = (choice.length > 0 ? choice : from)[Math.floor(random() * (choice.length || from.length))]!
    tokens.push(token)
    session.accept(token)
  }
  return { text: text(), tokens, ended: false }
}
