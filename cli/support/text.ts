// Text for terminals: colours where they are wanted, widths, tables, bars, curves, and numbers as people read them.
import { styleText } from 'node:util'

type Style = Parameters<typeof styleText>[0]
type Out = NodeJS.WriteStream

/** Whether a stream is a terminal that can move its cursor and show Unicode. */
export const isTerminal = (out: Out = process.stdout): boolean => Boolean(out.isTTY) && process.env.TERM !== 'dumb'

/** Styled text, if the stream is a terminal and NO_COLOR is not set. */
export const paint = (style: Style, text: string, out: Out = process.stdout): string =>
  isTerminal(out) ? styleText(style, text, { stream: out }) : text

/** Columns of the terminal; of a pipe, as many as are needed. */
export const columnsOf = (out: Out = process.stdout): number => (isTerminal(out) ? out.columns || 80 : Infinity)

// Everything that moves a cursor, or the direction of text.
const control = '\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u202a-\\u202e\\u2066-\\u2069'
const controls = new RegExp(`[${control}]`, 'gu')

/** Text of models and other people without what a terminal would obey. */
export const clean = (text: string): string => text.replaceAll('\r\n', '\n').replace(controls, '\ufffd')
/** The same on one line. */
export const oneLine = (text: string): string => clean(text).replace(/\s+/g, ' ').trim()

const styles = new RegExp(`${String.fromCharCode(27)}\\[[\\d;]*m`, 'g')
const wide =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/u
const wideToo = /\p{Emoji_Presentation}|[\u{20000}-\u{3fffd}]/u
const narrow = /[\p{Mn}\p{Me}]|[\u200b-\u200f]/u

/** Columns that a text takes. */
function widthOf(text: string): number {
  let width = 0
  for (const character of text.replace(styles, ''))
    width += narrow.test(character) ? 0 : wide.test(character) || wideToo.test(character) ? 2 : 1
  return width
}

/** The beginning of a text that fits. Only of unstyled text. */
export function cut(text: string, columns: number): string {
  if (widthOf(text) <= columns) return text
  let width = 0
  let kept = ''
  for (const character of text) {
    width += widthOf(character)
    if (width > columns - 1) break
    kept += character
  }
  return `${kept}…`
}

export const pad = (text: string, columns: number): string => text + ' '.repeat(Math.max(0, columns - widthOf(text)))
const padLeft = (text: string, columns: number): string => ' '.repeat(Math.max(0, columns - widthOf(text))) + text

/** Lines of at most so many columns, broken at blanks where that is possible. */
export function wrap(text: string, columns: number): string[] {
  return text.split('\n').flatMap((paragraph) => {
    const lines: string[] = []
    let line = ''
    for (const word of paragraph.match(/\S+\s*|\s+/g) ?? ['']) {
      if (widthOf((line + word).trimEnd()) > columns && line.trim()) {
        lines.push(line.trimEnd())
        line = ''
      }
      line += word
      while (widthOf(line.trimEnd()) > columns) {
        let fits = ''
        for (const character of line) {
          if (widthOf(fits + character) > columns) break
          fits += character
        }
        // A character that is wider than the column stands alone.
        fits ||= [...line][0]!
        lines.push(fits)
        line = line.slice(fits.length)
      }
    }
    return [...lines, line.trimEnd()]
  })
}

export interface Column<Row> {
  head: string
  value(row: Row): string
  right?: boolean
  /** Cut first where a line is too long for the terminal. */
  flexible?: boolean
  style?(row: Row): Style | undefined
}

/** A table with a head, as wide as the terminal at most. */
export function table<Row>(rows: readonly Row[], columns: Column<Row>[], out: Out = process.stdout): string {
  const cells = rows.map((row) => columns.map(({ value }) => oneLine(value(row))))
  const widths = columns.map(({ head }, index) =>
    Math.max(widthOf(head), ...cells.map((line) => widthOf(line[index]!))),
  )
  const gaps = 2 * (columns.length - 1)
  const excess = widths.reduce((sum, width) => sum + width, gaps) - columnsOf(out)
  const flexible = columns.findIndex((column) => column.flexible)
  if (excess > 0 && flexible >= 0) widths[flexible] = Math.max(8, widths[flexible]! - excess)
  if (widths.reduce((sum, width) => sum + width, gaps) > columnsOf(out))
    return cells.map((texts, index) => block(texts, rows[index]!, columns, out)).join('\n')
  const line = (texts: string[], styleOf: (column: Column<Row>) => Style | undefined) =>
    texts
      .map((text, index) => {
        const column = columns[index]!
        const fitted = cut(text, widths[index]!)
        const padded = column.right
          ? padLeft(fitted, widths[index]!)
          : index === columns.length - 1
            ? fitted
            : pad(fitted, widths[index]!)
        const style = styleOf(column)
        return style ? paint(style, padded, out) : padded
      })
      .join('  ')
  return [
    line(
      columns.map(({ head }) => head),
      () => 'dim',
    ),
    ...cells.map((texts, index) => line(texts, ({ style }) => style?.(rows[index]!))),
  ].join('\n')
}

