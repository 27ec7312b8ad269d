// Shared memory between the decode thread and a worker: a state word and the mask of the next token for each session,
// and the vocabulary.

/** Status in the two lowest bits of a state word; the bits above count the accepted tokens. */
export const working = 0
export const ready = 1
export const failed = 2

export interface SessionMemory {
  buffer: SharedArrayBuffer
  state: Int32Array
  mask: Uint32Array
}

export function maskWords(vocab_size: number): number {
  return Math.ceil(vocab_size / 32)
}

export function createSessionMemory(vocab_size: number): SessionMemory {
  return viewSessionMemory(new SharedArrayBuffer(4 + 4 * maskWords(vocab_size)))
}

export function viewSessionMemory(buffer: SharedArrayBuffer): SessionMemory {
  return { buffer, state: new Int32Array(buffer, 0, 1), mask: new Uint32Array(buffer, 4) }
}

export function stateWord(accepted: number, status: number): number {
  return accepted * 4 + status
}

/** Indices of the words that a worker shares with its owner. */
export const control = {
  /** The current job (0: none), and its start in milliseconds (lowest 30 bits). */
  job: 0,
  since: 1,
  /** Jobs finished since the worker started. */
  done: 2,
  /** Memory of the grammars, in KiB. */
  memory_kib: 3,
  /** 1 once the worker is ready. */
  started: 4,
  /** The kernel's id of the worker's thread; 0 if unknown. */
  thread: 5,
  /** CPU time of the thread at the start of the current job, in milliseconds. */
  used: 6,
  words: 7,
} as const

export function clock(): number {
  return Date.now() & 0x3fffffff
}

export function elapsed(since: number): number {
  return (clock() - since) & 0x3fffffff
}

/** A model's tokens. Use one object per model: it is the key of the cached grammars. */
export interface GrammarVocab {
  size: number
  /** Bytes of a token; empty for control tokens. */
  bytes(token: number): Uint8Array
  isEndOfGeneration(token: number): boolean
}

/** A vocabulary in shared memory: the bytes of all tokens, concatenated, and the offset of each. */
export interface VocabData {
  size: number
  bytes: Uint8Array<SharedArrayBuffer>
  starts: Int32Array<SharedArrayBuffer>
  end_tokens: number[]
}

const tokensAtOnce = 4_096

/** Collects the bytes of all tokens, yielding to the event loop in between. */
export async function readVocab(vocab: GrammarVocab): Promise<VocabData> {
  const starts = new Int32Array(new SharedArrayBuffer(4 * (vocab.size + 1)))
  const parts: Uint8Array[] = []
  const end_tokens: number[] = []
  for (let token = 0; token < vocab.size; token++) {
    const piece = vocab.bytes(token)
    starts[token + 1] = starts[token]! + piece.length
    parts.push(piece)
    if (vocab.isEndOfGeneration(token)) end_tokens.push(token)
    if (token % tokensAtOnce === tokensAtOnce - 1) await new Promise((resolve) => setImmediate(resolve))
  }
  const bytes = new Uint8Array(new SharedArrayBuffer(starts[vocab.size]!))
  parts.forEach((piece, token) => {
    bytes.set(piece, starts[token])
  })
  return { size: vocab.size, bytes, starts, end_tokens }
}
