// Turns token bytes into output text: whole characters only. Holds back a partial stop sequence while streaming.

export type TextOutput = {
  /** Appends bytes. Returns the text that can be sent now, and whether a stop sequence has ended the output. */
  push(bytes: Uint8Array): { text: string; stopped: boolean }
  /** Returns the rest of the text at the end of generation. Incomplete characters become U+FFFD. */
  finish(): string
}

/** The text of one generation. It ends before the first `stop` sequence. */
export function createTextOutput(stop: readonly string[]): TextOutput {
  // ignoreBOM keeps a BOM in the text. Decoded text has no lone surrogates, so a stop sequence with one would never
  // match; toWellFormed replaces them.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  const stops = stop.map((sequence) => createMatcher(sequence.toWellFormed()))
  /** Decoded text that is not sent yet. */
  let pending = ''

  /** Takes what cannot be part of a stop sequence. `searched`: characters of `pending` searched before. */
  const takeSafe = (searched: number): { text: string; stopped: boolean } => {
    const found = Math.min(...stops.map((matcher) => matcher.search(pending, searched)))
    const end =
      found < Infinity ? found : pending.length - Math.max(0, ...stops.map((matcher) => matcher.partialLength()))
    const text = pending.slice(0, end)
    pending = found < Infinity ? '' : pending.slice(end)
    return { text, stopped: found < Infinity }
  }

  return {
    push(bytes) {
      const searched = pending.length
      pending += decoder.decode(bytes, { stream: true })
      if (stops.length > 0) return takeSafe(searched)
      const text = pending
      pending = ''
      return { text, stopped: false }
    },
    finish() {
      const searched = pending.length
      pending += decoder.decode()
      const { text } = takeSafe(searched)
      const rest = text + pending
      pending = ''
      return rest
    },
  }
}

type StreamMatcher = {
  /** Continues the search at `from`. Returns the index of the first match that ends after it, or Infinity. */
  search(text: string, from: number): number
  /** Length of the partial match at the end of the searched text. */
  partialLength(): number
}

/** Finds a sequence in a stream of text with the Knuth-Morris-Pratt algorithm: each character is read once. */
function createMatcher(sequence: string): StreamMatcher {
  // KMP failure function, for each prefix matched so far: the length of its longest proper prefix that is also its
  // suffix.
  const fallback = [0, 0]
  let matched = 0
  const advance = (length: number, code: number): number => {
    let at = length
    while (at > 0 && sequence.charCodeAt(at) !== code) at = fallback[at]!
    return sequence.charCodeAt(at) === code ? at + 1 : 0
  }
  return {
    search(text, from) {
      for (let at = from; at < text.length; at++) {
        matched = advance(matched, text.charCodeAt(at))
        if (matched > 1 && fallback.length === matched)
          fallback.push(advance(fallback[matched - 1]!, sequence.charCodeAt(matched - 1)))
        if (matched === sequence.length) return at + 1 - matched
      }
      return Infinity
    },
    partialLength: () => matched,
  }
}
