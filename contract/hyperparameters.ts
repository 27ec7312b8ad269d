// Every hyperparameter of a training, defined once. Made from this table: the request schema (job-config.ts), the
// resolved config (tuning.ts), the defaults (server/features/jobs/defaults.ts), the groups of spec.json, the trainer's
// dataclasses (trainer/runtime/hyperparameters.py) and docs/reference.
import { z } from 'zod'
import { JsonObject, Method } from './common.ts'
import { Environments } from './environments.ts'
import { Grader, Graders, GradingLimits, gradingDefaults } from './graders.ts'

export interface Hyperparameter {
  description: string
  /** What a request may give. Absent: the API does not offer it. */
  request?: z.ZodType
  /** The value in force: `request` without its bounds. Absent: always the default, and not in `resolved_config`. */
  resolved?: z.ZodType
  /** What `resolved_config` says of it. */
  resolved_description?: string
  /** The constant default. docs/decisions/043-default-hyperparameters.md says how those of the training were chosen. */
  default?: unknown
  /** Instead of a constant: words for what `computedDefaults` of server/features/jobs/defaults.ts computes. */
  computed?: string
  /** The constant default in words, where its value says too little. */
  default_words?: string
  /** Its name in spec.json and in the trainer, where it is another. */
  spec_name?: string
  /** Its type in the trainer. */
  python: string
  /** Its default there, where that is another. */
  python_default?: null
  /** Whether the dashboard's form has no field for it. */
  without_field?: true
}

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

export const method = {
  description: 'An adapter (`lora`), an adapter on the base in 4 bits (`qlora`), or all weights (`full`).',
  request: Method,
  resolved: Method,
  default: 'lora' as Method,
  python: 'str',
} satisfies Hyperparameter

export const objectives = ['sft', 'dpo', 'kto', 'reinforcement'] as const
export type Objective = (typeof objectives)[number]

export const policyLosses = ['dapo', 'grpo', 'dr_grpo', 'gspo', 'cispo', 'rloo'] as const
export type PolicyLoss = (typeof policyLosses)[number]
const reasoningEfforts = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'] as const

