// Choosing the next token from the logits of all tokens of the vocabulary.
import { randomInt } from 'node:crypto'

export type SamplingParams = {
  temperature: number
  /** 1 to 100: what is sampled from is never more than a hundred tokens. */
  top_k: number
  top_p: number
  min_p: number
  seed: number | null
  presence_penalty: number
  frequency_penalty: number
  repetition_penalty: number
  /** Added to the logits of these tokens. */
  logit_bias: readonly (readonly [token: number, bias: number])[]
}

export type Sampler = {
  /**
   * Chooses a token and counts it as part of the answer. Changes `logits` (one number a token of the vocabulary).
   * `mask` has a bit for each token that may be taken: bit i % 32 of word i / 32; null allows all. Returns -1 where
   * nothing may be taken.
   */
  sample(logits: Float32Array, mask: Uint32Array | null): number
}

/**
 * The order is that of Hugging Face and vLLM: bias and penalties, temperature, then top_k, top_p and min_p, so that a
 * model tuned and tried there answers alike here. Presence and frequency look at the answer alone, repetition at
 * `prompt` too. Temperature 0 takes the likeliest token, the first of equals.
 */
export function createSampler(params: SamplingParams, prompt: readonly number[]): Sampler {
  const { temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias } = params
  const random = temperature === 0 ? null : createRandom(params.seed)
  const counted = presence_penalty !== 0 || frequency_penalty !== 0 || repetition_penalty !== 1
  const counts = new Map<number, number>()
  const seen = repetition_penalty === 1 ? null : new Set(prompt)
  const top = temperature === 0 ? null : createTop(params.top_k)

  const adjust = (logits: Float32Array) => {
    for (const [token, bias] of logit_bias) if (token < logits.length) logits[token]! += bias
    if (seen)
      for (const token of seen) logits[token]! *= logits[token]! > 0 ? 1 / repetition_penalty : repetition_penalty
    if (presence_penalty !== 0 || frequency_penalty !== 0)
      for (const [token, count] of counts) logits[token]! -= presence_penalty + frequency_penalty * count
  }

  const draw = (logits: Float32Array, mask: Uint32Array | null): number => {
    const { values, tokens, count } = top!.of(logits, mask)
    if (count === 0) return -1
    const largest = values[0]!
    const weights = new Float64Array(count)
    let sum = 0
    for (let place = 0; place < count; place++)
      sum += weights[place] = Math.exp((values[place]! - largest) / temperature)
    let kept = 0
    let mass = 0
    // At least one is kept; the one that reaches top_p is kept too.
    while (kept < count && (kept === 0 || (mass < top_p * sum && weights[kept]! >= min_p))) mass += weights[kept++]!
    let left = random!() * mass
    for (let place = 0; place < kept; place++) {
      left -= weights[place]!
      if (left < 0) return tokens[place]!
    }
    return tokens[kept - 1]!
  }

  return {
    sample(logits, mask) {
      adjust(logits)
      const token = temperature === 0 ? argmax(logits, mask) : draw(logits, mask)
      if (counted && token >= 0) {
        counts.set(token, (counts.get(token) ?? 0) + 1)
        seen?.add(token)
      }
      return token
    },
  }
}

function argmax(logits: Float32Array, mask: Uint32Array | null): number {
  let best = -1
  let largest = Number.NEGATIVE_INFINITY
  eachAbove(logits, mask, largest, (value, token) => {
    best = token
    largest = value
    return value
  })
  return best
}

/**
 * Visits, in order, the tokens that the mask allows and whose logits are above the bound, which each visit sets anew.
 * The one loop over the whole vocabulary that every token costs: eight at once take half the time of one by one.
 */
function eachAbove(
  logits: Float32Array,
  mask: Uint32Array | null,
  bound: number,
  visit: (value: number, token: number) => number,
): void {
  let above = bound
  const look = (from: number, to: number) => {
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
      look(at, at + 8)
  }
  look(whole, logits.length)
}

const allows = (mask: Uint32Array, token: number) => ((mask[token >>> 5]! >>> (token & 31)) & 1) === 1

export type Top = {
  /** The largest of `logits`, in falling order. The arrays are used again by the next call. */
  of(logits: Float32Array, mask: Uint32Array | null): { values: Float64Array; tokens: Int32Array; count: number }
}

/**
 * Finds the `size` largest in one pass: all but a few hundred of a vocabulary fail the comparison with the smallest
 * kept.
 */
export function createTop(size: number): Top {
  const values = new Float64Array(size)
  const tokens = new Int32Array(size)
  return {
    of(logits, mask) {
      let count = 0
      eachAbove(logits, mask, Number.NEGATIVE_INFINITY, (value, token) => {
        let place = count < size ? count++ : size - 1
        for (; place > 0 && values[place - 1]! < value; place--) {
          values[place] = values[place - 1]!
          tokens[place] = tokens[place - 1]!
        }
        values[place] = value
        tokens[place] = token
        return count === size ? values[size - 1]! : Number.NEGATIVE_INFINITY
      })
      return { values, tokens, count }
    },
  }
}

// Random numbers that a seed repeats: sfc32, by Chris Doty-Humphrey (PractRand), here as published in the public
// domain.

/** Numbers from 0 up to, but not including, 1. Without a seed, another sequence each time. Any integer is a seed. */
export function createRandom(seed: number | null): () => number {
  const start = seed ?? randomInt(2 ** 47)
  let a = start >>> 0
  let b = Math.floor(start / 2 ** 32) >>> 0
  let c = 0x9e3779b9
  let counter = 1
  const next = () => {
    const sum = (((a + b) >>> 0) + counter++) >>> 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) >>> 0
    c = (((c << 21) | (c >>> 11)) + sum) >>> 0
    return sum / 2 ** 32
  }
  // The first numbers of seeds that lie close together are alike.
  for (let round = 0; round < 12; round++) next()
  return next
}
