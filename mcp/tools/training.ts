// Jobs: estimate, start, watch, stop.
import { z } from 'zod'
import type { CreateJobInput, JobEstimate, JobEvent, Job as ServiceJob, Tunery } from '../../sdk/index.ts'
import { asking, type CostEstimate, confirmation } from '../confirm.ts'
import { listInput, nextAfter, pageEnd } from './datasets.ts'
import { changes, creates, defineTool, destroys, reads } from './tool.ts'

/** Events of one answer of watch_job, at most: the newest. */
const eventsMax = 25

/** An object that is handed on as it is. */
const Fields: z.ZodType<object> = z.looseObject({})

const Job = z.object({
  id: z.string(),
  name: z.string(),
  status: z.enum(['queued', 'running', 'paused', 'completed', 'failed', 'cancelled']),
  paused: z.boolean().describe('Whether it is paused until it is resumed.'),
  model_id: z.string().describe('What it trains from.'),
  dataset_id: z.string(),
  progress: z.number().describe('0 to 1'),
  current_epoch: z.number(),
  metrics: Fields.describe('The latest: loss, validation_loss, learning rate and others.'),
  queue_position: z.number().nullable().describe('Place of a queued job: 1 is the next to begin.'),
  waits_for: z.string().nullable().describe('What a queued job waits for besides its turn.'),
  estimated_completion: z.string().nullable(),
  created_at: z.string(),
  finished_at: z.string().nullable(),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  trained_tokens: z.number(),
  model: z.string().nullable().describe('The result, once completed: an id for evaluate_model, deploy_model and chat.'),
})

const Config = z
  .strictObject({
    method: z
      .enum(['lora', 'qlora', 'full'])
      .optional()
      .describe(
        'An adapter (lora, the default), an adapter on the base in 4 bits (qlora: less memory), or all weights (full).',
      ),
    method_options: z
      .looseObject({
        objective: z.enum(['sft', 'dpo', 'kto', 'reinforcement']).optional(),
        beta: z.number().optional(),
        graders: z
          .array(z.looseObject({ type: z.string(), name: z.string() }))
          .optional()
          .describe('For reinforcement: graders as of evaluations, whose mean score is the reward.'),
        group_size: z.int().optional().describe('For reinforcement: answers to each prompt in a step.'),
        max_tokens: z.int().optional().describe('For reinforcement: most tokens of an answer.'),
        watched_graders: z
          .array(z.looseObject({ type: z.string(), name: z.string() }))
          .optional()
          .describe('For reinforcement: graders that are reported beside the reward and not trained on.'),
        environments: z
          .array(z.looseObject({ url: z.string() }))
          .optional()
          .describe('For reinforcement: https endpoints that answer the model turn by turn and may reward it.'),
      })
      .optional()
      .describe(
        'What is learned: answers (sft, the default), preferences (dpo, kto; the rows must be of that kind), or what ' +
          'graders score highly (reinforcement; rows with prompts).',
      ),
    lora_config: z
      .looseObject({
        r: z.int().optional(),
        alpha: z.number().optional(),
        dropout: z.number().optional(),
        experts: z.boolean().optional().describe('Whether the experts of a mixture are trained too.'),
      })
      .optional()
      .describe('The adapter: rank, scale and what it changes.'),
    training_config: z
      .looseObject({
        epochs: z.number().optional().describe('Passes over the dataset.'),
        batch_size: z.int().optional(),
        learning_rate: z.number().optional(),
        max_length: z.int().optional().describe('Tokens at which rows are cut.'),
        seed: z.int().optional(),
      })
      .optional(),
    evaluation_config: z
      .looseObject({
        validation_split: z.number().optional().describe('Share of the rows that is held out.'),
        every_steps: z.int().optional(),
        early_stopping_patience: z.int().optional(),
      })
      .optional(),
  })
  .describe('All of it may be left out: the defaults are good. The answer of an estimate has the values that hold.')

const trainingInput = {
  model_id: z
    .string()
    .min(1)
    .max(200)
    .describe(
      'A base model of list_base_models whose weights are available, or a model of the account (mdl_…) to continue.',
    ),
  dataset_id: z.string().min(1).max(100).describe('A valid dataset, ds_…'),
  config: Config.optional(),
}
const job_id = z.string().min(1).max(100).describe('The id of a job, job_…')

