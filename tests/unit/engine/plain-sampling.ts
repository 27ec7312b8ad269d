import type { SamplingParams } from '../../../engine/sampling/sampler.ts'

/** Greedy sampling without penalties or bias. */
export const plainSampling: SamplingParams = {
  temperature: 0,
  top_k: 50,
  top_p: 1,
  min_p: 0,
  seed: null,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  logit_bias: [],
}
