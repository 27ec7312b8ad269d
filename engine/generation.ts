// One request for text, from the prompt's tokens to its last word, whichever lane computes it.

import type { ApiError } from '../contract/errors.ts'
import type { FinishReason, Usage } from '../contract/sampling.ts'
import type { SamplingParams } from './llama/sampler.ts'
import type { Vocab } from './llama/vocab.ts'
import { createTextOutput, type TextOutput } from './text-output.ts'

export type GenerationRequest = {
  prompt: number[]
  /** At least 1; prompt and output together fit the lane that gets it. */
  max_tokens: number
  stop: string[]
  sampling: SamplingParams
  /** Beginnings of prompts are computed once and shared within an account only: across accounts, the timing would tell what others ask. */
  account: string
}

export type GenerationEvents = {
  onText(text: string): void
  onEnd(result: { finish_reason: FinishReason; usage: Usage }): void
  onError(error: ApiError): void
}

export type Generation = {
  request: GenerationRequest
  events: GenerationEvents
  output: TextOutput
  completion_tokens: number
  submitted_at_ms: number
  state: 'waiting' | 'running' | 'ended'
  cancelled: boolean
}

export function createGeneration(request: GenerationRequest, events: GenerationEvents): Generation {
  return {
    request,
    events,
    output: createTextOutput(request.stop),
    completion_tokens: 0,
    submitted_at_ms: performance.now(),
    state: 'waiting',
    cancelled: false,
  }
}

/** Takes one sampled token, passes its text on, and returns whether the generation has ended with it. */
export function acceptToken(generation: Generation, vocab: Vocab, token: number): boolean {
  // The token that ends the answer was generated too, and counts, as it does in vLLM.
  generation.completion_tokens++
  if (vocab.isEndOfGeneration(token)) return end(generation, 'stop')
  const { text, stopped } = generation.output.push(vocab.bytes(token))
  if (text !== '') generation.events.onText(text)
  if (stopped) return end(generation, 'stop', false)
  return generation.completion_tokens >= generation.request.max_tokens ? end(generation, 'length') : false
}

/** Ends a generation that has not ended yet, with an error for its caller. */
export function failGeneration(generation: Generation, error: ApiError): void {
  if (generation.state === 'ended') return
  generation.state = 'ended'
  if (!generation.cancelled) generation.events.onError(error)
}

function end(generation: Generation, finish_reason: FinishReason, flush = true): true {
  const rest = flush ? generation.output.finish() : ''
  if (rest !== '') generation.events.onText(rest)
  generation.state = 'ended'
  const prompt_tokens = generation.request.prompt.length
  const completion_tokens = generation.completion_tokens
  generation.events.onEnd({ finish_reason, usage: { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens } })
  return true
}