const Estimate = z.object({
  fits: z.boolean().describe('Whether the memory that is free now is enough.'),
  peak_memory_mb: z.number(),
  available_memory_mb: z.number(),
  pauses_serving: z.boolean().describe('Whether it would put to sleep what is served on its device, for its memory.'),
  tokens: z.number().nullable(),
  steps: z.number().nullable(),
  rows: z.number().nullable(),
  cut_rows: z.number().nullable(),
  no_learned_rows: z.number().nullable(),
  seconds: z.number().nullable(),
  generated_tokens_max: z
    .number()
    .nullish()
    .describe('With reinforcement, where tokens and time are not known before: the most tokens of all answers.'),
  seconds_max: z.number().nullish().describe('The time for so many tokens, by an earlier job. Null: not known.'),
  price: z.object({ amount: z.number(), currency: z.string() }).nullable(),
  resolved_config: Fields.describe('Every setting, with the defaults.'),
})

/** The estimate of a training, or of the share of it that is still to do. */
function costOf(estimate: JobEstimate, share = 1): CostEstimate {
  const part = (value: number | null) => (value === null ? null : Math.ceil(value * share))
  const notes = ['The time is without waiting for other jobs.']
  const { generated_tokens_max, seconds_max } = estimate
  if (typeof generated_tokens_max === 'number') {
    const time = typeof seconds_max === 'number' ? `, in ${part(seconds_max)} s at most at an earlier job's rate` : ''
    notes.push(
      `It generates ${part(generated_tokens_max)} tokens at most${time}. How many it will be is not known before; ` +
        'judging models come on top.',
    )
  }
  if (estimate.devices > 1) notes.push(`It runs on ${estimate.devices} devices at once; the memory is that of each.`)
  if (estimate.pauses_serving)
    notes.push('Too little memory is free: what is served on its device sleeps until the training has ended.')
  else if (!estimate.fits)
    notes.push(
      `It does not fit: it needs ${estimate.peak_memory_mb} MB, and ${estimate.available_memory_mb} MB are free now. ` +
        'qlora, a smaller batch_size or a smaller base need less.',
    )
  if (estimate.cut_rows) notes.push(`${estimate.cut_rows} rows are longer than max_length and are cut.`)
  if (estimate.no_learned_rows)
    notes.push(`${estimate.no_learned_rows} rows are left out, as nothing of them is learned.`)
  return {
    seconds: part(estimate.seconds),
    tokens: part(estimate.tokens),
    price: estimate.price && { ...estimate.price, amount: estimate.price.amount * share },
    memory_mb: estimate.peak_memory_mb,
    notes,
  }
}

const estimateTraining = defineTool({
  name: 'estimate_training',
  title: 'Estimate a training',
  description:
    'Time, tokens, price and memory of a training, measured by trying a few of its steps on the machine of the ' +
    'service. Takes some seconds and costs nothing.',
  scopes: ['tuning:write'],
  input: z.strictObject(trainingInput),
  output: Estimate,
  annotations: { ...reads, idempotentHint: true },
  async run(body, { tunery, signal }) {
    const estimate = await tunery.jobs.estimate(body as CreateJobInput, { signal })
    return {
      summary: !estimate.fits
        ? `It does not fit: it needs ${estimate.peak_memory_mb} MB, ${estimate.available_memory_mb} MB are free.`
        : typeof estimate.generated_tokens_max === 'number'
          ? `It fits: at most ${estimate.generated_tokens_max} generated tokens, ${estimate.peak_memory_mb} MB.`
          : `It fits: ${estimate.seconds} s, ${estimate.tokens} tokens, ${estimate.peak_memory_mb} MB.`,
      data: estimate,
    }
  },
})

const Started = z.object({
  status: z.enum(['started', 'declined', 'needs_confirmation']),
  job: Job.optional(),
  ...asking,
})

const startTraining = defineTool({
  name: 'start_training',
  title: 'Start a training',
  description:
    'Starts a fine-tuning job. It costs: the user is asked first, with the estimate. Where the client cannot ask, ' +
    'the first call returns the estimate and a `confirmation` and starts nothing. Then watch_job.',
  scopes: ['tuning:write'],
  input: z.strictObject({
    ...trainingInput,
    name: z.string().min(1).max(200).optional().describe('Name of the job and its model.'),
    description: z.string().max(2000).optional(),
    confirmation,
  }),
  output: Started,
  annotations: creates,
  async run(args, { tunery, signal, confirm }) {
    const { name, description, confirmation: _, ...training } = args
    const confirmed = await confirm({
      tool: 'start_training',
      args,
      action: `train ${training.model_id} on the dataset ${training.dataset_id}`,
      estimate: async () => costOf(await tunery.jobs.estimate(training as CreateJobInput, { signal })),
    })
    if (confirmed.status !== 'agreed') return confirmed
    const job = await tunery.jobs.create({ ...(training as CreateJobInput), name, description }, { signal })
    return {
      summary: `Started ${job.id}; it is ${job.status}. Next: watch_job.`,
      data: { status: 'started' as const, job },
    }
  },
})

