// What a key may do. A key carries scopes; the role of the member whose key it is bounds them at every request, so that
// a role that is taken away is gone from keys that were made before.

/** Every route states the one that it needs. */
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

/** Rules over all accounts, and is given on the operator's command line only: no account can take it for itself. */
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
 * The most that a key of a member with this role may do. Everyone may make keys of their own; an owner alone may make
 * and change owners.
 */
export const roleScopes: Record<Role, readonly Scope[]> = { viewer, member, admin, owner: [...admin, operator] }

/** Ready-made choices of scopes for a key; each is cut to what its maker may do. */
export const scopePresets = {
  full: scopes.filter((scope) => scope !== operator),
  inference: ['hub:read', 'inference', 'profile:read'],
  read_only: scopes.filter((scope) => scope.endsWith(':read')),
  operator: [operator, 'profile:read'],
} as const satisfies Record<string, readonly Scope[]>
export type ScopePreset = keyof typeof scopePresets
