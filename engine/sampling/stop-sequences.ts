// Ends text before a stop sequence, and holds back what may become one while streaming. Decodes tokens into such text.

export interface TextOutput {
  /** Appends bytes. Returns the text that can be sent now, and whether a stop sequence has ended the output. */
  push(bytes: Uint8Array): StopFiltered
  /** Ends the output and returns the rest of the text. Incomplete characters become U+FFFD. */
  finish(): StopFiltered
}

interface StopFiltered {
  text: string
  stopped: boolean
}

/** The text of one generation. It ends before the first `stop` sequence. */
export function createTextOutput(stop: readonly string[]): TextOutput {
  // ignoreBOM keeps a BOM in the text.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  const filter = createStopFilter(stop)
  return {
    push: (bytes) => filter.push(decoder.decode(bytes, { stream: true })),
    finish() {
      const { text, stopped } = filter.push(decoder.decode())
      return { text: stopped ? text : text + filter.finish(), stopped }
    },
  }
}

interface StopFilter {
  /** Appends text. Returns what can be sent now, and whether a stop sequence has ended the text. */
  push(text: string): StopFiltered
  /** Returns the text held back as a possible stop sequence. The filter is as new afterwards. */
  finish(): string
}

/**
 * Ends text before the `stop` sequence that is complete first, the longest of several that end at one place, and holds
 * back what may become one. So the text is the same however it is split.
 */
export function createStopFilter(stop: readonly string[]): StopFilter {
  // Decoded text has no lone surrogates, so a stop sequence with one would never match; toWellFormed replaces them.
  const matchers = stop.map((sequence) => createMatcher(sequence.toWellFormed()))
  /** Text that is not sent yet. */
  let pending = ''
  return {
    push(text) {
      if (matchers.length === 0) return { text, stopped: false }
      const searched = pending.length
      pending += text
      let [stop_at, complete_at] = [Infinity, Infinity]
      for (const matcher of matchers) {
        const { start, end } = matcher.search(pending, searched)
        if (end < complete_at || (end === complete_at && start < stop_at)) [stop_at, complete_at] = [start, end]
      }
      const stopped = stop_at < Infinity
      const end = stopped ? stop_at : pending.length - Math.max(...matchers.map((matcher) => matcher.partialLength()))
      const sendable = pending.slice(0, end)
      pending = stopped ? '' : pending.slice(end)
      return { text: sendable, stopped }
    },
    finish() {
      const rest = pending
      pending = ''
      for (const matcher of matchers) matcher.reset()
      return rest
    },
  }
}

/** The stop sequences of a request as a list. */
export function stopSequences(stop: string | readonly string[] | null | undefined): readonly string[] {
  return stop == null ? [] : typeof stop === 'string' ? [stop] : stop
}

interface StreamMatcher {
  /** Continues the search at `from`. Returns the first match that ends after it, at Infinity if there is none. */
  search(text: string, from: number): { start: number; end: number }
  /** Length of the partial match at the end of the searched text. */
  partialLength(): number
  /** Forgets the partial match. */
  reset(): void
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
        if (matched === sequence.length) return { start: at + 1 - matched, end: at + 1 }
      }
      return { start: Infinity, end: Infinity }
    },
    partialLength: () => matched,
    reset() {
      matched = 0
    },
  }
}
