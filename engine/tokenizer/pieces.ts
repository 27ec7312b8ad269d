// Cuts a long text into pieces whose tokens are, one piece after the other, those of the whole text.
import type { Vocab } from '../llama/vocab.ts'

export type PieceBounds = { wanted: number; max: number }

// A piece takes some milliseconds, in which no stream goes on. The library's patterns recurse over texts without a
// break: those have an end as well.
const boundsDefault: PieceBounds = { wanted: 8192, max: 65_536 }

const letter = /\p{L}/u
const letterOrPunctuation = /[\p{L}\p{P}]/u
const isHighSurrogate = (code: number) => code >= 0xd800 && code < 0xdc00
const isLowSurrogate = (code: number) => code >= 0xdc00 && code < 0xe000

/**
 * The pieces of `text`, in order. A cut stands behind a letter, before a word or another letter or a mark, and only
 * where no token of the vocabulary has these two bytes inside: merging never crosses it, and no pattern that splits a
 * text into words looks over it. `max` characters without such a place are cut all the same.
 */
export function* piecesOf(
  text: string,
  vocab: Pick<Vocab, 'kind' | 'adds_space' | 'hasPair'>,
  { wanted, max }: PieceBounds = boundsDefault,
): Generator<string> {
  let from = 0
  while (text.length - from > wanted) {
    let cut = from + wanted
    const end = Math.min(text.length, from + max)
    while (cut < end && !mayCut(text, cut, vocab)) cut++
    if (cut === text.length) break
    if (cut === end && isLowSurrogate(text.charCodeAt(cut))) cut--
    yield text.slice(from, cut)
    // The tokenizer puts the space there again.
    from = vocab.adds_space && text[cut] === ' ' ? cut + 1 : cut
  }
  yield text.slice(from)
}

function mayCut(text: string, at: number, vocab: Pick<Vocab, 'kind' | 'adds_space' | 'hasPair'>): boolean {
  const before = characterBefore(text, at)
  const next = characterAt(text, at)
  if (!letter.test(before)) return false
  const beforeWord = next === ' ' && letter.test(characterAt(text, at + 1))
  // Words are all that such a vocabulary knows.
  if (vocab.kind === 'wpm') return beforeWord
  if (vocab.kind === 'other') return false
  // What follows would get a space that it does not have.
  if (vocab.adds_space || vocab.kind === 'ugm')
    return beforeWord && vocab.adds_space && !pairBetween(before, next, vocab)
  return (
    (beforeWord || (letterOrPunctuation.test(next) && !isLowSurrogate(text.charCodeAt(at)))) &&
    !pairBetween(before, next, vocab)
  )
}

const pairBetween = (before: string, next: string, { hasPair }: Pick<Vocab, 'hasPair'>) =>
  hasPair(Buffer.from(before).at(-1)!, Buffer.from(next)[0]!)

function characterAt(text: string, at: number): string {
  return String.fromCodePoint(text.codePointAt(at) ?? 32)
}

function characterBefore(text: string, at: number): string {
  return isLowSurrogate(text.charCodeAt(at - 1)) && isHighSurrogate(text.charCodeAt(at - 2))
    ? text.slice(at - 2, at)
    : text.slice(at - 1, at)
}
