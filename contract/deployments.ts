import { z } from 'zod'
import { Deleted, page, SortedQuery, Time } from './common.ts'
import { route } from './route.ts'

export const DeploymentName = z
  .string()
  .regex(
    /^(?!\.+$)[a-z0-9._-]{1,64}$/,
    'must be 1 to 64 characters of a-z, 0-9, dot, underscore and hyphen, not dots alone',
  )

export const deploymentStatuses = ['starting', 'ready', 'failed', 'stopped'] as const

export const Deployment = z.object({
  id: z.string(),
  name: z.string(),
  model: z.string(),
  base_model_id: z.string(),
  status: z.enum(deploymentStatuses),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  replicas: z.int(),
  created_at: Time,
  updated_at: Time,
})
export type Deployment = z.infer<typeof Deployment>

export const DeploymentQuery = SortedQuery.extend({
  status: z.enum(deploymentStatuses).optional().describe('Those with this status.'),
})
export type DeploymentQuery = z.infer<typeof DeploymentQuery>

const tag = 'Deployments'
const NameParams = z.object({ name: z.string() })

export const createDeployment = route({
  method: 'POST',
  path: '/deployments',
  scope: 'deployments:write',
  tag,
  summary: 'Serve a model by name',
  body: z.strictObject({ model: z.string().min(1).max(256), name: DeploymentName }),
  responses: { 201: Deployment },
})
export const switchDeployment = route({
  method: 'PUT',
  path: '/deployments/{name}',
  scope: 'deployments:write',
  tag,
  summary: 'Let the name serve another model; requests under way finish on the old one',
  params: NameParams,
  body: z.strictObject({ model: z.string().min(1).max(256) }),
  responses: { 200: Deployment },
})
export const listDeployments = route({
  method: 'GET',
  path: '/deployments',
  scope: 'deployments:read',
  tag,
  summary: 'The deployments of the account, newest first or as sorted',
  query: DeploymentQuery,
  responses: { 200: page(Deployment) },
})
export const getDeployment = route({
  method: 'GET',
  path: '/deployments/{name}',
  scope: 'deployments:read',
  tag,
  summary: 'One deployment',
  params: NameParams,
  responses: { 200: Deployment },
})
export const deleteDeployment = route({
  method: 'DELETE',
  path: '/deployments/{name}',
  scope: 'deployments:write',
  tag,
  summary: 'Stop serving a name',
  params: NameParams,
  responses: { 200: Deleted },
})
