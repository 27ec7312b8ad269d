import { z } from 'zod'
import { ListQuery, page, Time } from './common.ts'
import { routesOf } from './route.ts'

export const AuditEntry = z.object({
  id: z.string(),
  created_at: Time,
  action: z.string().describe('What was done, such as `key.created`.'),
  target: z.string().describe('The id of what it was done to.'),
  details: z.record(z.string(), z.unknown()),
  by: z
    .object({
      kind: z
        .enum(['key', 'session', 'operator', 'command_line', 'service'])
        .describe(
          'An API key of the account, a session of one of its members, the operator of the service, its command ' +
            'line, or the service itself.',
        ),
      user_id: z.string().nullable(),
      key_id: z.string().nullable().describe('The key, or the session.'),
    })
    .describe('Who did it. What the operator did shows neither member nor key: these belong to another account.'),
})
export type AuditEntry = z.infer<typeof AuditEntry>

const route = routesOf({ tag: 'Account' })
export const listAudit = route('GET', '/audit', {
  scope: 'audit:read',
  summary: 'What was changed in the account and by whom, newest first',
  query: ListQuery,
  responses: { 200: page(AuditEntry) },
})
