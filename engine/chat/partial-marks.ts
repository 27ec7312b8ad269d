// What of a text that is still coming has to wait.

/** How many characters at the end of `text` may be the beginning of `mark`. */
export function beginningAtEnd(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return length
  return 0
}

/** The place from which `text`, up to `end`, has nothing but the characters that `blank` knows. */
export function blankFrom(text: string, end: number, blank: (char: string) => boolean): number {
  while (end > 0 && blank(text[end - 1]!)) end--
  return end
}

export const isSpace = (char: string): boolean => char.trim() === ''
export const isNewline = (char: string): boolean => char === '\n' || char === '\r'
