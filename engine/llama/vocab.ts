// Text to tokens and tokens to bytes.
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Library } from './library.ts'
import type { Pointer } from './structs.ts'

/** A token that is recognized by its written form wherever that stands, before the rest of the text is tokenized. */
export type SpecialToken = {
  token: number
  text: string
  /** It steers the model (roles, ends). The others stand for their own text. */
  control: boolean
  /** Whether it swallows the white space before it, and after it. */
  lstrip: boolean
  rstrip: boolean
}

/** How the vocabulary splits text; what is not `bpe`, `spm`, `wpm` or `ugm` has an algorithm of its own. */
export type VocabKind = 'spm' | 'bpe' | 'wpm' | 'ugm' | 'other'

export type Vocab = {
  size: number
  kind: VocabKind
  bos: number | null
  eos: number | null
  bos_text: string
  eos_text: string
  /** Whether the model was trained with BOS before every text. */
  wants_bos: boolean
  special_tokens: readonly SpecialToken[]
  /** Bytes of the longest token: no text has fewer tokens than its bytes divided by this. */
  longest_token_bytes: number
  /** Whether the tokenizer puts a space before a text. */
  adds_space: boolean
  /** The tokens before and after a text that the model was trained with. */
  wrapping: { before: number[]; after: number[] }
  isEndOfGeneration(token: number): boolean
  /** How the vocabulary itself writes a token; for control tokens the only text there is. */
  text(token: number): string
  /** The bytes that a token stands for; empty for control tokens. May be a part of one UTF-8 character. */
  bytes(token: number): Buffer
  /**
   * Whether some token has the byte `first` and then the byte `second` inside: where none has, every token ends between
   * the two.
   */
  hasPair(first: number, second: number): boolean
  /** Tokens of a text in one call, on this thread, for a few KB. Written forms of control tokens are text. */
  tokenize(text: string): number[]
}

const attributes = { unknown: 1 << 0, control: 1 << 3, userDefined: 1 << 4, lstrip: 1 << 7, rstrip: 1 << 8 }
const kinds: Record<number, VocabKind> = { 1: 'spm', 2: 'bpe', 3: 'wpm', 4: 'ugm' }
// Reading a vocabulary of 250,000 tokens takes a third of a second: the streams of other models go on in between.
const tokensAtOnce = 4096

export async function openVocab(library: Library, handle: Pointer): Promise<Vocab> {
  const bos = tokenOrNull(library.llama_vocab_bos(handle))
  const eos = tokenOrNull(library.llama_vocab_eos(handle))
  const text = (token: number) => library.llama_vocab_get_text(handle, token)
  const textOrNone = (token: number | null) => (token === null ? '' : text(token))
  const pieces = new Map<number, Buffer>()
  let scratch = Buffer.alloc(1024)

  const readBytes = (token: number): Buffer => {
    const length = library.llama_token_to_piece(handle, token, scratch, scratch.length, 0, false)
    // A negative length is what it needs.
    if (length < 0) {
      scratch = Buffer.alloc(-length)
      return readBytes(token)
    }
    return scratch.subarray(0, length)
  }
  const bytes = (token: number): Buffer => {
    let piece = pieces.get(token)
    if (!piece) {
      piece = Buffer.from(readBytes(token))
      pieces.set(token, piece)
    }
    return piece
  }

  const tokenizeWith = (input: string, wrapped: boolean): number[] => {
    const utf8 = Buffer.from(input, 'utf8')
    // No token is shorter than a byte, apart from a space that some vocabularies put first.
    const out = new Int32Array(utf8.length + 8)
    const count = library.llama_tokenize(handle, utf8, utf8.length, out, out.length, wrapped, false)
    if (count < 0) throw new Error('The tokenizer needs more tokens than the text has bytes.')
    return Array.from(out.subarray(0, count))
  }

  const size = library.llama_vocab_n_tokens(handle)
  const special_tokens: SpecialToken[] = []
  const pairs = new Uint8Array(65_536)
  let longest_token_bytes = 1
  for (let token = 0; token < size; token++) {
    const attribute = library.llama_vocab_get_attr(handle, token)
    const control = (attribute & (attributes.control | attributes.unknown)) !== 0
    if (control || attribute & attributes.userDefined)
      special_tokens.push({
        token,
        text: text(token),
        control,
        lstrip: (attribute & attributes.lstrip) !== 0,
        rstrip: (attribute & attributes.rstrip) !== 0,
      })
    const piece = readBytes(token)
    longest_token_bytes = Math.max(
      longest_token_bytes,
      piece.length,
      control ? Buffer.byteLength(special_tokens.at(-1)!.text) : 0,
    )
    for (let at = 1; at < piece.length; at++) pairs[(piece[at - 1]! << 8) | piece[at]!] = 1
    if (token % tokensAtOnce === tokensAtOnce - 1) await nextTurn()
  }

  const probe = tokenizeWith('x', false)
  const wrapped = tokenizeWith('x', true)
  const inner = wrapped.findIndex((_, at) => probe.every((token, index) => wrapped[at + index] === token))
  return {
    size,
    kind: kinds[library.llama_vocab_type(handle)] ?? 'other',
    bos,
    eos,
    text,
    bos_text: textOrNone(bos),
    eos_text: textOrNone(eos),
    wants_bos: library.llama_vocab_get_add_bos(handle) && bos !== null,
    special_tokens,
    longest_token_bytes,
    adds_space: probe.length > 0 && Buffer.concat(probe.map(bytes)).toString('latin1').startsWith(' '),
    wrapping: { before: wrapped.slice(0, Math.max(0, inner)), after: wrapped.slice(Math.max(0, inner) + probe.length) },
    isEndOfGeneration: (token) => library.llama_vocab_is_eog(handle, token),
    bytes,
    hasPair: (first, second) => pairs[(first << 8) | second] === 1,
    tokenize: (input) => (input === '' ? [] : tokenizeWith(input, false)),
  }
}

function tokenOrNull(token: number): number | null {
  return token < 0 ? null : token
}
