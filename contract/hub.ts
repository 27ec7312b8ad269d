import { z } from 'zod'
import { Method, ModelCategory } from './common.ts'
import { ErrorText } from './errors.ts'
import { routesOf } from './route.ts'

export const Pricing = z.object({
  currency: z.string(),
  training_per_million_tokens: z.number(),
  input_per_million_tokens: z.number(),
  output_per_million_tokens: z.number(),
})

export const downloadStatuses = ['queued', 'downloading', 'converting', 'completed', 'failed', 'cancelled'] as const

export const Download = z.object({
  status: z
    .enum(downloadStatuses)
    .describe('`queued`: it waits for its turn, or for a retry after a temporary failure.'),
  progress: z.number().describe('Share of the bytes that are here, 0 to 1.'),
  bytes: z.int(),
  total_bytes: z.int().nullable().describe('Null until the hub has reported it.'),
  error: ErrorText.nullable().describe('Why it failed; if queued again, why the last try failed.'),
})
export type Download = z.infer<typeof Download>

export const EightBits = z
  .object({
    size_mb: z.number().describe('Size of the file, on disk beside the original. It takes about as much memory.'),
    original_type: z.string().describe('The quantization of the original, such as BF16.'),
    distance: z
      .object({
        tokens: z.int().describe('Tokens of fixed texts that both forms have read.'),
        divergence: z
          .number()
          .describe('Mean Kullback-Leibler divergence of the probabilities of the next token, in nats.'),
        logprob_difference: z
          .number()
          .describe('Mean absolute difference of the log-probability of the text’s next token, in nats.'),
        same_top: z.number().describe('Share of the tokens after which both find the same token likeliest, 0 to 1.'),
      })
      .describe('How far its answers are from the original’s, as measured when it was made.'),
  })
  .describe('A form of the weights that is faster on this machine.')

/** What a base is asked for. */
export const modelTasks = ['chat', 'code', 'pictures', 'thoughts', 'embeddings'] as const
export const modelSizes = ['1b', '4b', '9b', '30b', 'larger'] as const
/** What a base may fit this machine for. */
export const modelUses = ['lora', 'qlora', 'full', 'serve'] as const

export const Need = z.object({ mb: z.int(), fits: z.boolean().describe('Whether this machine has as much.') })
export type Need = z.infer<typeof Need>

const needOf = (text: string) => Need.nullable().describe(text)

export const Needs = z
  .object({
    lora: needOf('Memory of a training by lora.'),
    qlora: needOf('Memory of a training by qlora.'),
    full: needOf('Memory of a training of all weights.'),
    serve: needOf('Memory to answer: its weights as they are, and four conversations of 2,048 tokens.'),
    disk: needOf('Disk of its download and conversion. Null where the weights are here.'),
  })
  .describe(
    'What it needs here, computed from its sizes; null where they are not known, or the use is not possible. ' +
      'Trainings are of rank 16, in batches of 4 rows of 512 tokens, of which a quarter are learned. Memory is that ' +
      'of the smallest GPU, or of the machine. `POST /v1/fine-tuning/jobs/estimate` measures a job of your own.',
  )

