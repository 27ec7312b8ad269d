// Samples the next token from the logits of the whole vocabulary.
import { randomInt } from 'node:crypto'
import { type Exponentials, exponentials, largest } from '../llama/kernels.ts'

export interface SamplingParams {
  temperature: number
  /**
   * 1 to 100: the likeliest tokens that are considered. 0: the whole vocabulary, without `top_p` and `min_p`, so that
   * the probability of a token is the model's own.
   */
  top_k: number
  top_p: number
  min_p: number
  /** 64 bits. */
  seed: bigint | null
  presence_penalty: number
  frequency_penalty: number
  repetition_penalty: number
  /** Added to the logits of these tokens. */
  logit_bias: readonly (readonly [token: number, bias: number])[]
}

export interface Sampler {
  /**
   * Samples a token and counts it for the penalties. Changes `logits` (one number per token of the vocabulary). `mask`
   * has a bit per token, set if allowed: bit i % 32 of word i / 32; null allows all. Returns -1 if none is allowed.
   */
  sample(logits: Float32Array, mask: Uint32Array | null): number
}

/**
 * Applies parameters in the order of Hugging Face and vLLM: bias and penalties, temperature, then top_k, top_p and
 * min_p. Presence and frequency penalties count tokens of the answer only; the repetition penalty counts `prompt` too.
 * Temperature 0 takes the likeliest token, the first of equals.
 */
export function createSampler(params: SamplingParams, prompt: readonly number[]): Sampler {
  const { temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias } = params
  const random = temperature === 0 ? null : createRandom(params.seed)
  const hasPenalty = presence_penalty !== 0 || frequency_penalty !== 0 || repetition_penalty !== 1
  const counts = new Map<number, number>()
  const repeatable = repetition_penalty === 1 ? null : new Set(prompt)
  const topK = createTopK(temperature === 0 ? 1 : Math.max(1, params.top_k))
  const likeliest = (logits: Float32Array, mask: Uint32Array | null): number => {
    const { tokens, count } = topK.find(logits, mask)
    return count === 0 ? -1 : tokens[0]!
  }

  const adjust = (logits: Float32Array) => {
    for (const [token, bias] of logit_bias) if (token < logits.length) logits[token]! += bias
    if (repeatable)
      for (const token of repeatable) logits[token]! *= logits[token]! > 0 ? 1 / repetition_penalty : repetition_penalty
    if (presence_penalty !== 0 || frequency_penalty !== 0)
      for (const [token, count] of counts) logits[token]! -= presence_penalty + frequency_penalty * count
  }

  const drawFromAll = createDraw(temperature, exponentials)

  const draw = (logits: Float32Array, mask: Uint32Array | null): number => {
    if (params.top_k === 0) return drawFromAll(logits, mask, random!())
    const { values, tokens, count } = topK.find(logits, mask)
    if (count === 0) return -1
    const largest = values[0]!
    const weights = new Float64Array(count)
    let sum = 0
    for (let rank = 0; rank < count; rank++) sum += weights[rank] = Math.exp((values[rank]! - largest) / temperature)
    let candidates = 0
    let mass = 0
    // At least one token stays, and so does the one that reaches top_p.
    while (candidates < count && (candidates === 0 || (mass < top_p * sum && weights[candidates]! >= min_p)))
      mass += weights[candidates++]!
    let left = random!() * mass
    for (let rank = 0; rank < candidates; rank++) {
      left -= weights[rank]!
      if (left < 0) return tokens[rank]!
    }
    return tokens[candidates - 1]!
  }

  return {
    sample(logits, mask) {
      adjust(logits)
      const token = temperature === 0 ? likeliest(logits, mask) : draw(logits, mask)
      if (hasPenalty && token >= 0) {
        counts.set(token, (counts.get(token) ?? 0) + 1)
        repeatable?.add(token)
      }
      return token
    },
  }
}

/**
 * Draws from all allowed tokens by the inverse of the cumulative distribution at `at`, from 0 to below 1. Returns -1 if
 * none is allowed. `native`: computes the weights, where there is no mask.
 */
