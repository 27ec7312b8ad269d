// Scopes of API keys. At every request a key's scopes are limited to those of its member's current role, so that losing
// a role also restricts existing keys.

/** Every route requires one of these. */
export const scopes = [
  'hub:read',
  'datasets:read',
  'datasets:write',
  'tuning:read',
  'tuning:write',
  'deployments:read',
  'deployments:write',
  'exports:read',
  'exports:write',
  'inference',
  'profile:read',
  'usage:read',
  'usage:write',
  'webhooks:read',
  'webhooks:write',
  'keys:read',
  'keys:write',
  'members:read',
  'members:write',
  'audit:read',
  'operator',
] as const
export type Scope = (typeof scopes)[number]

export const roles = ['owner', 'admin', 'member', 'viewer'] as const
export type Role = (typeof roles)[number]

/** Access to all accounts. Granted on the operator's command line and in their sessions: no account can grant it. */
const operator: Scope = 'operator'

const viewer: readonly Scope[] = [
  'hub:read',
  'datasets:read',
  'tuning:read',
  'deployments:read',
  'exports:read',
  'profile:read',
  'usage:read',
  'keys:read',
  'keys:write',
  'members:read',
]
const member: readonly Scope[] = [
  ...viewer,
  'datasets:write',
  'tuning:write',
  'deployments:write',
  'exports:write',
  'inference',
]
const admin: readonly Scope[] = [
  ...member,
  'usage:write',
  'webhooks:read',
  'webhooks:write',
  'members:write',
  'audit:read',
]

/**
 * Upper bound of a key's scopes by its member's role. Everyone may create their own keys; only an owner may create and
 * change owners.
 */
export const roleScopes: Record<Role, readonly Scope[]> = { viewer, member, admin, owner: [...admin, operator] }

/** Presets of scopes for a key, limited to what its creator may do. */
export const scopePresets = {
  full: scopes.filter((scope) => scope !== operator),
  inference: ['hub:read', 'inference', 'profile:read'],
  read_only: scopes.filter((scope) => scope.endsWith(':read')),
  operator: [operator, 'profile:read'],
} as const satisfies Record<string, readonly Scope[]>
export type ScopePreset = keyof typeof scopePresets