export const Model = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  category: ModelCategory,
  family: z.string().nullable().describe("Its architecture, by transformers' name. Null where it is not known."),
  tasks: z.array(z.enum(modelTasks)).describe('`thoughts`: it can think before it answers.'),
  pictures: z
    .object({
      served: z.boolean().describe('Whether the engine of this installation can show pictures to it.'),
      trained: z.boolean().describe('Whether it can be trained on rows with pictures; if not, on rows of text alone.'),
      notes: z.array(z.string()).describe('What does not work here, or is not tested.'),
    })
    .nullable()
    .describe('For models that read pictures; null for all others.'),
  params_billions: z.number(),
  active_params_billions: z
    .number()
    .describe('Weights that compute a token. Fewer than `params_billions` where a token takes some of many experts.'),
  size: z
    .enum(modelSizes)
    .describe('Its class by all weights: up to 1, 5, 10 and 40 billion, or larger. A mixture 30B-A3B is a `30b`.'),
  context_length: z.int(),
  license: z.string().describe("Hugging Face's name of it: for most, the SPDX identifier in lower case."),
  license_url: z.string().nullable().describe('Its text, where it is not a standard license.'),
  gated: z
    .boolean()
    .describe(
      'Whether its owner gives it only to those who accepted its license at Hugging Face: the service needs their ' +
        'token to download it.',
    ),
  huggingface_id: z.string().nullable(),
  methods: z
    .array(Method)
    .describe(
      'The fine-tuning methods that this machine has the memory for and that worked with its family, once the ' +
        'weights are here: see `weights.available`. Empty: it cannot be trained.',
    ),
  merges_adapters: z
    .boolean()
    .describe(
      'Whether what `lora` and `qlora` train becomes a whole model instead of an adapter, found when the base was ' +
        'added: the engine cannot serve adapters of it. Such a model takes the disk and memory of the base.',
    ),
  needs: Needs,
  tested: z
    .record(z.string(), z.string())
    .nullable()
    .describe(
      'What was tried of a small model of its family, and what came of it: `yes`, `in part` where some models of it ' +
        'failed, `none` for what it does not have, or the sentence that a user gets. Null: not tried yet.',
    ),
  recommended: z
    .boolean()
    .describe('The base to begin with: the one that comes with the service or, where that is not here, the smallest.'),
  pricing: Pricing,
  weights: z.object({
    available: z
      .boolean()
      .describe('Whether the weights are on this machine, so that the model can be called and trained.'),
    size_mb: z.number().nullable(),
    how_to_get: z.string().nullable().describe('How to get them, if they are not here.'),
    keep_original: z
      .boolean()
      .describe(
        'Whether answers come from the original alone: TUNERY_KEEP_ORIGINAL_WEIGHTS, or as the base was added.',
      ),
    eight_bits: EightBits.nullable().describe(
      'The form that answers instead of the original. Null: the original does, or it is not made or measured yet.',
    ),
    eight_bits_problem: z
      .string()
      .nullable()
      .describe(
        'Why the original answers though an eight-bit form would be faster here, and what to do. Null where nothing ' +
          'hinders that form.',
      ),
  }),
  download: Download.nullable().describe(
    'The last download of the weights by this service; null where there was none.',
  ),
})
export type Model = z.infer<typeof Model>

const Models = z.object({ models: z.array(Model) })

export const Tier = z.object({
  id: z.string(),
  name: z.string(),
  requests_per_minute: z.int().nullable().describe('Null is unlimited.'),
  requests_per_day: z.int().nullable(),
  max_concurrent: z.int().nullable(),
  max_replicas: z
    .int()
    .nullable()
    .describe('Sum of `max_replicas` over the deployments of an account that scale. Null is unlimited.'),
  max_storage_mb: z
    .int()
    .nullable()
    .describe('Most MB that an account may store: datasets, files, uploads, models and exports. Null is unlimited.'),
  max_event_streams: z
    .int()
    .nullable()
    .describe(
      'Streams of events of jobs and exports that an account may have open at once at a server. Null: a quarter of ' +
        'the connections of that server.',
    ),
})
export type Tier = z.infer<typeof Tier>

/** Default tiers, if the operator sets none. */
export const tiers: Tier[] = [
  {
    id: 'free',
    name: 'Free',
    requests_per_minute: 60,
    requests_per_day: 1000,
    max_concurrent: 2,
    max_replicas: 2,
    max_event_streams: 20,
    max_storage_mb: 10_000,
  },
  {
    id: 'pro',
    name: 'Pro',
    requests_per_minute: 1000,
    requests_per_day: 50_000,
    max_concurrent: 10,
    max_replicas: 8,
    max_event_streams: 200,
    max_storage_mb: 100_000,
  },
  {
    id: 'enterprise',
    name: 'Enterprise',
    requests_per_minute: 10_000,
    requests_per_day: null,
    max_concurrent: 100,
    max_replicas: null,
    max_event_streams: null,
    max_storage_mb: null,
  },
]

export const SetupStep = z.object({
  name: z.string(),
  title: z.string(),
  status: z.enum(['waiting', 'running', 'done', 'failed']),
  seconds: z.number().nullable().describe('How long it has run; null if it has not begun.'),
  message: z
    .string()
    .nullable()
    .describe(
      'The last line of its output, or why it failed and what to do. Keys with the scope operator also see the ' +
        'output of a failed command.',
    ),
})
export type SetupStep = z.infer<typeof SetupStep>

