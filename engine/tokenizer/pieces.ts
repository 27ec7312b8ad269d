// Splits a long text into pieces that can be tokenized separately: the tokens of all pieces equal those of the whole
// text.
import type { Vocab } from '../llama/vocab.ts'

/** In UTF-16 code units. */
interface PieceBounds {
  wanted: number
  max: number
}

// A piece takes some milliseconds, in which no stream continues. The maximum bounds the recursion of the library's
// patterns over text without a break.
const boundsDefault: PieceBounds = { wanted: 8192, max: 65_536 }

const letter = /\p{L}/u
const letterOrPunctuation = /[\p{L}\p{P}]/u
const isHighSurrogate = (code: number) => code >= 0xd800 && code < 0xdc00
const isLowSurrogate = (code: number) => code >= 0xdc00 && code < 0xe000

/**
 * Yields the pieces of `text` in order. A split follows a letter and precedes a word, a letter or punctuation, where no
 * token of the vocabulary contains the two adjacent bytes. There, no merge crosses the split, and no pre-tokenizer
 * pattern looks past it. Without such a position, a piece is split after `max`.
 */
export function* splitText(
  text: string,
  vocab: Pick<Vocab, 'kind' | 'adds_space_prefix' | 'hasBytePair'>,
  { wanted, max }: PieceBounds = boundsDefault,
): Generator<string> {
  let from = 0
  while (text.length - from > wanted) {
    let split = from + wanted
    const end = Math.min(text.length, from + max)
    while (split < end && !maySplit(text, split, vocab)) split++
    if (split === text.length) break
    if (split === end && isLowSurrogate(text.charCodeAt(split))) split--
    yield text.slice(from, split)
    // The tokenizer adds this space to the next piece again.
    from = vocab.adds_space_prefix && text[split] === ' ' ? split + 1 : split
  }
  yield text.slice(from)
}

function maySplit(text: string, at: number, vocab: Pick<Vocab, 'kind' | 'adds_space_prefix' | 'hasBytePair'>): boolean {
  const before = characterBefore(text, at)
  const next = characterAt(text, at)
  if (!letter.test(before)) return false
  const beforeWord = next === ' ' && letter.test(characterAt(text, at + 1))
  // WordPiece tokenizes each word separately.
  if (vocab.kind === 'wpm') return beforeWord
  if (vocab.kind === 'other') return false
  // The tokenizer adds a space to each piece, so split only at a space.
  if (vocab.adds_space_prefix || vocab.kind === 'ugm')
    return beforeWord && vocab.adds_space_prefix && !pairBetween(before, next, vocab)
  return (
    (beforeWord || (letterOrPunctuation.test(next) && !isLowSurrogate(text.charCodeAt(at)))) &&
    !pairBetween(before, next, vocab)
  )
}

const pairBetween = (before: string, next: string, { hasBytePair }: Pick<Vocab, 'hasBytePair'>) =>
  hasBytePair(Buffer.from(before).at(-1)!, Buffer.from(next)[0]!)

function characterAt(text: string, at: number): string {
  return String.fromCodePoint(text.codePointAt(at) ?? 32)
}

function characterBefore(text: string, at: number): string {
  return isLowSurrogate(text.charCodeAt(at - 1)) && isHighSurrogate(text.charCodeAt(at - 2))
    ? text.slice(at - 2, at)
    : text.slice(at - 1, at)
}
