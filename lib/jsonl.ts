import { createReadStream } from 'node:fs'

/** The rows of a JSONL file as text, blank lines left out. */
export async function* rowsOf(file: string): AsyncGenerator<string> {
  for await (const { json } of numberedRowsOf(file)) yield json
}

/** The same, each with its line, counted from 1. */
export async function* numberedRowsOf(file: string): AsyncGenerator<{ line: number; json: string }> {
  let line = 0
  for await (const text of linesOf(file)) {
    const json = ++line === 1 ? text.replace(/^\uFEFF/, '') : text
    if (!/^[ \t\r]*$/.test(json)) yield { line, json }
  }
}

// Only a line feed ends a row: the lines of node:readline end at other characters too, which may stand inside a JSON
// string.
async function* linesOf(file: string): AsyncGenerator<string> {
  let rest = ''
  for await (const text of createReadStream(file, 'utf8')) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    yield* lines
  }
  if (rest !== '') yield rest
}
