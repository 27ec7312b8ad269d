// The answers that a tuned model was taught, from which speculative decoding proposes drafts. The trainer writes the
// file (trainer/run/draft_file.py).
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'

/** Before each answer in `tokens`; no token of a model, and the largest in the order of suffixes. */
export const separator = 0xffffffff

export interface Drafts {
  /** Each answer behind a separator. */
  tokens: Uint32Array
  /** The positions of `tokens`, sorted by what begins there, up to 16 tokens at least. */
  suffixes: Uint32Array
}

const magic = 'TNDRAFT1'
const headerBytes = 16
/** As many as the trainer writes. */
const tokensMax = 1 << 18

/**
 * Reads a draft file of a model whose vocabulary has `vocab_size` tokens. Synchronous: 2 MB at most. Throws an Error
 * with the reason if the file is not whole or not of this model.
 */
export function readDrafts(path: string, vocab_size: number): Drafts {
  const bytes = readWhole(path)
  if (Buffer.from(bytes, 0, magic.length).toString('latin1') !== magic) throw new Error('it is no draft file')
  const [count = 0, vocab = 0] = new Uint32Array(bytes, magic.length, 2)
  if (bytes.byteLength !== headerBytes + 8 * count) throw new Error('its length is not the one that its header says')
  const tokens = new Uint32Array(bytes, headerBytes, count)
  const suffixes = new Uint32Array(bytes, headerBytes + 4 * count, count)
  const largest = Math.min(vocab, vocab_size)
  for (const token of tokens)
    if (token >= largest && token !== separator) throw new Error(`the model has no token ${token}`)
  for (const at of suffixes) if (at >= count) throw new Error(`a suffix begins at ${at}, beyond its ${count} tokens`)
  return { tokens, suffixes }
}

function readWhole(path: string): ArrayBuffer {
  const file = openSync(path, 'r')
  try {
    const { size } = fstatSync(file)
    if (size < headerBytes || size > headerBytes + 8 * tokensMax) throw new Error(`it has ${size} bytes`)
    const bytes = new Uint8Array(size)
    for (let at = 0; at < size; ) {
      const read = readSync(file, bytes, at, size - at, at)
      if (read === 0) throw new Error('it became shorter')
      at += read
    }
    return bytes.buffer
  } finally {
    closeSync(file)
  }
}
