import type { FastifyInstance } from 'fastify'
import {
  createDeployment,
  deleteDeployment,
  getDeployment,
  getDeploymentMetrics,
  listDeploymentChanges,
  listDeployments,
  rollbackDeployment,
  switchDeployment,
} from '../../../contract/deployments.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Deployments } from './service.ts'

export function deploymentRoutes(app: FastifyInstance, deployments: Deployments): void {
  mount(app, createDeployment, ({ caller, body }) => deployments.create(caller, body))
  mount(app, listDeployments, ({ caller, query }) => deployments.list(caller.account_id, query))
  mount(app, getDeployment, ({ caller, params }) => deployments.get(caller.account_id, params.name))
  mount(app, switchDeployment, ({ caller, params, body }) => deployments.switch(caller, params.name, body))
  mount(app, rollbackDeployment, ({ caller, params }) => deployments.rollback(caller, params.name))
  mount(app, listDeploymentChanges, ({ caller, params, query }) =>
    deployments.history(caller.account_id, params.name, query),
  )
  mount(app, getDeploymentMetrics, ({ caller, params, query }) =>
    deployments.metrics(caller.account_id, params.name, query),
  )
  mount(app, deleteDeployment, ({ caller, params }) => deployments.delete(caller, params.name))
}