const getJob = defineTool({
  name: 'get_job',
  title: 'Get a job',
  description: 'The state of a job: status, progress, latest metrics, what it waits for, and its model once completed.',
  scopes: ['tuning:read'],
  input: z.strictObject({ job_id }),
  output: z.object({ job: Job }),
  annotations: { ...reads, idempotentHint: true },
  async run({ job_id }, { tunery, signal }) {
    const job = await tunery.jobs.get(job_id, { signal })
    return { summary: stateOf(job), data: { job } }
  },
})

const stateOf = (job: ServiceJob) =>
  `${job.id} is ${job.status}${job.status === 'running' ? `, ${Math.round(job.progress * 100)} % done` : ''}.` +
  (job.model ? ` Its model is ${job.model}.` : '')

const Event = z.object({
  seq: z.number(),
  type: z.string(),
  message: z.string(),
  created_at: z.string(),
  data: z.record(z.string(), z.unknown()).optional(),
})

const watchJob = defineTool({
  name: 'watch_job',
  title: 'Watch a job',
  description:
    'Follows a job, with progress notifications, until it has ended or `seconds` are over, and returns its state and ' +
    `the newest events (at most ${eventsMax}: losses, sample answers, warnings). If it has not ended, call again ` +
    'with `after` = next_after.',
  scopes: ['tuning:read'],
  input: z.strictObject({
    job_id,
    after: z.int().min(0).default(0).describe('`next_after` of the call before. Default: from the first event.'),
    seconds: z.int().min(1).max(300).default(45).describe('How long to wait. Many clients end calls after 60 s.'),
  }),
  output: z.object({ ended: z.boolean(), job: Job, events: z.array(Event), next_after: z.number() }),
  annotations: { ...reads, idempotentHint: true },
  async run({ job_id, after, seconds }, { tunery, signal, progress }) {
    const events: JobEvent[] = []
    let next_after = after
    const isOver = await followFor(tunery, { job_id, after, seconds, signal }, (event) => {
      next_after = event.seq
      progress(event.message, typeof event.data?.progress === 'number' ? event.data.progress : undefined)
      // Progress without figures says nothing that the job's state does not.
      if (event.type !== 'progress') events.push(event)
      if (events.length > eventsMax) events.shift()
    })
    const job = await tunery.jobs.get(job_id, { signal })
    const more = isOver ? '' : ` Not ended after ${seconds} s: call again with after ${next_after}.`
    return { summary: `${stateOf(job)}${more}`, data: { ended: isOver, job, events, next_after } }
  },
})

/** Follows a job's events for some seconds; whether the job has ended by then. */
async function followFor(
  tunery: Tunery,
  { job_id, after, seconds, signal }: { job_id: string; after: number; seconds: number; signal: AbortSignal },
  hear: (event: JobEvent) => void,
): Promise<boolean> {
  const over = AbortSignal.timeout(seconds * 1000)
  try {
    for await (const event of tunery.jobs.follow(job_id, { after, signal: AbortSignal.any([signal, over]) }))
      hear(event)
    return true
  } catch (error) {
    if (!over.aborted || signal.aborted) throw error
    return false
  }
}

const listJobs = defineTool({
  name: 'list_jobs',
  title: 'List jobs',
  description: 'The fine-tuning jobs of the account, newest first.',
  scopes: ['tuning:read'],
  input: z.strictObject({
    ...listInput,
    status: Job.shape.status.optional(),
    metadata: z.string().max(577).optional().describe('`key=value`: those with this pair of metadata.'),
  }),
  output: z.object({ jobs: z.array(Job), next_after: nextAfter }),
  annotations: { ...reads, idempotentHint: true },
  async run(query, { tunery, signal }) {
    const page = await tunery.jobs.list(query, { signal })
    return { summary: `${page.items.length} jobs.`, data: { jobs: page.items, ...pageEnd(page) } }
  },
})

const RolloutFigures = z.object({
  reward: z.number().nullable().describe('Mean score of all answers.'),
  prompts: z.number(),
  answers: z.number(),
  failures: z.number().describe('Answers without a score, because a grader failed.'),
})
const Rollouts = RolloutFigures.extend({ groups: z.array(Fields).describe('Prompts, with answers and scores.') })

