// From a token's bytes to the text that may be shown: whole characters only, and nothing that may yet turn out to be a stop sequence.

export type TextOutput = {
  /** Takes the next bytes; returns the text that is certain now, and whether a stop sequence has ended the output before it. */
  push(bytes: Uint8Array): { text: string; stopped: boolean }
  /** The end of generation: what was held back. Bytes that never became a character are U+FFFD. */
  finish(): string
}

/** The text of one generation, which ends before the first of the `stop` sequences that appears. */
export function createTextOutput(stop: readonly string[]): TextOutput {
  // BOM kept: a model that writes one meant it. Lone surrogates can't appear in decoded text, so they can't be waited for.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  const stops = stop.map((sequence) => sequence.toWellFormed())
  let held = ''

  const release = (): { text: string; stopped: boolean } => {
    const found = Math.min(...stops.map((sequence) => indexOrInfinity(held, sequence)))
    const end = found < Infinity ? found : held.length - Math.max(0, ...stops.map((sequence) => prefixAtEnd(held, sequence)))
    const text = held.slice(0, end)
    held = found < Infinity ? '' : held.slice(end)
    return { text, stopped: found < Infinity }
  }

  return {
    push(bytes) {
      held += decoder.decode(bytes, { stream: true })
      if (stops.length > 0) return release()
      const text = held
      held = ''
      return { text, stopped: false }
    },
    finish() {
      held += decoder.decode()
      const { text } = release()
      const rest = text + held
      held = ''
      return rest
    },
  }
}

function indexOrInfinity(text: string, sequence: string): number {
  const index = text.indexOf(sequence)
  return index < 0 ? Infinity : index
}

/** How many characters at the end of `text` are a beginning of `sequence`. */
function prefixAtEnd(text: string, sequence: string): number {
  for (let length = Math.min(text.length, sequence.length - 1); length > 0; length--) {
    if (text.endsWith(sequence.slice(0, length))) return length
  }
  return 0
}
