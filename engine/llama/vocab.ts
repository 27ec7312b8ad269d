// Text to tokens and tokens to bytes.
import type { Library } from './library.ts'
import type { Pointer } from './structs.ts'

export type Vocab = {
  size: number
  bos: number | null
  eos: number | null
  bos_text: string
  eos_text: string
  /** Whether the model was trained with BOS before every text. */
  wants_bos: boolean
  isEndOfGeneration(token: number): boolean
  /** How the vocabulary itself writes a token; for control tokens the only text there is. */
  text(token: number): string
  /** The bytes that a token stands for; empty for control tokens. May be a part of one UTF-8 character. */
  bytes(token: number): Buffer
  /** Tokens of a text. With `special`, the written form of a control token becomes that token; with `wrapped`, the text gets the tokens before and after it that the model was trained with. */
  tokenize(text: string, special: boolean, wrapped?: boolean): Promise<number[]>
}

// Tokenizing goes at some megabytes a second: longer texts are done on another thread, or every stream would wait for them.
const syncBytesMax = 16_384

export function openVocab(library: Library, handle: Pointer): Vocab {
  const bos = tokenOrNull(library.llama_vocab_bos(handle))
  const eos = tokenOrNull(library.llama_vocab_eos(handle))
  const text = (token: number) => library.llama_vocab_get_text(handle, token)
  const textOrNone = (token: number | null) => (token === null ? '' : text(token))
  const pieces = new Map<number, Buffer>()
  const scratch = Buffer.alloc(1024)

  const bytes = (token: number): Buffer => {
    let piece = pieces.get(token)
    if (!piece) {
      const length = library.llama_token_to_piece(handle, token, scratch, scratch.length, 0, false)
      piece = Buffer.from(scratch.subarray(0, Math.max(0, length)))
      pieces.set(token, piece)
    }
    return piece
  }

  const tokenize = async (input: string, special: boolean, wrapped = false): Promise<number[]> => {
    const utf8 = Buffer.from(input, 'utf8')
    // No token is shorter than a byte, apart from a space that some vocabularies put first.
    const out = new Int32Array(utf8.length + 8)
    const count =
      utf8.length <= syncBytesMax
        ? library.llama_tokenize(handle, utf8, utf8.length, out, out.length, wrapped, special)
        : await inThread(utf8, out, special, wrapped)
    if (count < 0) throw new Error('The tokenizer needs more tokens than the text has bytes.')
    return Array.from(out.subarray(0, count))
  }

  const inThread = (utf8: Buffer, out: Int32Array, special: boolean, wrapped: boolean): Promise<number> =>
    new Promise((resolve, reject) =>
      library.llama_tokenize.async(handle, utf8, utf8.length, out, out.length, wrapped, special, (error, count) => (error ? reject(error) : resolve(count))),
    )

  return {
    size: library.llama_vocab_n_tokens(handle),
    bos,
    eos,
    text,
    bos_text: textOrNone(bos),
    eos_text: textOrNone(eos),
    wants_bos: library.llama_vocab_get_add_bos(handle) && bos !== null,
    isEndOfGeneration: (token) => library.llama_vocab_is_eog(handle, token),
    bytes,
    tokenize,
  }
}

function tokenOrNull(token: number): number | null {
  return token < 0 ? null : token
}