export const hyperparameters = {
  method_options: {
    objective: {
      description:
        'What is learned: answers (`sft`), which of two answers is better (`dpo`), from answers rated as good or ' +
        'bad (`kto`), or from the scores that graders give the answers of the model itself (`reinforcement`). The ' +
        'rows must be of that kind; `reinforcement` takes the prompts of conversations and rated answers, too.',
      request: z.enum(objectives),
      resolved: z.enum(objectives),
      default: 'sft' as Objective,
      python: 'str',
    },
    beta: {
      description:
        'For `dpo` and `kto`: how strongly the model is kept near the model that it starts from. Smaller: it may ' +
        'move further.',
      request: z.number().gt(0).max(10),
      resolved: z.number(),
      default: 0.1,
      python: 'float',
    },
    loss_type: {
      description:
        'For `dpo`: `sigmoid` (the loss of the paper), `ipo` (against overfitting to clear preferences) or `robust` ' +
        '(for preferences of which a known share, `label_smoothing`, is wrong).',
      request: z.enum(['sigmoid', 'ipo', 'robust']),
      resolved: z.enum(['sigmoid', 'ipo', 'robust']),
      default: 'sigmoid',
      python: 'str',
    },
    label_smoothing: {
      description: 'For `dpo` with `sigmoid` or `robust`: the share of the preferences that is assumed to be wrong.',
      request: z.number().min(0).max(0.49),
      resolved: z.number(),
      default: 0,
      python: 'float',
    },
    sft_weight: {
      description: 'For `dpo`: weight of an added loss that teaches the chosen answers as `sft` does.',
      request: z.number().min(0).max(100),
      resolved: z.number(),
      default: 0,
      python: 'float',
    },
    desirable_weight: {
      description: 'For `kto`: weight of the answers rated as good. Raise it where they are few.',
      request: z.number().gt(0).max(100),
      resolved: z.number(),
      default: 1,
      python: 'float',
    },
    undesirable_weight: {
      description: 'For `kto`: weight of the answers rated as bad. Raise it where they are few.',
      request: z.number().gt(0).max(100),
      resolved: z.number(),
      default: 1,
      python: 'float',
    },
    grader: {
      description: 'For `reinforcement`: the grader whose score is the reward. Another form of `graders` with one.',
      request: Grader.meta({ 'x-opaque': true }),
      default: null,
      default_words: 'none',
      python: 'dict[str, Any] | None',
      without_field: true,
    },
    graders: {
      description:
        'For `reinforcement`: graders as of evaluations. The reward of an answer is the mean of their scores; a ' +
        '`multi` grader weighs them otherwise.',
      request: Graders.meta({ 'x-opaque': true }),
      resolved: z.array(JsonObject),
      default: [],
      default_words: 'required for `reinforcement`, unless an environment rewards',
      python: 'list[dict[str, Any]]',
      without_field: true,
    },
    watched_graders: {
      description:
        'For `reinforcement`: graders whose scores are reported beside the reward and are no part of it, in ' +
        'evaluations, and in each step where they ask no model, no code and no endpoint.',
      request: Graders.meta({ 'x-opaque': true }),
      resolved: z.array(JsonObject),
      default: [],
      default_words: 'none',
      python: 'list[dict[str, Any]]',
      without_field: true,
    },
    environments: {
      description:
        'For `reinforcement`: endpoints that answer the model turn by turn and may reward it. A row chooses one by ' +
        'its field `environment`; without that field it has the first, with null none.',
      request: Environments.meta({ 'x-opaque': true }),
      resolved: z.array(JsonObject),
      default: [],
      default_words: 'none',
      python: 'list[dict[str, Any]]',
      without_field: true,
    },
    tool_choice: {
      description: 'For `reinforcement`: whether an answer to a row with `tools` has to call one, as in chat requests.',
      request: z.enum(['auto', 'required']),
      resolved: z.enum(['auto', 'required']),
      default: 'auto',
      python: 'str',
      without_field: true,
    },
    policy_loss: {
      description:
        'For `reinforcement`: what is minimized. `dapo` (mean over all tokens, clipped further upwards than ' +
        'downwards), `grpo` (mean of the means of answers), `dr_grpo` (sums over a constant, scores not divided by ' +
        'their deviation), `gspo` (ratios of whole answers), `cispo` (clips weights, never gradients) or `rloo` ' +
        '(scores less the mean of the others, no clipping).',
      request: z.enum(policyLosses),
      resolved: z.enum(policyLosses),
      default: 'dapo' as PolicyLoss,
      python: 'str',
    },
    group_size: {
      description: 'For `reinforcement`: answers to each prompt in a step, which are compared with each other.',
      request: z.int().min(2).max(64),
      resolved: z.int(),
      default: 8,
      python: 'int',
    },
    max_tokens: {
      description: 'For `reinforcement`: most tokens of an answer. A longer one is cut and graded as it is.',
      request: z.int().min(1).max(4096),
      resolved: z.int(),
      default: 256,
      python: 'int',
    },
    clip_low: {
      description: 'For `reinforcement`: how far below 1 the ratio of probabilities may fall before it is clipped.',
      request: z.number().gt(0).max(1),
      resolved: z.number().nullable(),
      default: null,
      default_words: '0.2; 0.0003 for `gspo`; 1 (none) for `cispo`',
      python: 'float | None',
    },
    clip_high: {
      description: 'For `reinforcement`: how far above 1 the ratio of probabilities may rise before it is clipped.',
      request: z.number().gt(0).max(100),
      resolved: z.number().nullable(),
      default: null,
      default_words: '0.28 for `dapo`; 0.2 for `grpo` and `dr_grpo`; 0.0004 for `gspo`; 4 for `cispo`',
      python: 'float | None',
    },
    importance_cap: {
      description:
        'For `reinforcement`: the most that a token weighs to correct the difference between the probabilities of ' +
        'the engine, which samples, and those of the trainer.',
      request: z.number().min(1).max(100),
      resolved: z.number(),
      default: 2,
      python: 'float',
    },
    updates_per_step: {
      description: 'For `reinforcement`: into how many updates the answers of a step are divided.',
      request: z.int().min(1).max(16),
      resolved: z.int(),
      default: 1,
      python: 'int',
    },
    refill_rounds: {
      description:
        'For `reinforcement`: how often further prompts are taken in a step for those whose answers all have the ' +
        'same score, and so teach nothing.',
      request: z.int().min(0).max(10),
      resolved: z.int(),
      default: 2,
      python: 'int',
    },
    grading: {
      description:
        'For `reinforcement`: when grading ends, as of evaluations: `error_share_max`, `judge_tokens_max`, ' +
        '`judge_cost_max`. Answers that a grader fails to score are left out and counted.',
      request: GradingLimits.meta({ 'x-opaque': true }),
      resolved: z.object(GradingLimits.shape),
      default: gradingDefaults,
      default_words: '`error_share_max` 0.2, no budget',
      python: 'dict[str, Any] | None',
      python_default: null,
      without_field: true,
    },
    evaluation_samples: {
      description: 'For `reinforcement`: answers to each held-out prompt in an evaluation.',
      request: z.int().min(1).max(64),
      resolved: z.int(),
      default: 1,
      python: 'int',
    },
    response_format: {
      description: 'For `reinforcement`: the form that answers have to have, as in chat requests.',
      request: JsonObject.meta({ 'x-opaque': true }),
      resolved: JsonObject.nullable(),
      default: null,
      default_words: 'none',
      python: 'dict[str, Any] | None',
      without_field: true,
    },
    reasoning_effort: {
      description: 'For `reinforcement`: how much a model that thinks is asked to, as in chat requests.',
      request: z.enum(reasoningEfforts),
      resolved: z.enum(reasoningEfforts).nullable(),
      default: null,
      default_words: 'as the chat template has it',
      python: 'str | None',
      without_field: true,
    },
  },
  lora_config: {
    r: {
      description: 'Rank of the adapter: how much it can learn, and how large it is.',
      request: z.int().min(8).max(64),
      resolved: z.int(),
      default: 16,
      python: 'int',
    },
    alpha: {
      description: 'Scale of the adapter: what it adds is multiplied by alpha / r.',
      request: z.int().min(1).max(1024),
      resolved: z.int(),
      computed: 'twice `r`',
      python: 'float',
    },
    dropout: {
      description: 'Share of the adapter’s inputs that each training step drops.',
      request: z.number().min(0).max(0.5),
      resolved: z.number(),
      default: 0,
      python: 'float',
    },
    target_modules: {
      description:
        'Names of the linear layers that get an adapter, such as `q_proj`; `all-linear` for all. With `projector` ' +
        'the layers between the vision tower and the language model of a base that reads pictures are trained, too, ' +
        'with all their weights. Full training takes `["all-linear", "projector"]` for that, and no other of these ' +
        'settings.',
      request: z.array(z.string().min(1).max(100)).min(1).max(100),
      resolved: z.array(z.string()),
      resolved_description: 'In the language model. `all-linear` until the weights of the base have been downloaded.',
      computed: 'all linear layers',
      python: 'list[str] | str',
    },
    experts: {
      description:
        'Whether the experts of a mixture get adapters too, one for each: they learn more, and take the memory and ' +
        'the size of many adapters. The router that chooses among them stays as it is. Needs a `dropout` of 0.',
      request: z.boolean(),
      resolved: z.boolean(),
      default: false,
      default_words: 'where their adapters fit into a tenth of the memory for training',
      python: 'bool',
    },
  },
  training_config: {
    epochs: {
      description: 'Number of passes over the whole dataset.',
      request: z.int().min(1).max(50),
      resolved: z.int(),
      default: 2,
      python: 'int',
    },
    batch_size: {
      description: 'Examples per optimizer step; with `reinforcement` prompts.',
      request: z.int().min(1).max(256),
      resolved: z.int(),
      default: 4,
      python: 'int',
    },
    learning_rate: {
      description: 'Learning rate at its peak; it falls to 0 along a cosine.',
      request: z.number().gt(0).max(0.1),
      resolved: z.number(),
      computed:
        'by the size of the base: 0.001 to 0.0002; a tenth of it for `full`, and a tenth for `dpo`, `kto` and ' +
        '`reinforcement`',
      python: 'float',
    },
    warmup_ratio: {
      description: 'Share of the steps in which the learning rate rises to its peak.',
      request: z.number().min(0).max(0.5),
      resolved: z.number(),
      default: 0.05,
      python: 'float',
    },
    scheduler: {
      description: 'Shape of the learning rate after the warm-up: cosine, linear or constant.',
      resolved: z.enum(['cosine']),
      default: 'cosine',
      python: 'str',
    },
    seed: {
      description: 'Seed of the order of the rows, of the held-out rows and of new weights.',
      request: z.int().min(0).max(4_294_967_295),
      resolved: z.int(),
      default: 42,
      python: 'int',
    },
    max_length: {
      description: 'Tokens at which rows are cut; at most the context of the base.',
      request: z.int().min(8).max(10_000_000),
      resolved: z.int(),
      computed: '2,048, or the context where that is less',
      python: 'int',
    },
    weight_decay: { description: 'Weight decay of AdamW.', default: 0, python: 'float' },
    max_grad_norm: { description: 'Norm at which gradients are clipped.', default: 1, python: 'float' },
  },
  evaluation_config: {
    validation_split: {
      description: 'Share of the rows that is held out and evaluated during the training.',
      request: z.number().gt(0).max(0.5),
      resolved: z.number(),
      default: 0,
      default_words: 'none is held out',
      spec_name: 'split',
      python: 'float',
    },
    // spec.json has the path and hash of its file instead of its id.
    validation_dataset_id: {
      description: 'A dataset to evaluate instead of a share of the rows.',
      request: z.string().min(1).max(100),
      resolved: z.string().nullable(),
      default: null,
      default_words: 'none',
      spec_name: 'dataset',
      python: 'Dataset | None',
    },
    every_steps: {
      description: 'Optimizer steps from one evaluation to the next.',
      request: z.int().min(1).max(1_000_000),
      resolved: z.int().nullable(),
      resolved_description: 'Null: at the end of each epoch.',
      default: null,
      default_words: 'at the end of each epoch',
      python: 'int | None',
    },
    early_stopping_patience: {
      description: 'End after this many evaluations without a better loss, or reward; the best state is the result.',
      request: z.int().min(1).max(100),
      resolved: z.int().nullable(),
      default: null,
      default_words: 'train to the end',
      spec_name: 'patience',
      python: 'int | None',
    },
    sample_prompts: {
      description: 'Prompts answered at each evaluation, with the answer of the base: a text, or messages.',
      request: z.array(Prompt).max(8),
      resolved: z.array(z.array(z.object({ role: z.string(), content: z.string() }))),
      default: [],
      default_words: 'none',
      spec_name: 'prompts',
      python: 'list[list[dict[str, Any]]]',
    },
    answer_tokens: { description: 'Token limit of an answer to a sample prompt.', default: 64, python: 'int' },
    keep_checkpoints: {
      description: 'How many of the newest evaluated states become models.',
      request: z.int().min(0).max(10),
      resolved: z.int(),
      default: 0,
      spec_name: 'keep',
      python: 'int',
    },
  },
} satisfies Record<string, Record<string, Hyperparameter>>

