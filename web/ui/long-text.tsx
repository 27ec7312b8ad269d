// Text of any length, as models write it: words as long as a page are broken, and of megabytes the first part is
// rendered.
import { useState } from 'react'
import { classes } from '../lib/classes.ts'
import { formatCount } from '../lib/format.ts'
import { Button, CopyButton } from './button.tsx'

/** Characters that are rendered at first, and with each click: a browser lays out these within a frame or two. */
const part_max = 20_000

/** Where a word may be longer than the line, in grids too: `break-words` lets it widen them. */
export const anyText = 'wrap-anywhere whitespace-pre-wrap'

/** The beginning of a text, without half a character. */
const beginning = (text: string, length: number) =>
  text.slice(0, /[\uD800-\uDBFF]/.test(text[length - 1] ?? '') ? length - 1 : length)

export function LongText({ text, className }: { text: string; className?: string }) {
  const [parts, setParts] = useState(1)
  const rest = text.length - parts * part_max
  return (
    <>
      <span className={classes(anyText, className)}>{rest > 0 ? beginning(text, parts * part_max) : text}</span>
      {rest > 0 && (
        <span className="mt-2 flex flex-wrap items-center gap-x-3 gap-y-1 text-sm text-muted">
          {formatCount(rest)} more characters
          <Button size="sm" onClick={() => setParts(parts + 1)}>
            Show more
          </Button>
          <CopyButton text={text} label="Copy all" />
        </span>
      )}
    </>
  )
}
