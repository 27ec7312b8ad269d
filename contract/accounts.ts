import { z } from 'zod'
import { Time } from './common.ts'
import { Tier } from './hub.ts'
import { route } from './route.ts'
import { roles, scopes } from './scopes.ts'

export const Profile = z.object({
  id: z.string(),
  name: z.string(),
  email: z.string().nullable(),
  role: z.enum(roles),
  account: z.object({ id: z.string(), name: z.string() }),
  tier: Tier,
  key: z.object({ id: z.string(), name: z.string(), prefix: z.string(), scopes: z.array(z.enum(scopes)), created_at: Time }),
})
export type Profile = z.infer<typeof Profile>

export const getProfile = route({
  method: 'GET',
  path: '/user/profile',
  scope: 'profile:read',
  tag: 'Account',
  summary: 'Who this key belongs to',
  responses: { 200: Profile },
})