type Table = typeof hyperparameters
export type GroupName = keyof Table
type Group = Record<string, Hyperparameter>

/** The entries of a group that have a default to compute. */
export type ComputedName<G extends GroupName> = {
  [K in keyof Table[G]]: Table[G][K] extends { computed: string } ? K : never
}[keyof Table[G]]

export const entriesOf = (group: GroupName): [string, Hyperparameter][] =>
  Object.entries<Hyperparameter>(hyperparameters[group])

/** The method options that an objective has: those whose description names it, or no objective ("For `dpo`: …"). */
export const optionsFor = (objective: Objective): string[] =>
  entriesOf('method_options').flatMap(([name, { description }]) => {
    const owners = /^For ([^:]+):/.exec(description)?.[1]
    return owners === undefined || owners.includes(`\`${objective}\``) ? [name] : []
  })

/** A field of a request. `default` and `x-default` (in words) appear in OpenAPI and the docs; they change no value. */
export function requestField<T extends z.ZodType>(entry: Hyperparameter & { request: T }): z.ZodOptional<T> {
  const words = entry.computed ?? entry.default_words
  const shown = words === undefined ? { default: entry.default } : { 'x-default': words }
  return entry.request.optional().meta({ description: entry.description, ...shown })
}

type RequestShape<G> = {
  [K in keyof G as G[K] extends { request: z.ZodType } ? K : never]: G[K] extends { request: infer T extends z.ZodType }
    ? z.ZodOptional<T>
    : never
}

