// How likely the model itself held its tokens, before any sampling parameter had its say.
import type { TokenLogprob } from '../../contract/sampling.ts'
import type { Vocab } from '../llama/vocab.ts'
import { createTop, type Top } from './sampler.ts'

/** Of one place in the text: the chosen token and the likeliest ones, as natural logarithms. */
export type PlaceLogprobs = {
  token: number /** Null for a text's first token, which has nothing before it. */
  logprob: number | null
  top: { token: number; logprob: number }[]
}

export type Logprobs = {
  /** To be called before `logits` are changed; the token is chosen afterwards. */
  read(logits: Float32Array): (token: number) => PlaceLogprobs
}

/** Tells the likeliest `count` tokens of each place. */
export function createLogprobs(count: number): Logprobs {
  const finder: Top | null = count > 0 ? createTop(count) : null
  return {
    read(logits) {
      const total = logSumExp(logits)
      const top: PlaceLogprobs['top'] = []
      if (finder) {
        const found = finder.of(logits, null)
        for (let place = 0; place < found.count; place++)
          top.push({ token: found.tokens[place]!, logprob: found.values[place]! - total })
      }
      const original = Float32Array.from(logits)
      return (token) => ({ token, logprob: original[token]! - total, top })
    },
  }
}

export function logSumExp(logits: Float32Array): number {
  let largest = Number.NEGATIVE_INFINITY
  for (let token = 0; token < logits.length; token++) if (logits[token]! > largest) largest = logits[token]!
  let sum = 0
  // What is e^-40 of the largest adds nothing that a 64-bit sum would keep in these digits.
  for (let token = 0; token < logits.length; token++)
    if (logits[token]! - largest > -40) sum += Math.exp(logits[token]! - largest)
  return largest + Math.log(sum)
}

/** Never below this: what is impossible cannot be written in JSON. It is what OpenAI's protocol says for it. */
const smallest = -9999

export function tokenText(vocab: Vocab, token: number): string {
  const bytes = vocab.bytes(token)
  return bytes.length === 0 ? vocab.text(token) : bytes.toString('utf8')
}

export function toWire(vocab: Vocab, place: PlaceLogprobs): TokenLogprob {
  const one = ({ token, logprob }: { token: number; logprob: number | null }) => ({
    token: tokenText(vocab, token),
    logprob: Math.max(logprob ?? smallest, smallest),
    bytes: [...vocab.bytes(token)],
  })
  return { ...one(place), top_logprobs: place.top.map(one) }
}
