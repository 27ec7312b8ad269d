import { z } from 'zod'
import { Method } from './common.ts'

/** Defaults of a job's config; docs/defaults.md says how they were chosen. */
export const jobDefaults = {
  method: 'lora',
  r: 16,
  dropout: 0,
  epochs: 2,
  batch_size: 4,
  warmup_ratio: 0.05,
  seed: 42,
  validation_split: 0,
  keep_checkpoints: 0,
} as const

// `default` and `x-default` (in words) appear in the OpenAPI document and in docs/reference; they change no value.
const LoraConfig = z.strictObject({
  r: z
    .int()
    .min(8)
    .max(64)
    .optional()
    .meta({ description: 'Rank of the adapter: how much it can learn, and how large it is.', default: jobDefaults.r }),
  alpha: z
    .int()
    .min(1)
    .max(1024)
    .optional()
    .meta({ description: 'Scale of the adapter: what it adds is multiplied by alpha / r.', 'x-default': 'twice `r`' }),
  dropout: z.number().min(0).max(0.5).optional().meta({
    description: 'Share of the adapter’s inputs that each training step drops.',
    default: jobDefaults.dropout,
  }),
  target_modules: z.array(z.string().min(1).max(100)).min(1).max(100).optional().meta({
    description: 'Names of the linear layers that get an adapter, such as `q_proj`.',
    'x-default': 'all linear layers',
  }),
})

const TrainingConfig = z.strictObject({
  epochs: z
    .int()
    .min(1)
    .max(50)
    .optional()
    .meta({ description: 'Number of passes over the whole dataset.', default: jobDefaults.epochs }),
  batch_size: z
    .int()
    .min(1)
    .max(256)
    .optional()
    .meta({ description: 'Examples per optimizer step.', default: jobDefaults.batch_size }),
  learning_rate: z.number().gt(0).max(0.1).optional().meta({
    description: 'Learning rate at its peak; it falls to 0 along a cosine.',
    'x-default': 'by the size of the base: 0.001 to 0.0002, a tenth of it for `full`',
  }),
  warmup_ratio: z.number().min(0).max(0.5).optional().meta({
    description: 'Share of the steps in which the learning rate rises to its peak.',
    default: jobDefaults.warmup_ratio,
  }),
  seed: z.int().min(0).max(4_294_967_295).optional().meta({
    description: 'Seed of the order of the rows, of the held-out rows and of new weights.',
    default: jobDefaults.seed,
  }),
  max_length: z.int().min(8).max(10_000_000).optional().meta({
    description: 'Tokens at which rows are cut; at most the context of the base.',
    'x-default': '2,048, or the context where that is less',
  }),
})

const Prompt = z.union([
  z.string().min(1).max(20_000),
  z
    .array(
      z.strictObject({
        role: z.enum(['system', 'user', 'assistant']).describe('Role of the message.'),
        content: z.string().min(1).max(20_000).describe('Text of the message.'),
      }),
    )
    .min(1)
    .max(50),
])

const EvaluationConfig = z.strictObject({
  validation_split: z.number().gt(0).max(0.5).optional().meta({
    description: 'Share of the rows that is held out and evaluated during the training.',
    'x-default': 'none is held out',
  }),
  validation_dataset_id: z
    .string()
    .min(1)
    .max(100)
    .optional()
    .meta({ description: 'A dataset to evaluate instead of a share of the rows.', 'x-default': 'none' }),
  every_steps: z
    .int()
    .min(1)
    .max(1_000_000)
    .optional()
    .meta({ description: 'Optimizer steps from one evaluation to the next.', 'x-default': 'at the end of each epoch' }),
  early_stopping_patience: z.int().min(1).max(100).optional().meta({
    description: 'End after this many evaluations without a better loss; the best state is the result.',
    'x-default': 'train to the end',
  }),
  sample_prompts: z.array(Prompt).max(8).optional().meta({
    description: 'Prompts answered at each evaluation, with the answer of the base: a text, or messages.',
    'x-default': 'none',
  }),
  keep_checkpoints: z.int().min(0).max(10).optional().meta({
    description: 'How many of the newest evaluated states become models.',
    default: jobDefaults.keep_checkpoints,
  }),
})

export const JobConfig = z.strictObject({
  method: Method.optional().meta({
    description: 'An adapter (`lora`), an adapter on the base in 4 bits (`qlora`), or all weights (`full`).',
    default: jobDefaults.method,
  }),
  lora_config: LoraConfig.optional().describe('The adapter, for `lora` and `qlora`.'),
  training_config: TrainingConfig.optional().describe('The training.'),
  evaluation_config: EvaluationConfig.optional().describe('What is evaluated and kept during the training.'),
})
export type JobConfig = z.infer<typeof JobConfig>