export function createDraw(temperature: number, native: Exponentials | null) {
  let reused = new Float32Array()
  return (logits: Float32Array, mask: Uint32Array | null, at: number): number => {
    let most = Number.NEGATIVE_INFINITY
    for (let token = 0; token < logits.length; token++)
      if (logits[token]! > most && (mask === null || allows(mask, token))) most = logits[token]!
    if (native && mask === null && Number.isFinite(most)) {
      if (reused.length !== logits.length) reused = new Float32Array(logits.length)
      const sum = native(logits, most, 1 / temperature, reused)
      if (Number.isFinite(sum)) return tokenAt(reused, at * sum)
    }
    const weights = new Float64Array(logits.length)
    let sum = 0
    for (let token = 0; token < logits.length; token++) {
      if (mask !== null && !allows(mask, token)) continue
      const weight = Math.exp((logits[token]! - most) / temperature)
      if (weight > 0) sum += weights[token] = weight
    }
    return tokenAt(weights, at * sum)
  }
}

/** The token in whose weight the place lies, when the weights are put one after the other; the last one beyond them. */
function tokenAt(weights: Float32Array | Float64Array, place: number): number {
  let left = place
  let last = -1
  for (let token = 0; token < weights.length; token++) {
    const weight = weights[token]!
    if (weight === 0) continue
    last = token
    left -= weight
    if (left < 0) break
  }
  return last
}

/**
 * Visits, in order, the allowed tokens with logits above the bound. Each visit returns the next bound. This is the only
 * loop over the whole vocabulary per token; comparing eight at once halves its time.
 */
function visitAbove(
  logits: Float32Array,
  mask: Uint32Array | null,
  bound: number,
  visit: (value: number, token: number) => number,
): void {
  let above = bound
  const visitRange = (from: number, to: number) => {
    for (let token = from; token < to; token++)
      if (logits[token]! > above && (mask === null || allows(mask, token))) above = visit(logits[token]!, token)
  }
  const whole = logits.length - (logits.length % 8)
  for (let at = 0; at < whole; at += 8) {
    if (
      logits[at]! > above ||
      logits[at + 1]! > above ||
      logits[at + 2]! > above ||
      logits[at + 3]! > above ||
      logits[at + 4]! > above ||
      logits[at + 5]! > above ||
      logits[at + 6]! > above ||
      logits[at + 7]! > above
    )
      visitRange(at, at + 8)
  }
  visitRange(whole, logits.length)
}

const allows = (mask: Uint32Array, token: number) => ((mask[token >>> 5]! >>> (token & 31)) & 1) === 1

export interface TopK {
  /** The largest of `logits`, in descending order. The next call overwrites the arrays. */
  find(logits: Float32Array, mask: Uint32Array | null): { values: Float64Array; tokens: Int32Array; count: number }
}

/**
 * Finds the `size` largest logits in one pass, by insertion into a sorted list: by `native` code where there is some.
 */
export function createTopK(size: number, native = largest): TopK {
  const values = new Float64Array(size)
  const tokens = new Int32Array(size)
  return {
    find(logits, mask) {
      if (native) return { values, tokens, count: native(logits, mask, values, tokens) }
      let count = 0
      visitAbove(logits, mask, Number.NEGATIVE_INFINITY, (value, token) => {
        let rank = count < size ? count++ : size - 1
        for (; rank > 0 && values[rank - 1]! < value; rank--) {
          values[rank] = values[rank - 1]!
          tokens[rank] = tokens[rank - 1]!
        }
        values[rank] = value
        tokens[rank] = token
        return count === size ? values[size - 1]! : Number.NEGATIVE_INFINITY
      })
      return { values, tokens, count }
    },
  }
}

// Seeded pseudorandom numbers: sfc32 by Chris Doty-Humphrey (PractRand), public domain.

/** Numbers in [0, 1). Any integer of 64 bits is a seed; null gives a different sequence each time. */
function createRandom(seed: bigint | null): () => number {
  const start = BigInt.asUintN(64, seed ?? BigInt(randomInt(2 ** 47)))
  let a = Number(start & 0xffff_ffffn)
  let b = Number(start >> 32n)
  let c = 0x9e3779b9
  let counter = 1
  const next = () => {
    const sum = (((a + b) >>> 0) + counter++) >>> 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) >>> 0
    c = (((c << 21) | (c >>> 11)) + sum) >>> 0
    return sum / 2 ** 32
  }
  // Mix: similar seeds give similar first numbers.
  for (let round = 0; round < 12; round++) next()
  return next
}
