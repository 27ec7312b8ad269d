import { z } from 'zod'
import { Deleted, Time } from './common.ts'
import { routesOf } from './route.ts'

const units = { s: 1000, m: 60_000, h: 3_600_000 } as const
const duration_ms = { max: 24 * units.h }

/** A duration such as `30s`, `5m` or `1h`. */
export const Duration = z
  .string()
  .regex(/^\d{1,5}[smh]$/, 'must be a whole number and a unit, such as 30s, 5m or 1h')
  .refine((text) => parseDuration(text) <= duration_ms.max, 'must be at most 24h')

/** Milliseconds of a valid duration. */
export const parseDuration = (text: string): number =>
  Number(text.slice(0, -1)) * units[text.at(-1) as keyof typeof units]

export const replicasMax = 64

export const ScalingPolicy = z
  .strictObject({
    min_replicas: z
      .int()
      .min(0)
      .max(replicasMax)
      .default(1)
      .describe('0: none while nobody asks. The first request then waits for a start.'),
    max_replicas: z.int().min(1).max(replicasMax).describe('More than this machine has room for are not placed.'),
    target_requests_per_replica: z
      .int()
      .min(1)
      .max(256)
      .default(8)
      .describe('Requests in progress or waiting that a replica should have.'),
    target_gpu_utilization: z
      .int()
      .min(1)
      .max(100)
      .nullish()
      .describe(
        'Percent of the time that a GPU, or the cores of a replica, should compute. The larger demand wins. Null: ' +
          'only requests count.',
      ),
    scale_up_cooldown: Duration.default('30s').describe('Least time from one scale-up to the next.'),
    scale_down_cooldown: Duration.default('5m').describe('Least time from any change to a scale-down.'),
  })
  .refine(({ min_replicas, max_replicas }) => min_replicas <= max_replicas, {
    path: ['min_replicas'],
    message: 'must not be more than max_replicas',
  })
export type ScalingPolicy = z.infer<typeof ScalingPolicy>

export const ScalingRequest = z.strictObject({
  model: z.string().min(1).max(256).optional().describe('The name of the deployment, or the model that it serves.'),
  scaling: ScalingPolicy,
  instance_type: z
    .string()
    .min(1)
    .max(100)
    .optional()
    .describe(
      'What a replica runs on: `cpu`, the class of a GPU of this machine, `ray`, cores of the Ray cluster, or ' +
        '`ray:KIND`, vLLM on a GPU of that cluster, such as `ray:H100`. Default: a GPU of this machine if there is ' +
        'one.',
    ),
})
export type ScalingRequest = z.infer<typeof ScalingRequest>

export const Replica = z.object({
  id: z.string(),
  state: z
    .enum(['starting', 'ready', 'draining'])
    .describe('`starting`: it loads and is verified. `draining`: it ends its requests and takes no more.'),
  place: z.string().describe('Such as `cores 0-3`, `GPU 0`, or the address of a machine of the Ray cluster.'),
  started_at: Time,
  ready_at: Time.nullable(),
  in_flight: z.int(),
})

export const ScalingDecision = z.object({
  at: Time,
  from: z.int(),
  to: z.int(),
  reason: z.string(),
  in_flight: z.int(),
  waiting: z.int(),
  server: z.string().describe('The server process that decided, for its own replicas.'),
})

export const Scaling = z.object({
  model: z.string().describe('The name of the deployment.'),
  scaling: z
    .object({
      min_replicas: z.int(),
      max_replicas: z.int(),
      target_requests_per_replica: z.int(),
      target_gpu_utilization: z.int().nullable(),
      scale_up_cooldown: z.string(),
      scale_down_cooldown: z.string(),
    })
    .nullable()
    .describe('Null: it does not scale; the engine of the machine serves it with everything else.'),
  instance_type: z.string().nullable(),
  replicas: z.object({
    desired: z.int(),
    ready: z.int(),
    starting: z.int(),
    draining: z.int(),
    items: z.array(Replica),
  }),
  in_flight: z.int(),
  waiting: z.int().describe('Requests that wait for a replica.'),
  utilization: z.number().nullable().describe('Share of the time that the ready replicas compute, 0 to 1.'),
  reason: z.string().nullable().describe('Why there are as many as desired, now.'),
  limit: z.string().nullable().describe('Why there are fewer than desired, or can be no more.'),
  error: z.string().nullable().describe('Why the last replica did not start.'),
  decisions: z.array(ScalingDecision).describe('The last 100 changes, newest first.'),
  instance_types: z
    .array(z.object({ name: z.string(), places: z.int(), free: z.int() }))
    .describe(
      'The classes of this machine, and how many replicas each has room for. Of `ray` and `ray:KIND`: how many a ' +
        'deployment may have.',
    ),
})
export type Scaling = z.infer<typeof Scaling>

const route = routesOf({ tag: 'Deployments' })
const params = z.object({ name: z.string() })

export const putScaling = route('PUT', '/deployments/{name}/scaling', {
  scope: 'deployments:write',
  summary: 'Give a deployment dedicated replicas, as many as its load takes',
  params,
  body: ScalingRequest,
  responses: { 200: Scaling },
})
export const getScaling = route('GET', '/deployments/{name}/scaling', {
  scope: 'deployments:read',
  summary: 'How a deployment scales: its replicas, and each decision and why',
  params,
  responses: { 200: Scaling },
})
export const deleteScaling = route('DELETE', '/deployments/{name}/scaling', {
  scope: 'deployments:write',
  summary: 'Let the engine of the machine serve a deployment again; its replicas end their requests',
  params,
  responses: { 200: Deleted },
})