const getRollouts = defineTool({
  name: 'get_rollouts',
  title: 'Read the answers of a step',
  description:
    'What a job with the objective reinforcement answered in a step, with the score that each grader gave, and the ' +
    'steps that can be read. Read some of the first, the middle and the last steps: a rising reward may be for what ' +
    'the grader should not reward.',
  scopes: ['tuning:read', 'datasets:read'],
  input: z.strictObject({
    job_id,
    step: z.int().min(0).optional().describe('One of the steps of the answer. Default: the latest.'),
    after: z.int().min(0).optional().describe('`next_after` of the call before: lists the steps below.'),
  }),
  output: z.object({
    steps: z.array(
      z.object({ step: z.number(), training: RolloutFigures.nullable(), validation: RolloutFigures.nullable() }),
    ),
    next_after: z.number().nullable().describe('Give it as `after` for earlier steps. Null: these are all.'),
    rollouts: z
      .object({
        step: z.number(),
        training: Rollouts.nullable().describe('The answers that were learned from.'),
        validation: Rollouts.nullable().describe('Answers to held-out prompts after the step.'),
      })
      .nullable(),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run({ job_id, step, after }, { tunery, signal }) {
    const page = await tunery.jobs.rollouts.list(
      job_id,
      { limit: 50, ...(after !== undefined && { after }) },
      { signal },
    )
    const shown = step ?? page.items[0]?.step
    const rollouts = shown === undefined ? null : await tunery.jobs.rollouts.get(job_id, String(shown), { signal })
    return {
      summary: rollouts ? `Answers of step ${rollouts.step}.` : 'No answers are kept.',
      data: { steps: page.items, next_after: page.has_more ? (page.items.at(-1)?.step ?? null) : null, rollouts },
    }
  },
})

const cancelJob = defineTool({
  name: 'cancel_job',
  title: 'Cancel a job',
  description:
    'Ends a queued, running or paused job for good, without a model. Ask the user before; pause_job can be undone.',
  scopes: ['tuning:write'],
  input: z.strictObject({ job_id }),
  output: z.object({ job: Job }),
  annotations: destroys,
  async run({ job_id }, { tunery, signal }) {
    const job = await tunery.jobs.cancel(job_id, { signal })
    return { summary: stateOf(job), data: { job } }
  },
})

const deleteJob = defineTool({
  name: 'delete_job',
  title: 'Delete a job',
  description:
    'Deletes a job that has ended, with its log and curves. Its models stay and still tell what they came from. Ask ' +
    'the user before.',
  scopes: ['tuning:write'],
  input: z.strictObject({ job_id }),
  output: z.object({ id: z.string(), deleted: z.boolean() }),
  annotations: destroys,
  async run({ job_id }, { tunery, signal }) {
    const data = await tunery.jobs.delete(job_id, { signal })
    return { summary: `Deleted ${job_id}.`, data }
  },
})

const pauseJob = defineTool({
  name: 'pause_job',
  title: 'Pause a job',
  description: 'Saves the progress of a job and frees the machine. resume_job continues exactly there.',
  scopes: ['tuning:write'],
  input: z.strictObject({ job_id }),
  output: z.object({ job: Job }),
  annotations: changes,
  async run({ job_id }, { tunery, signal }) {
    const job = await tunery.jobs.pause(job_id, { signal })
    return { summary: stateOf(job), data: { job } }
  },
})

const resumeJob = defineTool({
  name: 'resume_job',
  title: 'Resume a job',
  description:
    'Resumes a paused job exactly where it stopped. It costs what is still to do: the user is asked first, with the ' +
    'estimate, as by start_training.',
  scopes: ['tuning:write'],
  input: z.strictObject({ job_id, confirmation }),
  output: Started,
  annotations: changes,
  async run(args, { tunery, signal, confirm }) {
    const { job_id } = args
    const confirmed = await confirm({
      tool: 'resume_job',
      args,
      action: `resume the training ${job_id}`,
      estimate: async () => {
        const { model_id, dataset_id, config, progress } = await tunery.jobs.get(job_id, { signal })
        return costOf(await tunery.jobs.estimate({ model_id, dataset_id, config }, { signal }), 1 - progress)
      },
    })
    if (confirmed.status !== 'agreed') return confirmed
    const job = await tunery.jobs.resume(job_id, { signal })
    return { summary: stateOf(job), data: { status: 'started' as const, job } }
  },
})

export const trainingTools = [
  estimateTraining,
  startTraining,
  getJob,
  watchJob,
  listJobs,
  getRollouts,
  cancelJob,
  deleteJob,
  pauseJob,
  resumeJob,
]