export const TrainingSetup = z.object({
  ready: z
    .boolean()
    .describe('Whether all that training needs is installed. Until then jobs and exports wait, and chat works.'),
  steps: z.array(SetupStep).describe('In their order. Empty if everything was there when the service started.'),
})
export type TrainingSetup = z.infer<typeof TrainingSetup>

const route = routesOf({ tag: 'Hub', scope: 'hub:read' })

export const ModelsQuery = z.strictObject({
  q: z.string().max(200).optional().describe('A part of the id, name, description or family.'),
  task: z.enum(modelTasks).optional(),
  size: z.enum(modelSizes).optional(),
  fits: z.enum(modelUses).optional().describe('Only bases that this machine has the memory for.'),
  sort: z
    .enum(['name', 'size', 'context', 'memory'])
    .optional()
    .describe('`memory`: of a training by lora, least first. Default: the order of the catalogue.'),
})
export type ModelsQuery = z.infer<typeof ModelsQuery>

export const Recommendation = z
  .object({
    model_id: z.string(),
    memory_mb: z.int().describe('Of a training by lora.'),
    seconds: z
      .number()
      .nullable()
      .describe('Of 1,000 examples of 300 tokens, computed from measured rates. Null: none is measured there.'),
    why: z.string().describe('The figures that chose it, in a sentence.'),
  })
  .describe('The largest base for chat that trains by lora in that memory, and within an hour where the time is known.')
export type Recommendation = z.infer<typeof Recommendation>

const machineSizes = {
  device: z.enum(['cpu', 'gpu']).describe('What trains.'),
  cores: z.int(),
  memory_mb: z.int().describe('For a training: of the smallest GPU, or of the machine.'),
}
export const HubMachine = z.object({
  ...machineSizes,
  free_disk_mb: z.int(),
  recommended: Recommendation.nullable().describe('For this machine. Null: no base of the catalogue fits.'),
  classes: z.array(z.object({ name: z.string(), ...machineSizes, recommended: Recommendation.nullable() })),
})
export type HubMachine = z.infer<typeof HubMachine>

export const listModels = route('GET', '/hub/', {
  summary: 'The base models, searched, filtered and sorted',
  query: ModelsQuery,
  responses: { 200: Models },
})
export const getHubMachine = route('GET', '/hub/machine', {
  summary: 'What this machine has for base models, and the base recommended for it and for classes of machines',
  responses: { 200: HubMachine },
})
export const getModel = route('GET', '/hub/models/{model_id*}', {
  summary: 'One base model; its id may be written with plain or encoded slashes',
  params: z.object({ model_id: z.string() }),
  responses: { 200: Model },
})
export const listTiers = route('GET', '/hub/tiers', {
  summary: 'The tiers and their limits',
  responses: { 200: z.object({ tiers: z.array(Tier) }) },
})
export const listFeatured = route('GET', '/hub/featured', {
  summary: 'Base models to begin with',
  responses: { 200: Models },
})

export const getSetup = route('GET', '/hub/setup', {
  // An operator's key has no other scope.
  or_scope: 'operator',
  summary: 'How far the set-up of the training environment is, which continues behind the first start',
  responses: { 200: TrainingSetup },
})
export const retrySetup = route('POST', '/hub/setup/retry', {
  scope: 'operator',
  summary: 'Start the set-up of the training environment again after it has failed',
  body: z.strictObject({}).nullish(),
  responses: { 200: TrainingSetup },
})

// Ids contain slashes, so the id is the rest of the path up to the last segment. A caller that may start a job may
// start the download it needs, within TUNERY_MODEL_DOWNLOADS; an operator's key may too, although it has no other
// scope.
const download = { scope: 'tuning:write', or_scope: 'operator', params: z.object({ model_id: z.string() }) } as const

export const startDownload = route('POST', '/hub/models/{model_id*}/download', {
  ...download,
  summary: 'Download the weights of a base model to this machine; one that is here or in progress is left as it is',
  body: z.strictObject({}).nullish(),
  responses: { 202: Model },
})
export const cancelDownload = route('DELETE', '/hub/models/{model_id*}/download', {
  ...download,
  summary: 'Cancel a download and remove what it has brought',
  responses: { 200: Model },
})
