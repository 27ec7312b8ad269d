import { z } from 'zod'
import { Deleted, ListQuery, page, SortedQuery, Time } from './common.ts'
import { routesOf } from './route.ts'
import { PeriodQuery, Timeline } from './timeline.ts'

export const DeploymentName = z
  .string()
  .regex(
    /^(?!\.+$)[a-z0-9._-]{1,64}$/,
    'must be 1 to 64 characters of a-z, 0-9, dot, underscore and hyphen, not dots alone',
  )

export const Gate = z.strictObject({
  evaluation: z
    .string()
    .min(1)
    .max(100)
    .describe('An evaluation of the account: the new model answers its rows, and its graders score the answers.'),
  min_score: z.number().optional().describe('The score that the new model must reach.'),
  not_worse_than_current: z
    .boolean()
    .default(true)
    .describe('Whether to refuse a model that is worse than the current one by more than chance.'),
})
export type Gate = z.infer<typeof Gate>

export const deploymentStatuses = ['starting', 'ready', 'failed', 'stopped'] as const

export const Deployment = z.object({
  id: z.string(),
  name: z.string(),
  model: z.string(),
  base_model_id: z.string(),
  status: z.enum(deploymentStatuses),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  former_model: z.string().nullable().describe('What it served before; a roll-back returns to it.'),
  pending: z
    .object({ model: z.string(), evaluation: z.string(), gate: Gate })
    .nullable()
    .describe('The model that serves next if the evaluation passes the gate.'),
  replicas: z.int(),
  created_at: Time,
  updated_at: Time,
})
export type Deployment = z.infer<typeof Deployment>

export const DeploymentQuery = SortedQuery.extend({
  status: z.enum(deploymentStatuses).optional().describe('Those with this status.'),
})
export type DeploymentQuery = z.infer<typeof DeploymentQuery>

const route = routesOf({ tag: 'Deployments' })
const NameParams = z.object({ name: z.string() })

export const createDeployment = route('POST', '/deployments', {
  scope: 'deployments:write',
  summary: 'Serve a model by name',
  body: z.strictObject({ model: z.string().min(1).max(256), name: DeploymentName }),
  responses: { 201: Deployment },
})
export const switchDeployment = route('PUT', '/deployments/{name}', {
  scope: 'deployments:write',
  also_with: { gate: ['datasets:read', 'inference'] },
  summary: 'Let the name serve another model, at once or once a gate passes; running requests finish on the old one',
  params: NameParams,
  body: z.strictObject({
    model: z.string().min(1).max(256),
    gate: Gate.optional().describe('Switch only if an evaluation of the new model, beside the current one, allows it.'),
  }),
  responses: { 200: Deployment },
})
export const listDeployments = route('GET', '/deployments', {
  scope: 'deployments:read',
  summary: 'The deployments of the account, newest first or as sorted',
  query: DeploymentQuery,
  responses: { 200: page(Deployment) },
})
export const getDeployment = route('GET', '/deployments/{name}', {
  scope: 'deployments:read',
  summary: 'One deployment',
  params: NameParams,
  responses: { 200: Deployment },
})
export const rollbackDeployment = route('POST', '/deployments/{name}/rollback', {
  scope: 'deployments:write',
  creates: true,
  frees: true,
  summary: 'Return to the model that the name served before',
  params: NameParams,
  body: z.strictObject({}).nullish(),
  responses: { 200: Deployment },
})

export const DeploymentChange = z.object({
  id: z.string(),
  action: z
    .enum(['created', 'switched', 'gate_passed', 'gate_refused', 'rolled_back'])
    .describe('`gate_refused`: the model did not serve.'),
  model: z.string(),
  former_model: z.string().nullable(),
  evaluation: z.string().nullable().describe('The evaluation that decided.'),
  reason: z.string().nullable(),
  created_at: Time,
})
export type DeploymentChange = z.infer<typeof DeploymentChange>

export const listDeploymentChanges = route('GET', '/deployments/{name}/history', {
  scope: 'deployments:read',
  summary: 'What the name served when, and why, newest first',
  params: NameParams,
  query: ListQuery,
  responses: { 200: page(DeploymentChange) },
})
export const getDeploymentMetrics = route('GET', '/deployments/{name}/metrics', {
  scope: 'deployments:read',
  summary: 'Requests, errors, tokens and latency of a deployment over time',
  params: NameParams,
  query: PeriodQuery,
  responses: { 200: Timeline },
})
export const deleteDeployment = route('DELETE', '/deployments/{name}', {
  scope: 'deployments:write',
  summary: 'Stop serving a name',
  params: NameParams,
  responses: { 200: Deleted },
})
