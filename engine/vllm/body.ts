// What vLLM is sent for a generation: the prompt as tokens, so that texts of users stay text, and the grammar of its
// answer.
import { createHash } from 'node:crypto'
import type { GenerationRequest } from '../batching/generation.ts'
import type { Model } from '../llama/model.ts'
import type { GenerateBody } from './base.ts'

/** Among the tokens that a mask may leave, such a bias forbids one. */
const forbidden = -100
const topPMin = 1e-6
/** vLLM serves requests of lower numbers first. */
const backgroundPriority = 1

export function generateBody(model: Model, request: GenerationRequest): GenerateBody {
  const { prompt, max_tokens, sampling, stop, top_logprobs, grammar, control_texts, account, background } = request
  const { stop_tokens, ignore_end } = request
  const { seed, logit_bias, top_p, ...parameters } = sampling
  const bias = new Map(logit_bias)
  // vLLM's grammars take control tokens for the text that they are written with.
  if (grammar) for (const token of controlTokens(model)) if (!control_texts?.has(token)) bias.set(token, forbidden)
  return {
    token_ids: prompt,
    // Accounts share no prefix cache: timing would reveal the prompts of others.
    cache_salt: createHash('sha256').update(`account ${account}`).digest('hex'),
    priority: background ? backgroundPriority : 0,
    sampling_params: {
      ...parameters,
      // vLLM refuses 0, which leaves the likeliest token alone.
      top_p: Math.max(top_p, topPMin),
      max_tokens,
      ...(seed !== null && { seed: seedOf(seed) }),
      stop_token_ids: [...(ignore_end ? [] : endTokens(model)), ...(stop_tokens ?? [])],
      ...(ignore_end && { ignore_eos: true }),
      ...(bias.size > 0 && { logit_bias: Object.fromEntries(bias) }),
      // One more, as the token itself takes a place where it is not among the likeliest.
      ...(top_logprobs !== null && { logprobs: top_logprobs + 1 }),
      // A stop sequence that vLLM sees itself ends with the count of cached tokens.
      ...(stop.length > 0
        ? { stop: stop.map((text) => text.toWellFormed()), include_stop_str_in_output: true }
        : { detokenize: false }),
      ...(grammar && {
        structured_outputs:
          grammar.source.kind === 'ebnf'
            ? { grammar: grammar.source.ebnf }
            : { structural_tag: JSON.stringify(grammar.source.tag) },
      }),
    },
  }
}

/** JSON's numbers are exact up to 53 bits. */
const seedOf = (seed: bigint) => Number(BigInt.asUintN(53, seed))

const ends = new WeakMap<Model, number[]>()
/** The tokens that end an answer. */
function endTokens(model: Model): number[] {
  let tokens = ends.get(model)
  if (!tokens) {
    tokens = []
    for (let token = 0; token < model.vocab.size; token++) if (model.vocab.isEndOfGeneration(token)) tokens.push(token)
    ends.set(model, tokens)
  }
  return tokens
}

/** Control tokens but the one that ends a text: where a grammar is complete, only that may come. */
const controlTokens = ({ vocab }: Model): number[] =>
  vocab.special_tokens.filter(({ control, token }) => control && token !== vocab.eos).map(({ token }) => token)
