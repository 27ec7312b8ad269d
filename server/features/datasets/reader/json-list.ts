// A JSON list of rows, as one line a row: `json.dump(rows, file)` and most exports write it so.

const [newline, quote, backslash, comma] = [10, 34, 92, 44]
const opening = new Set([91, 123])
const closing = new Set([93, 125])
const isBlank = (byte: number) => byte === 32 || byte === 9 || byte === 10 || byte === 13

/**
 * Splits the elements of the list: feed chunks in order with `add`, which returns each element that has ended as a line
 * of its own, line breaks in it as spaces. What is between elements is not looked at but for commas; each element is
 * parsed later. `lineOf`: where the element of that number, from 1, begins in the file. `problem`, at the end: why it
 * is no list.
 */
export function createListSplitter() {
  const lines: number[] = []
  let line = 1
  let depth = 0
  let inText = false
  let escaped = false
  /** Bytes of the element that is being read. */
  let rest: Buffer[] = []
  let isIn = false
  let ended = false
  let trailing = false

  return {
    lineOf: (number: number) => lines[number - 1] ?? number,
    add(chunk: Buffer): Buffer {
      const out: Buffer[] = []
      let from = 0
      const end = (at: number) => {
        out.push(...rest, chunk.subarray(from, at), Buffer.from('\n'))
        rest = []
        isIn = false
      }
      for (let at = 0; at < chunk.length; at++) {
        const byte = chunk[at]!
        if (byte === newline) line++
        if (inText) {
          if (escaped) escaped = false
          else if (byte === backslash) escaped = true
          else if (byte === quote) inText = false
          continue
        }
        if (ended) {
          trailing ||= !isBlank(byte)
          continue
        }
        if (depth === 1 && isIn && (byte === comma || closing.has(byte))) end(at)
        else if (depth === 1 && !isIn && !isBlank(byte) && byte !== comma && !closing.has(byte)) {
          isIn = true
          from = at
          lines.push(line)
        }
        if (byte === quote) inText = true
        else if (opening.has(byte)) depth++
        else if (closing.has(byte) && --depth === 0) ended = true
        if (byte === newline && isIn) chunk[at] = 32
      }
      if (isIn) rest.push(Buffer.from(chunk.subarray(from)))
      return Buffer.concat(out)
    },
    problem: () =>
      !ended
        ? 'The list of rows has no end: the file is cut off, or a bracket is missing.'
        : trailing
          ? 'There is text behind the end of the list of rows.'
          : undefined,
  }
}
