// Questions on the terminal.
import { createInterface } from 'node:readline/promises'
import { Writable } from 'node:stream'
import { text as textOf } from 'node:stream/consumers'
import { Interrupted, UsageError } from './errors.ts'

/** All of stdin. */
export const readAll = (): Promise<string> => textOf(process.stdin)

/** What the user types. Throws a UsageError if nobody is there. */
export const ask = (question: string): Promise<string> => askOn(question, process.stderr)

/** The same without showing it. */
export async function askHidden(question: string): Promise<string> {
  const typed = askOn(question, new Writable({ write: (_text, _encoding, done) => done() }))
  try {
    return await typed
  } finally {
    if (process.stdin.isTTY) process.stderr.write('\n')
  }
}

async function askOn(question: string, output: NodeJS.WritableStream): Promise<string> {
  if (!process.stdin.isTTY)
    throw new UsageError(
      `Nobody is there to answer '${question.trim()}'. Give it as an option; './tunery login --help' lists them.`,
    )
  const stop = new AbortController()
  // As a terminal: it takes keys one by one, and the terminal itself shows none of them.
  const terminal = createInterface({ input: process.stdin, output, terminal: true })
  if (output !== process.stderr) process.stderr.write(question)
  terminal.on('SIGINT', () => stop.abort())
  terminal.on('close', () => stop.abort())
  try {
    return (await terminal.question(output === process.stderr ? question : '', { signal: stop.signal })).trim()
  } catch (error) {
    if (!stop.signal.aborted) throw error
    if (output === process.stderr) process.stderr.write('\n')
    throw new Interrupted()
  } finally {
    terminal.close()
  }
}