/** The fields of a group in a request. */
export const requestShape = <G extends Group>(group: G) =>
  Object.fromEntries(
    Object.entries(group).flatMap(([name, entry]) => {
      const { request } = entry
      return request ? [[name, requestField({ ...entry, request })]] : []
    }),
  ) as RequestShape<G>

/**
 * Source of an effective value: the request, a default, a default that depends on the size of the base, or the model
 * that the job continues from.
 */
export const valueSources = ['request', 'default', 'base_size', 'model'] as const
export type ValueSource = (typeof valueSources)[number]

export const inForce = <T extends z.ZodType>(value: T) => z.object({ value, source: z.enum(valueSources) })

type ResolvedShape<G> = {
  [K in keyof G as G[K] extends { resolved: z.ZodType } ? K : never]: G[K] extends {
    resolved: infer T extends z.ZodType
  }
    ? ReturnType<typeof inForce<T>>
    : never
}

/** The fields of a group in `resolved_config`. */
export const resolvedShape = <G extends Group>(group: G) =>
  Object.fromEntries(
    Object.entries(group).flatMap(([name, { resolved, resolved_description }]) => {
      if (!resolved) return []
      const field = inForce(resolved)
      return [[name, resolved_description ? field.describe(resolved_description) : field]]
    }),
  ) as ResolvedShape<G>
