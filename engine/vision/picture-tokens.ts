// How prompts and KV caches name the vectors of pictures: by negative numbers, beside the tokens of the vocabulary.
// Equal numbers stand for the same vector of the same picture, so the prefix cache compares pictures by their content.

/** Token `index` of a picture's part. `advances`: whether the next token has the next position. */
const pictureToken = (id: number, advances: boolean) => -(2 * id + (advances ? 1 : 0))

export const isPictureToken = (token: number) => token < 0

/**
 * Tokens of one part, with consecutive ids from `first_id` (1 or more). A part with multimodal rotary positions may
 * take fewer positions than it has tokens; it advances with its first ones.
 */
export function pictureTokens(first_id: number, n_tokens: number, n_positions: number): number[] {
  return Array.from({ length: n_tokens }, (_, index) => pictureToken(first_id + index, index < n_positions))
}

/** Positions that the first `count` of these tokens take. */
export function positionsIn(tokens: readonly number[], count: number): number {
  let positions = 0
  for (let index = 0; index < count; index++) if (tokens[index]! >= 0 || tokens[index]! % 2 !== 0) positions++
  return positions
}

/** The vectors of one part of a picture, at the prompt's tokens `start` to `start + n_tokens - 1`. */
export interface PictureSpan {
  start: number
  n_tokens: number
  /** `n_tokens` times `vector_length` numbers. */
  vectors: Float32Array
  vector_length: number
  /** Time, y and x of each vector, relative to the first position of the part; null: one position after the other. */
  positions: Int32Array | null
  /** All vectors must be decoded at once. */
  is_non_causal: boolean
}

/** The span that has this token of the prompt. */
export function spanAt(spans: readonly PictureSpan[], token: number): PictureSpan {
  return spans.find(({ start, n_tokens }) => token >= start && token < start + n_tokens)!
}
