// The operator's view of the machine, and of what accounts use.
import { z } from 'zod'
import { Time } from './common.ts'
import { TrainingSetup } from './hub.ts'
import { routesOf } from './route.ts'

const Bytes = z.int().describe('Bytes.')

export const Machine = z.object({
  version: z.string().describe('Version of this service.'),
  node: z.string(),
  started_at: Time,
  uptime_seconds: z.int(),
  cores: z.int().describe('That this service may use.'),
  load: z.array(z.number()).describe('Average load of the last 1, 5 and 15 minutes.'),
  memory: z.object({
    total_bytes: Bytes.describe('Memory of the machine, or of the container if that has less.'),
    available_bytes: Bytes,
    service_bytes: Bytes.describe('Resident memory of the server alone, without engine and trainers.'),
  }),
  disk: z.object({
    total_bytes: Bytes.describe('Size of the file system with the data folder.'),
    free_bytes: Bytes.describe('That this service can still write.'),
    kept_free_bytes: Bytes.describe('TUNERY_MIN_FREE_DISK_MB: uploads, jobs and exports wait or are refused below it.'),
    kinds: z
      .array(z.object({ kind: z.string(), bytes: Bytes }))
      .nullable()
      .describe('What takes space, most first. Counted in the background, at most once a minute. Null: not yet.'),
    counted_at: Time.nullable(),
  }),
  gpus: z.array(
    z.object({
      name: z.string(),
      memory_bytes: Bytes.nullable(),
      used_bytes: Bytes.nullable(),
      busy_percent: z.number().nullable().describe('Null, as each figure, where the driver does not know it.'),
    }),
  ),
  engine: z.object({
    status: z.enum(['running', 'stopped', 'failing']).describe('`stopped`: the next request starts it.'),
    problem: z.string().nullable(),
    pid: z.int().nullable(),
    memory_bytes: Bytes.nullable().describe('Resident memory, with the weights that it has read.'),
    context_bytes: Bytes.nullable().describe('The part of it for the contexts of running and cached conversations.'),
    models: z.array(
      z.object({
        id: z.string(),
        name: z.string().nullable().describe('That its account gave a tuned model.'),
        base: z.string().nullable().describe('The base of an adapter; null for a base.'),
        bytes: Bytes.nullable().describe('Size of its weights, in the form that answers.'),
        server: z
          .enum(['engine', 'vllm'])
          .describe('What computes its answers: the engine itself, or a vLLM behind it.'),
        server_problem: z.string().nullable().describe('Why vLLM does not, where it was to.'),
        asleep_for: z
          .string()
          .nullable()
          .describe('The job whose training has its memory, so that it sleeps. Null: it answers.'),
      }),
    ),
    chosen: z.enum(['engine', 'vllm']).describe('What computes the answers of text models, by TUNERY_ENGINE.'),
    chosen_why: z.string(),
    running: z.int().describe('Answers being computed.'),
    waiting: z.int().describe('Requests that wait for a slot.'),
    tokens_per_second: z
      .number()
      .nullable()
      .describe('Generated tokens since the last look. Null at the first look, or if that was more than a minute ago.'),
  }),
  trainings: z.int().describe('Running trainers.'),
  training_devices: z
    .array(
      z.object({
        name: z.string().describe('`GPU 0`, or `cpu` and `cpu0` for places on the cores.'),
        memory_bytes: Bytes.nullable().describe('That a training may take. Null, as below, where it is not known.'),
        free_bytes: Bytes.nullable(),
        job_id: z.string().nullable().describe('The job that has it. Null: none.'),
      }),
    )
    .describe('What jobs train on: TUNERY_TRAINING_DEVICES. None where they train in a Ray cluster.'),
  queues: z.array(
    z.object({
      kind: z.string(),
      waiting: z.int(),
      running: z.int(),
      oldest_at: Time.nullable().describe('Since when the oldest waiting entry waits.'),
    }),
  ),
  replicas: z
    .array(
      z.object({
        name: z.string(),
        model: z.string().nullable().describe('The base that it serves. Null: this machine’s engine, for all others.'),
        up: z.boolean(),
        in_flight: z.int(),
        max_concurrent: z.int(),
      }),
    )
    .describe('Servers of models: this machine’s engine, and the upstreams.'),
  waiting: z
    .array(z.object({ model: z.string(), requests: z.int() }))
    .describe('Requests that wait for a replica with free capacity, by base.'),
  setup: TrainingSetup,
})
export type Machine = z.infer<typeof Machine>

export const AccountUsage = z.object({
  account_id: z.string(),
  name: z.string(),
  requests: z.int().describe('Requests of inference and ended jobs.'),
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  trained_tokens: z.int(),
  cost: z.number(),
})

const route = routesOf({ tag: 'Operator', scope: 'operator' })
export const getMachine = route('GET', '/operator/machine', {
  summary: 'The machine: memory, disk, GPUs, engine, queues, replicas and set-up',
  responses: { 200: Machine },
})
export const getOperatorUsage = route('GET', '/operator/usage', {
  summary: 'What each account used on a day, most requests first',
  query: z.strictObject({ day: z.iso.date().optional().describe('A UTC day, `YYYY-MM-DD`; by default today.') }),
  responses: {
    200: z.object({
      day: z.iso.date(),
      currency: z.string(),
      items: z.array(AccountUsage).describe('At most 1,000, without accounts that used nothing.'),
    }),
  },
})
