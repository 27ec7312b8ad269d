import type { FastifyInstance } from 'fastify'
import { getSetup, retrySetup } from '../../../contract/hub.ts'
import type { Caller } from '../http/caller.ts'
import { mount } from '../http/mount.ts'
import type { TrainingSetup } from './service.ts'

export function setupRoutes(app: FastifyInstance, setup: TrainingSetup): void {
  const status = ({ scopes }: Caller) => setup.status({ operator: scopes.includes('operator') })
  mount(app, getSetup, async ({ caller }) => status(caller))
  mount(app, retrySetup, async ({ caller }) => {
    setup.retry()
    return status(caller)
  })
}
