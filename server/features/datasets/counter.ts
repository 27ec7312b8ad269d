import { isUtf8 } from 'node:buffer'

/** Counts the rows of a JSONL file and checks that it is UTF-8, during the upload. The rows are parsed later. */
export function createLineCounter() {
  let rows = 0
  let line = 1
  // True once the current line has a non-blank byte.
  let hasContent = false
  let tail: Buffer = Buffer.alloc(0)
  let not_utf8_line: number | undefined

  function isBlank(piece: Buffer): boolean {
    for (const byte of piece)
      if (byte !== 32 && byte !== 9 && byte !== 13 && byte !== 0xef && byte !== 0xbb && byte !== 0xbf) return false
    return true
  }

  /** The number of the first line that is not UTF-8. */
  function firstInvalidLine(bytes: Buffer, first: number): number {
    let at = first
    for (let from = 0; ; ) {
      const end = bytes.indexOf(10, from)
      if (!isUtf8(bytes.subarray(from, end === -1 ? bytes.length : end))) return at
      if (end === -1) return at
      from = end + 1
      at++
    }
  }

  function checkUtf8(chunk: Buffer, firstLine: number) {
    if (not_utf8_line !== undefined) return
    const bytes = tail.length > 0 ? Buffer.concat([tail, chunk]) : chunk
    const whole = bytes.length - incompleteTail(bytes)
    if (!isUtf8(bytes.subarray(0, whole))) not_utf8_line = firstInvalidLine(bytes.subarray(0, whole), firstLine)
    tail = Buffer.from(bytes.subarray(whole))
  }

  return {
    add(chunk: Buffer): void {
      checkUtf8(chunk, line)
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        if (hasContent || !isBlank(chunk.subarray(from, at))) rows++
        hasContent = false
        line++
        from = at + 1
      }
      if (!hasContent && from < chunk.length) hasContent = !isBlank(chunk.subarray(from))
    },
    end(): { rows: number; not_utf8_line?: number } {
      if (hasContent) rows++
      if (tail.length > 0) not_utf8_line ??= line
      return { rows, ...(not_utf8_line !== undefined && { not_utf8_line }) }
    },
  }
}

/** How many bytes at the end belong to a character that continues in the next chunk. */
function incompleteTail(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back]!
    if ((byte & 0b1100_0000) === 0b1000_0000) continue
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1
    return length > back ? back : 0
  }
  return 0
}
