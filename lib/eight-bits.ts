// The engine's own eight-bit form of a base: a file beside the original, and what was measured of it. The engine writes
// both (engine/eight-bits.ts); the service reads them.
import { readFileSync, renameSync, statSync, writeFileSync } from 'node:fs'

/** How far the answers of the eight-bit form are from those of the original, over the tokens of some texts. */
export interface EightBitsDistance {
  /** Tokens that were compared. */
  tokens: number
  /** Mean Kullback-Leibler divergence of the next token's probabilities, in nats. */
  divergence: number
  /** Mean absolute difference of the log-probability of the text's token, in nats. */
  logprob_difference: number
  /** Share of the tokens whose likeliest successor is the same, 0 to 1. */
  same_top: number
}

export interface EightBits {
  file: string
  bytes: number
  /** GGUF's name of the original's quantization, such as BF16. */
  original_type: string
  distance: EightBitsDistance
}

/** Names of quantizations with more than eight bits. */
export const wideTypes = ['F32', 'F16', 'BF16'] as const
export const isWide = (type: string) => (wideTypes as readonly string[]).includes(type)

const stem = (gguf: string) => gguf.replace(/\.gguf$/, '')
export const eightBitsFile = (gguf: string) => `${stem(gguf)}.eight-bits.gguf`
/** What was measured of it, or why it does not answer: JSON. */
export const eightBitsRecord = (gguf: string) => `${stem(gguf)}.eight-bits.json`

/** Whether the eight-bit file is that of the original as it is now: it has its time of change. */
export function hasEightBitsFile(gguf: string): boolean {
  try {
    return Math.abs(statSync(eightBitsFile(gguf)).mtimeMs - statSync(gguf).mtimeMs) < 1
  } catch {
    return false
  }
}

/** The eight-bit form with what was measured of it; null while there is none. */
export function readEightBits(gguf: string): EightBits | null {
  if (!hasEightBitsFile(gguf)) return null
  try {
    const file = eightBitsFile(gguf)
    const { original_type, distance } = readRecord(gguf)
    const { tokens, divergence, logprob_difference, same_top } = distance!
    const numbers = [tokens, divergence, logprob_difference, same_top]
    if (typeof original_type !== 'string' || !numbers.every(Number.isFinite)) return null
    return { file, bytes: statSync(file).size, original_type, distance: distance! }
  } catch {
    // Not measured yet, or a damaged record, which the engine writes again.
    return null
  }
}

/**
 * Why the original answers though the eight-bit form would be faster, in a sentence; null where nothing hinders that
 * form.
 */
export function eightBitsProblem(gguf: string): string | null {
  try {
    const { problem } = readRecord(gguf)
    return typeof problem === 'string' ? problem : null
  } catch {
    return null
  }
}

interface EightBitsRecord {
  original_type?: EightBits['original_type'] | undefined
  distance?: EightBits['distance'] | undefined
  problem?: string | undefined
}

/** Throws if there is none of the original as it is now. */
function readRecord(gguf: string): EightBitsRecord {
  const { original_mtime_ms, ...record } = JSON.parse(readFileSync(eightBitsRecord(gguf), 'utf8'))
  if (!(Math.abs(original_mtime_ms - statSync(gguf).mtimeMs) < 1)) throw new Error('the record is of an earlier file')
  return record
}

/** Replaces the record by one of the original as it is now. */
export function writeEightBitsRecord(gguf: string, record: EightBitsRecord): void {
  const part = `${eightBitsRecord(gguf)}.${process.pid}.part`
  writeFileSync(part, `${JSON.stringify({ original_mtime_ms: statSync(gguf).mtimeMs, ...record }, null, 2)}\n`)
  renameSync(part, eightBitsRecord(gguf))
}
