// The vocabulary of a model: text to tokens, and tokens to bytes.
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import type { Library } from './library.ts'
import type { Pointer } from './structs.ts'

/** A token recognized by its written form anywhere in a text, before the rest is tokenized. */
export interface SpecialToken {
  token: number
  text: string
  /** A control token (roles, end of text). Other special tokens stand for their own text. */
  control: boolean
  /** Removes the white space before it (`lstrip`) or after it (`rstrip`). */
  lstrip: boolean
  rstrip: boolean
}

/** Tokenization algorithm: SentencePiece BPE, byte-level BPE, WordPiece, Unigram, or another. */
type VocabKind = 'spm' | 'bpe' | 'wpm' | 'ugm' | 'other'

/** Tokens of fill-in-the-middle: before the prefix, before the suffix, and before what is to be written. */
export interface FimTokens {
  prefix: number
  suffix: number
  middle: number
}

export interface Vocab {
  size: number
  kind: VocabKind
  bos: number | null
  eos: number | null
  bos_text: string
  eos_text: string
  /** Whether the model was trained with BOS before every text. */
  wants_bos: boolean
  /** Null unless it has all three. */
  fim: FimTokens | null
  special_tokens: readonly SpecialToken[]
  /** Bytes of the longest token. A text has at least its bytes divided by this many tokens. */
  longest_token_bytes: number
  /** Whether the tokenizer adds a space before a text. */
  adds_space_prefix: boolean
  /** Tokens that the model was trained with before and after each text, such as [CLS] and [SEP]. */
  affixes: { before: number[]; after: number[] }
  isEndOfGeneration(token: number): boolean
  /** The vocabulary's own form of a token; for control tokens the only text. */
  text(token: number): string
  /** Bytes of a token, perhaps only part of a UTF-8 character; empty for control tokens. */
  bytes(token: number): Buffer
  /** Whether any token contains the byte `first` followed by `second`. If none does, no token spans the two. */
  hasBytePair(first: number, second: number): boolean
  /** Tokens of a text of a few KB, in one call on this thread. Written control tokens count as text. */
  tokenize(text: string): number[]
}

const attributes = { unknown: 1 << 0, control: 1 << 3, userDefined: 1 << 4, lstrip: 1 << 7, rstrip: 1 << 8 }
/** Control tokens that the library makes ordinary ones where it loads a model, so that answers show them. */
const shownControls = new Set(['<|start|>', '<|channel|>', '<|message|>', '<|constrain|>'])

/** Whether a token with these attributes is a control token, which a user's text must not make. */
export const isControl = (attribute: number, text: string): boolean =>
  (attribute & (attributes.control | attributes.unknown)) !== 0 ||
  ((attribute & attributes.userDefined) !== 0 && shownControls.has(text))

const kinds: Record<number, VocabKind> = { 1: 'spm', 2: 'bpe', 3: 'wpm', 4: 'ugm' }
// Tokens read between yields to other streams: reading a vocabulary of 250,000 takes a third of a second.
const tokensPerSlice = 4096

export async function openVocab(library: Library, handle: Pointer): Promise<Vocab> {
  const bos = tokenOrNull(library.llama_vocab_bos(handle))
  const eos = tokenOrNull(library.llama_vocab_eos(handle))
  const text = (token: number) => library.llama_vocab_get_text(handle, token)
  const textOrNone = (token: number | null) => (token === null ? '' : text(token))
  const pieces = new Map<number, Buffer>()
  let scratch = Buffer.alloc(1024)

  const readBytes = (token: number): Buffer => {
    const length = library.llama_token_to_piece(handle, token, scratch, scratch.length, 0, false)
    // A negative length is the required size.
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
    // Every token has at least one byte, except a space that some vocabularies add.
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
    const special = attribute & (attributes.control | attributes.unknown | attributes.userDefined)
    const written = special ? text(token) : ''
    const control = isControl(attribute, written)
    if (special)
      special_tokens.push({
        token,
        text: written,
        control,
        lstrip: (attribute & attributes.lstrip) !== 0,
        rstrip: (attribute & attributes.rstrip) !== 0,
      })
    const piece = readBytes(token)
    longest_token_bytes = Math.max(longest_token_bytes, piece.length, control ? Buffer.byteLength(written) : 0)
    for (let at = 1; at < piece.length; at++) pairs[(piece[at - 1]! << 8) | piece[at]!] = 1
    if (token % tokensPerSlice === tokensPerSlice - 1) await yieldToEventLoop()
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
    fim: fimTokens(library, handle),
    special_tokens,
    longest_token_bytes,
    adds_space_prefix: probe.length > 0 && Buffer.concat(probe.map(bytes)).toString('latin1').startsWith(' '),
    affixes: { before: wrapped.slice(0, Math.max(0, inner)), after: wrapped.slice(Math.max(0, inner) + probe.length) },
    isEndOfGeneration: (token) => library.llama_vocab_is_eog(handle, token),
    bytes,
    hasBytePair: (first, second) => pairs[(first << 8) | second] === 1,
    tokenize: (input) => (input === '' ? [] : tokenizeWith(input, false)),
  }
}

function fimTokens(library: Library, handle: Pointer): FimTokens | null {
  const prefix = tokenOrNull(library.llama_vocab_fim_pre(handle))
  const suffix = tokenOrNull(library.llama_vocab_fim_suf(handle))
  const middle = tokenOrNull(library.llama_vocab_fim_mid(handle))
  return prefix === null || suffix === null || middle === null ? null : { prefix, suffix, middle }
}

function tokenOrNull(token: number): number | null {
  return token < 0 ? null : token
}
