// Finds the written forms of special tokens in a text with a trie, in linear time. The library's own search takes
// quadratic time.
import type { SpecialToken } from '../llama/vocab.ts'

interface TrieNode {
  token: SpecialToken | null
  next: Map<number, TrieNode>
}

/** A special token, or text between special tokens. */
export type Part = string | SpecialToken

export interface SpecialTokenFinder {
  /**
   * Splits a text at every special token; the longest match wins. An empty part marks a pause in a long search, so that
   * the caller can yield.
   */
  partition(text: string): Generator<Part>
  /** The longest special token that starts at `position` of `text`. */
  matchAt(text: string, position: number): SpecialToken | null
}

// Characters searched between two pauses.
const searchSliceLength = 32_768

export function createSpecialTokenFinder(tokens: readonly SpecialToken[]): SpecialTokenFinder {
  const root: TrieNode = { token: null, next: new Map() }
  for (const token of tokens) {
    if (token.text === '') continue
    let node = root
    for (let at = 0; at < token.text.length; at++) {
      const code = token.text.charCodeAt(at)
      let next = node.next.get(code)
      if (!next) {
        next = { token: null, next: new Map() }
        node.next.set(code, next)
      }
      node = next
    }
    node.token ??= token
  }

  const matchAt = (text: string, position: number): SpecialToken | null => {
    let first: SpecialToken | null = null
    let node = root.next.get(text.charCodeAt(position))
    for (let next = position + 1; node; next++) {
      first = node.token ?? first
      node = next < text.length ? node.next.get(text.charCodeAt(next)) : undefined
    }
    return first
  }

  return {
    matchAt,
    *partition(text) {
      let from = 0
      let last: SpecialToken | null = null
      let pause = searchSliceLength
      for (let position = 0; position < text.length; ) {
        if (position >= pause) {
          yield ''
          pause = position + searchSliceLength
        }
        const token = matchAt(text, position)
        if (!token) {
          position++
          continue
        }
        const textBefore = strip(text, from, position, last?.rstrip, token.lstrip)
        if (textBefore !== '') yield textBefore
        yield token
        last = token
        position += token.text.length
        from = position
      }
      const rest = strip(text, from, text.length, last?.rstrip, false)
      if (rest !== '') yield rest
    },
  }
}

/** White space by the library's definition, which tokens with `lstrip` or `rstrip` remove. */
const isSpace = (code: number) => code === 32 || (code >= 9 && code <= 13)

function strip(text: string, from: number, to: number, atStart: boolean | undefined, atEnd: boolean): string {
  let [start, end] = [from, to]
  if (atStart) while (start < end && isSpace(text.charCodeAt(start))) start++
  if (atEnd) while (end > start && isSpace(text.charCodeAt(end - 1))) end--
  return text.slice(start, end)
}