/** A row where a table would be too wide: its first cell on a line, and the others with their heads below. */
function block<Row>([first, ...texts]: string[], row: Row, [column, ...others]: Column<Row>[], out: Out): string {
  const style = column!.style?.(row)
  const head = cut(first!, columnsOf(out))
  const named = texts.flatMap((text, index) => (text === '' ? [] : [`${others[index]!.head} ${text}`]))
  const lines = wrap(named.join(' · '), columnsOf(out) - 2).map((line) => `  ${line}`)
  return [style ? paint(style, head, out) : head, ...lines].join('\n')
}

/** Lines of `name  value`, the names in one column. */
export function fields(pairs: [name: string, value: string | null | undefined][], out: Out = process.stdout): string {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== '')
  const width = Math.max(...shown.map(([name]) => widthOf(name)))
  return shown.map(([name, value]) => `${paint('dim', pad(name, width), out)}  ${clean(value!)}`).join('\n')
}

/** A bar of a share, 0 to 1. */
export function bar(share: number, columns: number, out: Out = process.stdout): string {
  // A narrow terminal has room for the numbers beside it, or for them alone.
  const width = Math.max(0, Math.min(columns, columnsOf(out) - 30))
  const full = Math.round(Math.min(1, Math.max(0, share)) * width)
  const [done, open] = isTerminal(out) ? ['█', '░'] : ['#', '.']
  return done!.repeat(full) + open!.repeat(width - full)
}

const levels = '▁▂▃▄▅▆▇█'
/** A curve in one line: the mean of the values that fall in each column, from the lowest to the highest of `range`. */
export function sparkline(values: readonly number[], columns: number, range: readonly number[] = values): string {
  if (values.length === 0) return ''
  const [low, high] = [Math.min(...range), Math.max(...range)]
  const count = Math.min(columns, values.length)
  return Array.from({ length: count }, (_, column) => {
    const from = Math.floor((column * values.length) / count)
    const part = values.slice(from, Math.max(from + 1, Math.floor(((column + 1) * values.length) / count)))
    const mean = part.reduce((sum, value) => sum + value, 0) / part.length
    return levels[high > low ? Math.round(((mean - low) / (high - low)) * (levels.length - 1)) : 3]
  }).join('')
}

export const number = (value: number): string => value.toLocaleString('en-US')
/** A loss or another small number, with so many digits that differences show. */
export const precise = (value: number): string =>
  value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toFixed(4)
export const percent = (share: number): string => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`
export const bytes = (count: number): string =>
  count < 1e3
    ? `${count} B`
    : count < 1e6
      ? `${(count / 1e3).toFixed(1)} kB`
      : count < 1e9
        ? `${(count / 1e6).toFixed(1)} MB`
        : `${(count / 1e9).toFixed(2)} GB`

/** Seconds as people say them: `2 min 5 s`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds))
  if (whole < 60) return `${whole} s`
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`
}

/** A time of the service in the time zone of the user: `2026-01-31 12:00`. */
export function time(iso: string | null | undefined): string {
  if (!iso) return ''
  const date = new Date(iso)
  const two = (value: number) => String(value).padStart(2, '0')
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}`
  )
}

export const price = (amount: number, currency: string): string => `${amount.toFixed(amount < 1 ? 4 : 2)} ${currency}`

/** Signs of a check, in the terminal's alphabet. */
export const sign = (kind: 'ok' | 'warning' | 'problem', out: Out = process.stdout): string => {
  const [plain, pretty, style] = {
    ok: ['ok', '✓', 'green'],
    warning: ['!', '!', 'yellow'],
    problem: ['x', '✗', 'red'],
  }[kind] as [string, string, Style]
  return isTerminal(out) ? paint(style, pretty, out) : plain.padEnd(2)
}
