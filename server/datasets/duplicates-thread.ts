import { parentPort } from 'node:worker_threads'
import type { RowBatch, Twins } from './duplicates.ts'
import { createFingerprints, fingerprint } from './fingerprints.ts'
import { maxListed } from './rows.ts'

const rows = createFingerprints(0)
const prompts = createFingerprints(2)
const found: Twins = { duplicates: { count: 0, lines: [] }, conflicts: { count: 0, lines: [] } }

function note(kind: keyof Twins, line: number, first: number): void {
  const { lines } = found[kind]
  found[kind].count++
  if (lines.length < maxListed) lines.push([line, first])
}

function look(line: number, row: Uint8Array, prompt: Uint8Array, answer: Uint8Array): void {
  const same = rows.first(fingerprint(row), line)
  if (same) note('duplicates', line, same[0]!)
  if (same || prompt.length === 0) return
  const answered = fingerprint(answer)
  const asked = prompts.first(fingerprint(prompt), line, answered)
  if (asked && (asked[1] !== answered[0] || asked[2] !== answered[1])) note('conflicts', line, asked[0]!)
}

parentPort!.on('message', (message: RowBatch | 'end') => {
  if (message === 'end') return parentPort!.postMessage(found)
  const { bytes, ends, lines } = message
  let from = 0
  for (const [index, line] of lines.entries()) {
    const [row, prompt, answer] = ends.subarray(3 * index, 3 * index + 3) as unknown as [number, number, number]
    look(line, bytes.subarray(from, row), bytes.subarray(row, prompt), bytes.subarray(prompt, answer))
    from = answer
  }
  parentPort!.postMessage('done')
})
