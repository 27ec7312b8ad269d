// What commands print: text for people, or JSON for programs.
import { createInterface } from 'node:readline/promises'
import { Interrupted } from './errors.ts'
import type { GlobalOptions } from './options.ts'
import { type Column, cut, isTerminal, table } from './text.ts'

/** Prints the value as JSON, or else the text. */
export function show({ json }: GlobalOptions, value: unknown, text: string | (() => string)): void {
  console.log(json ? JSON.stringify(value) : typeof text === 'string' ? text : text())
}

/** Prints a list as JSON, as a table, or the sentence for an empty one. */
export function showList<Row>(
  options: GlobalOptions,
  rows: readonly Row[],
  columns: Column<Row>[],
  { empty, more }: { empty: string; more?: string | undefined },
): void {
  show(options, rows, () => (rows.length === 0 ? empty : table(rows, columns)))
  if (more && !options.json) note(more)
}

/** A remark beside the result, on stderr. */
export const note = (text: string): void => void process.stderr.write(`${text}\n`)

/** Asks a question that is answered by yes or no. False if nobody is there to ask. */
export async function confirm(question: string): Promise<boolean> {
  if (!process.stdin.isTTY) return false
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  const ended = new AbortController()
  terminal.on('SIGINT', () => ended.abort())
  try {
    return /^y(es)?$/i.test((await terminal.question(`${question} [y/N] `, { signal: ended.signal })).trim())
  } catch (error) {
    if (!ended.signal.aborted) throw error
    process.stderr.write('\n')
    throw new Interrupted()
  } finally {
    terminal.close()
  }
}

/** Lines at the end of a terminal that are redrawn, below lines that stay. */
export function createLiveLines(out: NodeJS.WriteStream = process.stdout) {
  let drawn = 0
  const erase = () => {
    if (drawn > 0) out.write(`\r\x1b[${drawn > 1 ? `${drawn - 1}A` : '0G'}\r\x1b[J`)
    drawn = 0
  }
  return {
    /** Replaces the lines. They may be styled if they fit; others are cut. */
    draw(lines: string[]): void {
      if (!isTerminal(out)) return
      erase()
      out.write(lines.join('\n'))
      drawn = lines.length
    },
    /** Prints a line that stays, above the others, which the next `draw` draws again. */
    print(line: string): void {
      erase()
      out.write(`${line}\n`)
    },
    /** Leaves these lines instead. */
    end(lines: string[] = []): void {
      erase()
      if (lines.length > 0) out.write(`${lines.join('\n')}\n`)
    },
  }
}

/** A progress bar: one updated line on a terminal, else a line at each tenth. */
export function createBar(out: NodeJS.WriteStream, drawBar: (share: number) => string) {
  let tenth = -1
  const line = (share: number, text: string) =>
    `${drawBar(share)} ${String(Math.round(share * 100)).padStart(3)} %  ${text}`
  return {
    show(share: number, text: string): void {
      if (isTerminal(out)) out.write(`\r\x1b[K  ${cut(line(share, text), (out.columns || 80) - 3)}`)
      else if (Math.floor(share * 10) !== tenth) {
        tenth = Math.floor(share * 10)
        out.write(`  ${line(share, text)}\n`)
      }
    },
    say(text: string): void {
      out.write(`${isTerminal(out) ? '\r\x1b[K' : ''}  ${text}\n`)
    },
    end(): void {
      if (isTerminal(out)) out.write('\r\x1b[K')
    },
  }
}
