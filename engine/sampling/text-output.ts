// From a token's bytes to the text that may be shown: whole characters only, and nothing that may yet turn out to be a
// stop sequence.

export type TextOutput = {
  /**
   * Takes the next bytes; returns the text that is certain now, and whether a stop sequence has ended the output before
   * it.
   */
  push(bytes: Uint8Array): { text: string; stopped: boolean }
  /** The end of generation: what was held back. Bytes that never became a character are U+FFFD. */
  finish(): string
}

/** The text of one generation, which ends before the first of the `stop` sequences that appears. */
export function createTextOutput(stop: readonly string[]): TextOutput {
  // BOM kept: a model that writes one meant it. Lone surrogates can't appear in decoded text, so they can't be waited
  // for.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  const stops = stop.map((sequence) => createFinder(sequence.toWellFormed()))
  let held = ''

  /** `read` characters of what is held have been searched. */
  const release = (read: number): { text: string; stopped: boolean } => {
    const found = Math.min(...stops.map((finder) => finder.search(held, read)))
    const end = found < Infinity ? found : held.length - Math.max(0, ...stops.map((finder) => finder.begun()))
    const text = held.slice(0, end)
    held = found < Infinity ? '' : held.slice(end)
    return { text, stopped: found < Infinity }
  }

  return {
    push(bytes) {
      const read = held.length
      held += decoder.decode(bytes, { stream: true })
      if (stops.length > 0) return release(read)
      const text = held
      held = ''
      return { text, stopped: false }
    },
    finish() {
      const read = held.length
      held += decoder.decode()
      const { text } = release(read)
      const rest = text + held
      held = ''
      return rest
    },
  }
}

type Finder = {
  /** Searches on from `from`; where the first appearance begins that ends behind it, or Infinity. */
  search(text: string, from: number): number
  /** How many characters at the end of what was searched are a beginning of the sequence. */
  begun(): number
}

/**
 * Finds a sequence in a text that comes in parts, each character once: long sequences that are nearly there again and
 * again cost no more (Knuth, Morris, Pratt).
 */
function createFinder(sequence: string): Finder {
  // Of each beginning that was come to: the length of the longest shorter one that it ends with.
  const shorter = [0, 0]
  let matched = 0
  const advance = (length: number, code: number): number => {
    let at = length
    while (at > 0 && sequence.charCodeAt(at) !== code) at = shorter[at]!
    return sequence.charCodeAt(at) === code ? at + 1 : 0
  }
  return {
    search(text, from) {
      for (let place = from; place < text.length; place++) {
        matched = advance(matched, text.charCodeAt(place))
        if (matched > 1 && shorter.length === matched)
          shorter.push(advance(shorter[matched - 1]!, sequence.charCodeAt(matched - 1)))
        if (matched === sequence.length) return place + 1 - matched
      }
      return Infinity
    },
    begun: () => matched,
  }
}
