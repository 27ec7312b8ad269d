// The cache of one sequence on its way from one context to another.

/** What the library wrote of a sequence's cells, without the numbers that belong to the context it came from. */
export type SavedSequence = { magic: number; cells: Buffer }

// Of the library's state of a sequence: a magic number, the sequence's number, how many sequences the context has, then the cells of
// each sequence. One that was not saved has none, which is a single zero. The library takes a state only into a context of as many
// sequences, so the zeros are written anew. This is the layout of a plain cache alone; others are not moved.
const bytes = 4
const headBytes = 3 * bytes

export function savedSequence(state: Buffer): SavedSequence {
  const sequence = state.readInt32LE(bytes)
  const sequences = state.readUInt32LE(2 * bytes)
  return { magic: state.readUInt32LE(0), cells: state.subarray(headBytes + bytes * sequence, state.length - bytes * (sequences - 1 - sequence)) }
}

/** The state as a context of `sequences` sequences takes it for its sequence number `sequence`. */
export function stateOf({ magic, cells }: SavedSequence, sequence: number, sequences: number): Buffer {
  const head = Buffer.alloc(headBytes + bytes * sequence)
  head.writeUInt32LE(magic, 0)
  head.writeInt32LE(sequence, bytes)
  head.writeUInt32LE(sequences, 2 * bytes)
  return Buffer.concat([head, cells, Buffer.alloc(bytes * (sequences - 1 - sequence))])
}
