// Choosing the next token from the logits.
import { randomInt } from 'node:crypto'
import type { Library } from './library.ts'
import type { Pointer } from './structs.ts'

export type SamplingParams = { temperature: number; top_k: number; top_p: number; seed: number | null }

// The C library takes this seed to mean 'choose one at random'.
const randomSeed = 0xffffffff

/**
 * A chain in the order of Hugging Face and vLLM, temperature before top_k and top_p, so that a model tuned and tried there
 * answers alike here. Temperature 0 takes the likeliest token. Free with `freeSampler`.
 */
export function createSampler(library: Library, { temperature, top_k, top_p, seed }: SamplingParams): Pointer {
  const chain = library.llama_sampler_chain_init({ no_perf: true })
  const add = (sampler: Pointer) => library.llama_sampler_chain_add(chain, sampler)
  if (temperature === 0) {
    add(library.llama_sampler_init_greedy())
    return chain
  }
  add(library.llama_sampler_init_temp(temperature))
  add(library.llama_sampler_init_top_k(top_k))
  add(library.llama_sampler_init_top_p(top_p, 1))
  add(library.llama_sampler_init_dist(seed === null ? randomInt(randomSeed) : seed === randomSeed ? randomSeed - 1 : seed))
  return chain
}

export function freeSampler(library: Library, sampler: Pointer): void {
  library.llama_sampler_free(sampler)
}
