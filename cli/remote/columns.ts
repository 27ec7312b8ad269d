// Texts that arrive at once, side by side. A line is printed for good when every column has it; the one that is still
// being written is redrawn.
import { columnsOf, pad, paint, wrap } from '../support/text.ts'

const gap = ' │ '

export interface Columns {
  write(index: number, text: string): void
  /** No more text comes; `footer` stands below the column. */
  end(index: number, footer: string): void
}

export function createColumns(heads: string[], out: NodeJS.WriteStream = process.stdout): Columns {
  const width = Math.floor((columnsOf(out) - gap.length * (heads.length - 1)) / heads.length) - 1
  const texts = heads.map(() => '')
  const footers: (string | undefined)[] = heads.map(() => undefined)
  let printed = 0
  const row = (cells: string[]) =>
    cells.map((cell, index) => (index === cells.length - 1 ? cell : pad(cell, width))).join(paint('dim', gap, out))
  out.write(`${row(heads.map((head) => paint(['bold', 'cyan'], wrap(head, width)[0]!, out)))}\n`)

  function draw(): void {
    const lines = texts.map((text) => wrap(text, width))
    const ended = footers.every((footer) => footer !== undefined)
    // The last line of a text may still grow.
    const whole = lines.map((cell, index) =>
      footers[index] === undefined ? cell.length - 1 : Number.POSITIVE_INFINITY,
    )
    const until = ended ? Math.max(...lines.map(({ length }) => length)) : Math.min(...whole)
    const at = (line: number) => row(lines.map((cell) => cell[line] ?? ''))
    out.write('\r\x1b[K')
    for (; printed < until; printed++) out.write(`${at(printed)}\n`)
    if (!ended) out.write(at(printed))
    else {
      const below = footers.map((footer) => wrap(footer!, width))
      for (let line = 0; line < Math.max(...below.map(({ length }) => length)); line++)
        out.write(`${row(below.map((cell) => paint('dim', cell[line] ?? '', out)))}\n`)
    }
  }
  return {
    write(index, text) {
      texts[index] += text
      draw()
    },
    end(index, footer) {
      footers[index] = footer
      draw()
    },
  }
}
