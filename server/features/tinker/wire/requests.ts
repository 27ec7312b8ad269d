// The bodies of Tinker's API that are JSON, as the SDK sends them (tinker/types). Fields of other versions are ignored.
import { z } from 'zod'

const id = z.string().min(1).max(200)
const seq = z
  .int()
  .min(0)
  .max(2 ** 53 - 1)
const ModelSeq = z.int().min(0).max(1_000_000)

/** What users say of sessions, runs and checkpoints. */
const Metadata = z
  .record(z.string().max(64), z.string().max(512))
  .refine((value) => Object.keys(value).length <= 64, { error: 'may have 64 keys at most' })

/** How long a checkpoint is kept: an hour to ten years. */
const Ttl = z.int().min(3600).max(315_360_000)

const OptimizerConfig = z.looseObject({ type: z.string().max(100) })

export const ClientConfigRequest = z.looseObject({ sdk_version: z.string().max(100) })

export const CreateSession = z.looseObject({
  tags: z.array(z.string().max(200)).max(64).default([]),
  user_metadata: Metadata.nullish(),
  sdk_version: z.string().max(100).optional(),
  display_name: z.string().max(200).nullish(),
})
export type CreateSession = z.infer<typeof CreateSession>

export const SessionId = z.looseObject({ session_id: id })

export const FinishSession = z.looseObject({
  reason: z.looseObject({ type: z.enum(['success', 'errored', 'interrupted']) }),
  detail: z.string().max(10_000).nullish(),
})
export type FinishSession = z.infer<typeof FinishSession>

export const CreateModel = z.looseObject({
  session_id: id,
  model_seq_id: ModelSeq,
  base_model: z.string().min(1).max(256),
  user_metadata: Metadata.nullish(),
  lora_config: z
    .looseObject({
      rank: z.int().min(1),
      seed: z
        .int()
        .min(0)
        .max(2 ** 32 - 1)
        .nullish(),
      train_unembed: z.boolean().default(true),
      train_mlp: z.boolean().default(true),
      train_attn: z.boolean().default(true),
    })
    .prefault({ rank: 32 }),
  optimizer_config: OptimizerConfig.nullish(),
})
export type CreateModel = z.infer<typeof CreateModel>

export const LoadWeights = z.looseObject({
  model_id: id.optional(),
  seq_id: seq.optional(),
  session_id: id.optional(),
  model_seq_id: ModelSeq.optional(),
  base_model: z.string().max(256).nullish(),
  user_metadata: Metadata.nullish(),
  path: z.string().min(1).max(600),
  optimizer: z.boolean(),
  optimizer_config: OptimizerConfig.nullish(),
})
export type LoadWeights = z.infer<typeof LoadWeights>

const finite = z.number().refine(Number.isFinite, { error: 'must be a finite number' })

export const AdamParams = z.looseObject({
  learning_rate: finite.min(0).default(0.0001),
  beta1: finite.min(0).lt(1).default(0.9),
  beta2: finite.min(0).lt(1).default(0.95),
  eps: finite.min(0).default(1e-12),
  weight_decay: finite.min(0).default(0),
  grad_clip_norm: finite.default(0),
})
export type AdamParams = z.infer<typeof AdamParams>

export const OptimStep = z.looseObject({
  model_id: id,
  seq_id: seq.optional(),
  adam_params: AdamParams.optional(),
  optimizer_params: OptimizerConfig.optional(),
})

const SaveFields = {
  model_id: id,
  seq_id: seq.optional(),
  path: z.string().max(300).nullish(),
  ttl_seconds: Ttl.nullish(),
  user_metadata: Metadata.nullish(),
}

export const SaveWeights = z.looseObject({ ...SaveFields, overwrite: z.boolean().default(false) })
export type SaveWeights = z.infer<typeof SaveWeights>

export const SaveWeightsForSampler = z.looseObject({
  ...SaveFields,
  sampling_session_seq_id: ModelSeq.nullish(),
  kind: z.enum(['snapshot', 'inflight']).default('snapshot'),
})
export type SaveWeightsForSampler = z.infer<typeof SaveWeightsForSampler>

export const SaveWeightsExternal = z.looseObject({
  ...SaveFields,
  age_encryption_recipients: z.array(z.string()).nullish(),
})
export type SaveWeightsExternal = z.infer<typeof SaveWeightsExternal>

export const ModelId = z.looseObject({ model_id: id })

export const CreateSampler = z.looseObject({
  session_id: id,
  sampling_session_seq_id: ModelSeq,
  base_model: z.string().max(256).nullish(),
  model_path: z.string().max(600).nullish(),
})
export type CreateSampler = z.infer<typeof CreateSampler>

export const SamplerId = z.looseObject({ sampling_session_id: id })

const isToken = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0
/** Many: looked at one by one without an object for each. */
const Tokens = z.custom<number[]>((value) => Array.isArray(value) && value.every(isToken), {
  error: 'must be an array of whole numbers of 0 or more',
})

const Chunk = z.looseObject({ type: z.string().max(40).default('encoded_text'), tokens: Tokens.optional() })

export const Sample = z.looseObject({
  num_samples: z.int().min(1).max(128).default(1),
  prompt: z.looseObject({ chunks: z.array(Chunk).max(4096) }),
  sampling_params: z.looseObject({
    max_tokens: z.int().min(1).nullish(),
    seed: z.int().nullish(),
    stop: z.union([z.string(), z.array(z.string()).max(64), z.array(z.int().min(0)).max(64)]).nullish(),
    temperature: finite.min(0).max(2).default(1),
    top_k: z.int().min(-1).default(-1),
    top_p: finite.gt(0).max(1).default(1),
  }),
  base_model: z.string().max(256).nullish(),
  model_path: z.string().max(600).nullish(),
  sampling_session_id: id.nullish(),
  seq_id: seq.nullish(),
  prompt_logprobs: z.boolean().nullish(),
  topk_prompt_logprobs: z.int().min(0).max(20).default(0),
  topk_sample_logprobs: z.int().min(0).max(20).default(0),
  target_prompt_logprobs: z.unknown().optional(),
  prompt_alt_tokens_k: z.int().min(0).default(0),
  prompt_logprobs_last_n: z.int().min(1).nullish(),
  record_stability_info: z.boolean().nullish(),
})
export type Sample = z.infer<typeof Sample>

export const RetrieveFuture = z.looseObject({ request_id: z.string().min(1).max(400) })

export const RetrieveFutures = z.looseObject({
  target: z.looseObject({ sampling_session_id: id, cloned_sampler_id: z.int().min(0).default(0) }),
  prev_cursor: z.int().min(0).default(0),
  timeout: finite.min(0).nullish(),
  retrieved_request_ids: z.array(z.string().max(400)).max(10_000).default([]),
})

export const CheckpointTtl = z.looseObject({ ttl_seconds: Ttl.nullish() })

export const TinkerPathBody = z.looseObject({ tinker_path: z.string().min(1).max(600) })

/** A page by offset. */
export const OffsetQuery = z.object({
  limit: z.coerce.number().int().min(1).max(1000).default(20),
  offset: z.coerce.number().int().min(0).default(0),
  access_scope: z.string().optional(),
  project_id: z.string().optional(),
})
