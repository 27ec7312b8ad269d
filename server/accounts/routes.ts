import type { FastifyInstance } from 'fastify'
import { getProfile } from '../../contract/accounts.ts'
import { mount } from '../http/mount.ts'
import type { Accounts } from './service.ts'

export function accountRoutes(app: FastifyInstance, accounts: Accounts): void {
  mount(app, getProfile, ({ caller }) => accounts.profile(caller))
}
