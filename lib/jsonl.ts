import { createReadStream } from 'node:fs'

/** Yields the rows of a JSONL file as text, without blank lines. */
export async function* readJsonl(file: string): AsyncGenerator<string> {
  for await (const { json } of readNumberedJsonl(file)) yield json
}

/** A line has more characters than the reader takes. */
export class LineTooLong extends Error {
  readonly line: number
  constructor(line: number) {
    super(`line ${line} is too long`)
    this.line = line
  }
}

/** Where a line begins: how many lines, and how many bytes, are before it. */
export interface LineStart {
  line: number
  offset: number
}

/**
 * The same with each row's line number, from 1, and the byte where the line begins. Starts at the line that begins at
 * `start`. Offsets are right in files that are UTF-8. Throws LineTooLong beyond `chars_max` characters.
 */
export async function* readNumberedJsonl(
  file: string,
  chars_max = Number.POSITIVE_INFINITY,
  start: LineStart = { line: 0, offset: 0 },
): AsyncGenerator<{ line: number; json: string; offset: number }> {
  let { line, offset } = start
  const onRest = (chars: number) => {
    if (chars > chars_max) throw new LineTooLong(line + 1)
  }
  for await (const text of readLines(file, offset, onRest)) {
    onRest(text.length)
    const json = ++line === 1 ? text.replace(/^\uFEFF/, '') : text
    if (!/^[ \t\r]*$/.test(json)) yield { line, json, offset }
    offset += Buffer.byteLength(text) + 1
  }
}

// Splits at line feeds only. node:readline also splits at characters that may occur inside a JSON string (U+2028).
// `onRest` gets the length of the line that is being read.
async function* readLines(file: string, start: number, onRest: (chars: number) => void): AsyncGenerator<string> {
  // The pieces of the line that is being read, joined once: a long line has thousands.
  let rest: string[] = []
  let chars = 0
  for await (const text of createReadStream(file, { encoding: 'utf8', start }) as AsyncIterable<string>) {
    const lines = text.split('\n')
    const last = lines.pop()!
    for (const line of lines) {
      yield rest.length === 0 ? line : [...rest, line].join('')
      rest = []
      chars = 0
    }
    if (last !== '') rest.push(last)
    chars += last.length
    onRest(chars)
  }
  if (rest.length > 0) yield rest.join('')
}
