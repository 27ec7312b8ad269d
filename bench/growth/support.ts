// What several sweeps need: files of rows, and the time of a piece of work.
import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'

export const root = path.resolve(import.meta.dirname, '../..')
export const python = path.join(root, '.local/python/bin/python')
export const modelDir = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf')

export async function secondsOf(work: () => Promise<unknown>): Promise<number> {
  const started = performance.now()
  await work()
  return (performance.now() - started) / 1000
}

let folder: string | undefined

/** A temporary JSONL file of conversations; `row` gives question and answer of each. */
export function writeRows(count: number, row: (number: number) => [question: string, answer: string]): string {
  if (!folder) {
    const temporary = mkdtempSync(path.join(os.tmpdir(), 'tunery-growth-'))
    process.once('exit', () => rmSync(temporary, { recursive: true, force: true }))
    folder = temporary
  }
  const file = path.join(folder, 'rows.jsonl')
  const fd = openSync(file, 'w')
  let lines: string[] = []
  for (let number = 1; number <= count; number++) {
    const [question, answer] = row(number)
    lines.push(
      `${JSON.stringify({
        messages: [
          { role: 'user', content: question },
          { role: 'assistant', content: answer },
        ],
      })}\n`,
    )
    if (lines.length < 2000 && number < count) continue
    writeSync(fd, lines.join(''))
    lines = []
  }
  closeSync(fd)
  return file
}

/** Two short sentences; no row is like another. */
export const numberedRow = (row: number): [string, string] => [`Question ${row}: how much is it?`, `It is ${row * 7}.`]
