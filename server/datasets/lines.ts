import { createReadStream } from 'node:fs'

/** The rows of a JSONL file as text, blank lines left out. */
export async function* rowsOf(file: string): AsyncGenerator<string> {
  let first = true
  for await (const line of linesOf(file)) {
    const json = first ? line.replace(/^\uFEFF/, '') : line
    first = false
    if (!/^[ \t\r]*$/.test(json)) yield json
  }
}

// Only a line feed ends a row: the lines of node:readline end at other characters too, which may stand inside a JSON string.
async function* linesOf(file: string): AsyncGenerator<string> {
  let rest = ''
  for await (const text of createReadStream(file, 'utf8')) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    yield* lines
  }
  if (rest !== '') yield rest
}
