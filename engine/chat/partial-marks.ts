// Partial markers and trailing blanks at the end of streamed text.

/** Length of the longest suffix of `text` that is a proper prefix of `mark`. */
export function partialSuffixLength(text: string, marker: string): number {
  for (let length = Math.min(text.length, marker.length - 1); length > 0; length--)
    if (text.endsWith(marker.slice(0, length))) return length
  return 0
}

/** Start of the run of `isBlank` characters that ends at `end`. */
export function trailingBlankStart(text: string, end: number, isBlank: (char: string) => boolean): number {
  while (end > 0 && isBlank(text[end - 1]!)) end--
  return end
}

export const isSpace = (char: string): boolean => char.trim() === ''
export const isNewline = (char: string): boolean => char === '\n' || char === '\r'
