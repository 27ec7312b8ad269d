// Compares rows by fingerprints, and lists those that repeat an earlier one.
import { createFingerprints, fingerprint } from './fingerprints.ts'

/** A batch of rows in one buffer, each followed by its prompt and its answer. `ends` has three end offsets per row. */
export interface RowBatch {
  bytes: Uint8Array<ArrayBuffer>
  ends: Uint32Array<ArrayBuffer>
  lines: Float64Array<ArrayBuffer>
}
interface Lines {
  count: number
  /** The first hundred, each with the earlier line that it matches. */
  lines: [line: number, first: number][]
}
/** Rows that repeat an earlier row exactly, and rows that repeat an earlier prompt with another answer. */
export interface DuplicateReport {
  duplicates: Lines
  conflicts: Lines
}

/** How many errors, and how many warnings, are listed. */
export const maxListed = 100

interface RowComparison {
  add(batch: RowBatch): void
  readonly found: DuplicateReport
}

export function createRowComparison(): RowComparison {
  const rows = createFingerprints(0)
  const prompts = createFingerprints(2)
  const result: DuplicateReport = { duplicates: { count: 0, lines: [] }, conflicts: { count: 0, lines: [] } }

  function report(kind: keyof DuplicateReport, line: number, first: number): void {
    const { lines } = result[kind]
    result[kind].count++
    if (lines.length < maxListed) lines.push([line, first])
  }

  function compare(line: number, row: Uint8Array, prompt: Uint8Array, answer: Uint8Array): void {
    const same = rows.firstOrAdd(fingerprint(row), line)
    if (same) report('duplicates', line, same[0]!)
    if (same || prompt.length === 0) return
    const answered = fingerprint(answer)
    const earlier = prompts.firstOrAdd(fingerprint(prompt), line, answered)
    if (earlier && (earlier[1] !== answered[0] || earlier[2] !== answered[1])) report('conflicts', line, earlier[0]!)
  }

  return {
    found: result,
    add({ bytes, ends, lines }) {
      let from = 0
      for (const [index, line] of lines.entries()) {
        const [row, prompt, answer] = ends.subarray(3 * index, 3 * index + 3) as unknown as [number, number, number]
        compare(line, bytes.subarray(from, row), bytes.subarray(row, prompt), bytes.subarray(prompt, answer))
        from = answer
      }
    },
  }
}
