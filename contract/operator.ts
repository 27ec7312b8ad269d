// Operator's routes for all accounts.
import { z } from 'zod'
import { DisplayName, ListQuery, page, Time } from './common.ts'
import { Email, Member } from './members.ts'
import { routesOf } from './route.ts'

export const Account = z.object({
  id: z.string(),
  name: z.string(),
  tier: z.string().describe('The id of one of `GET /hub/tiers`.'),
  status: z.enum(['active', 'suspended']),
  members: z.int(),
  created_at: Time,
})
export type Account = z.infer<typeof Account>

const AccountParams = z.object({ account_id: z.string() })
const TierId = z.string().min(1).max(64)

const route = routesOf({ tag: 'Operator', scope: 'operator' })
export const createAccount = route('POST', '/operator/accounts', {
  summary: 'Make an account with its owner and the owner’s first key, which is shown once',
  body: z.strictObject({
    name: DisplayName,
    tier: TierId.optional().describe('The default tier if left out.'),
    owner: z.strictObject({ name: DisplayName, email: Email.default(null) }),
  }),
  responses: { 201: z.object({ account: Account, owner: Member, key: z.string() }) },
})
export const listAccounts = route('GET', '/operator/accounts', {
  summary: 'All accounts, newest first',
  query: ListQuery,
  responses: { 200: page(Account) },
})
export const getAccount = route('GET', '/operator/accounts/{account_id}', {
  summary: 'One account',
  params: AccountParams,
  responses: { 200: Account },
})
export const changeAccount = route('PUT', '/operator/accounts/{account_id}', {
  summary:
    'Rename an account, set its tier, suspend or reinstate it; requests of a suspended account are refused ' +
    'within a second, and its jobs wait',
  params: AccountParams,
  body: z.strictObject({
    name: DisplayName.optional(),
    tier: TierId.optional(),
    status: z.enum(['active', 'suspended']).optional(),
  }),
  responses: { 200: Account },
})
