// Finds written special tokens in a text, in time that grows with the text alone: the library's own search takes the
// square of it.
import type { SpecialToken } from '../llama/vocab.ts'

type Node = { token: SpecialToken | null; next: Map<number, Node> }

/** What stands between special tokens, or one of these. */
export type Part = string | SpecialToken

export type SpecialTokenFinder = {
  /**
   * Cuts a text at every special token, the longest where several begin. An empty part between two says that a long
   * search is going on.
   */
  partition(text: string): Generator<Part>
  /** The special token that begins at `place` of `text`. */
  at(text: string, place: number): SpecialToken | null
}

// Characters between two pauses of a search.
const searchedAtOnce = 32_768

export function createSpecialTokenFinder(tokens: readonly SpecialToken[]): SpecialTokenFinder {
  const root: Node = { token: null, next: new Map() }
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

  const at = (text: string, place: number): SpecialToken | null => {
    let found: SpecialToken | null = null
    let node = root.next.get(text.charCodeAt(place))
    for (let next = place + 1; node; next++) {
      found = node.token ?? found
      node = next < text.length ? node.next.get(text.charCodeAt(next)) : undefined
    }
    return found
  }

  return {
    at,
    *partition(text) {
      let from = 0
      let last: SpecialToken | null = null
      let pause = searchedAtOnce
      for (let place = 0; place < text.length; ) {
        if (place >= pause) {
          yield ''
          pause = place + searchedAtOnce
        }
        const token = at(text, place)
        if (!token) {
          place++
          continue
        }
        const before = stripped(text, from, place, last?.rstrip, token.lstrip)
        if (before !== '') yield before
        yield token
        last = token
        place += token.text.length
        from = place
      }
      const rest = stripped(text, from, text.length, last?.rstrip, false)
      if (rest !== '') yield rest
    },
  }
}

/** The library's own idea of white space, which some tokens swallow. */
const isSpace = (code: number) => code === 32 || (code >= 9 && code <= 13)

function stripped(text: string, from: number, to: number, atStart: boolean | undefined, atEnd: boolean): string {
  let [start, end] = [from, to]
  if (atStart) while (start < end && isSpace(text.charCodeAt(start))) start++
  if (atEnd) while (end > start && isSpace(text.charCodeAt(end - 1))) end--
  return text.slice(start, end)
}
