// Log-probabilities of the model itself, before any sampling parameter is applied.
import type { TokenLogprob } from '../../contract/sampling.ts'
import { exponentials } from '../llama/kernels.ts'
import type { Vocab } from '../llama/vocab.ts'
import { createTopK, type TopK } from './sampler.ts'

/** At one position: the sampled token and the likeliest tokens, as natural logarithms. */
export interface TokenLogprobs {
  token: number
  /** Null for the first token of a text. */
  logprob: number | null
  top: { token: number; logprob: number }[]
}

export interface LogprobReader {
  /** Call before the sampler changes `logits`; the returned function takes the token sampled after that. */
  read(logits: Float32Array): (token: number) => TokenLogprobs
}

/** Reports the `count` likeliest tokens at each position. */
export function createLogprobReader(count: number): LogprobReader {
  const topK: TopK | null = count > 0 ? createTopK(count) : null
  return {
    read(logits) {
      const total = logSumExp(logits)
      const top: TokenLogprobs['top'] = []
      if (topK) {
        const best = topK.find(logits, null)
        for (let rank = 0; rank < best.count; rank++)
          top.push({ token: best.tokens[rank]!, logprob: best.values[rank]! - total })
      }
      const original = logits.slice()
      return (token) => ({ token, logprob: original[token]! - total, top })
    },
  }
}

export function logSumExp(logits: Float32Array, native = exponentials): number {
  let largest = Number.NEGATIVE_INFINITY
  for (let token = 0; token < logits.length; token++) if (logits[token]! > largest) largest = logits[token]!
  const computed = native && Number.isFinite(largest) ? native(logits, largest, 1, null) : Number.NaN
  if (Number.isFinite(computed)) return largest + Math.log(computed)
  let sum = 0
  // Terms below e^-40 of the largest do not change a 64-bit sum noticeably.
  for (let token = 0; token < logits.length; token++)
    if (logits[token]! - largest > -40) sum += Math.exp(logits[token]! - largest)
  return largest + Math.log(sum)
}

/** Reported for a probability of 0, as in OpenAI's protocol: JSON has no -Infinity. */
const logprobMin = -9999

export function tokenText(vocab: Vocab, token: number): string {
  const bytes = vocab.bytes(token)
  return bytes.length === 0 ? vocab.text(token) : bytes.toString('utf8')
}

export function toTokenLogprob(vocab: Vocab, position: TokenLogprobs): TokenLogprob {
  const toRow = ({ token, logprob }: { token: number; logprob: number | null }) => ({
    token: tokenText(vocab, token),
    logprob: Math.max(logprob ?? logprobMin, logprobMin),
    bytes: [...vocab.bytes(token)],
  })
  return { ...toRow(position), top_logprobs: position.top.map(toRow) }
}
