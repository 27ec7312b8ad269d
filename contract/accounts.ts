import { z } from 'zod'
import { Time } from './common.ts'
import { Tier } from './hub.ts'
import { KeyScope } from './keys.ts'
import { routesOf } from './route.ts'
import { roles } from './scopes.ts'

const WindowUsed = z.object({ used: z.int(), resets_at: Time })

export const Profile = z.object({
  id: z.string(),
  name: z.string(),
  email: z.string().nullable(),
  role: z.enum(roles),
  account: z.object({ id: z.string(), name: z.string() }),
  tier: Tier,
  limits: Tier.pick({ requests_per_minute: true, requests_per_day: true, max_concurrent: true }),
  usage: z
    .object({ minute: WindowUsed, day: WindowUsed, concurrent: z.int() })
    .describe('What the account has used of its limits until now.'),
  key: z
    .object({ id: z.string(), name: z.string(), prefix: z.string(), scopes: z.array(KeyScope), created_at: Time })
    .nullable()
    .describe('The key that asks; null in a session of the dashboard.'),
  session: z
    .object({ id: z.string(), created_at: Time, expires_at: Time })
    .nullable()
    .describe('The session that asks; null for a key.'),
})
export type Profile = z.infer<typeof Profile>

const route = routesOf({ tag: 'Account' })
export const getProfile = route('GET', '/user/profile', {
  scope: 'profile:read',
  summary: 'Who asks: the person and account of the key or session',
  responses: { 200: Profile },
})
export const getPresence = route('GET', '/user/presence', {
  scope: 'profile:read',
  summary: 'Wait for the end of the key or session',
  description:
    'Answers after `wait_seconds`, by default at once; when the key or session ends, at once, with the error of any ' +
    'request with it. For programs that hold something open for a key and ask nothing with it.',
  query: z.strictObject({ wait_seconds: z.coerce.number().int().min(0).max(30).default(0) }),
  responses: { 200: z.object({ present: z.literal(true) }) },
})
