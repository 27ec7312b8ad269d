import { hash } from 'node:crypto'

/** The first 64 bits of a hash, as two words. */
export function fingerprint(bytes: Uint8Array): [number, number] {
  // Node returns a digest as a string faster than as a buffer.
  const text = hash('sha1', bytes, 'latin1' as 'hex')
  return [wordAt(text, 0), wordAt(text, 4)]
}

const wordAt = (text: string, at: number) =>
  (text.charCodeAt(at) |
    (text.charCodeAt(at + 1) << 8) |
    (text.charCodeAt(at + 2) << 16) |
    (text.charCodeAt(at + 3) << 24)) >>>
  0

/**
 * Hash table from a fingerprint to the line where it first occurred, with `extra` 32-bit values. Open addressing in one
 * typed array: a Map of a million entries takes several times as much memory. Lines are counted from 1.
 */
export function createFingerprints(extra: number) {
  const stride = 3 + extra
  let slots = 4096
  let used = 0
  let words = new Uint32Array(slots * stride)

  /** The offset of the entry, or of the empty slot for it. A line of 0 marks an empty slot. */
  function find(low: number, high: number): number {
    for (let slot = low % slots; ; slot = (slot + 1) % slots) {
      const at = slot * stride
      if (words[at + 2] === 0 || (words[at] === low && words[at + 1] === high)) return at
    }
  }

  function grow(): void {
    const old = words
    slots *= 2
    words = new Uint32Array(slots * stride)
    for (let from = 0; from < old.length; from += stride)
      if (old[from + 2] !== 0) words.set(old.subarray(from, from + stride), find(old[from]!, old[from + 1]!))
  }

  return {
    /** The line and values of the first entry with this fingerprint; undefined if there was none and it was added. */
    firstOrAdd(
      [low, high]: [number, number],
      line: number,
      values: readonly number[] = [],
    ): ArrayLike<number> | undefined {
      const at = find(low, high)
      if (words[at + 2] !== 0) return words.subarray(at + 2, at + stride)
      words[at] = low
      words[at + 1] = high
      words[at + 2] = line
      words.set(values, at + 3)
      // At most two thirds full, to keep probe sequences short.
      if (++used * 3 > slots * 2) grow()
      return undefined
    },
  }
}
