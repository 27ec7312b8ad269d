import { createReadStream } from 'node:fs'

/** Yields the rows of a JSONL file as text, without blank lines. */
export async function* readJsonl(file: string): AsyncGenerator<string> {
  for await (const { json } of readNumberedJsonl(file)) yield json
}

/** The same with each row's line number, from 1. */
export async function* readNumberedJsonl(file: string): AsyncGenerator<{ line: number; json: string }> {
  let line = 0
  for await (const text of readLines(file)) {
    const json = ++line === 1 ? text.replace(/^\uFEFF/, '') : text
    if (!/^[ \t\r]*$/.test(json)) yield { line, json }
  }
}

// Splits at line feeds only. node:readline also splits at characters that may occur inside a JSON string (U+2028).
async function* readLines(file: string): AsyncGenerator<string> {
  let rest = ''
  for await (const text of createReadStream(file, 'utf8')) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    yield* lines
  }
  if (rest !== '') yield rest
}
