import { type ScopePreset, scopePresets } from '../contract/scopes.ts'
import { withAccounts } from './accounts.ts'
import { readName, UsageError } from './usage.ts'

/** Makes a key in the data folder's database, beside a running server or without one. */
export async function keys({ name, scopes, json }: { name?: string; scopes: string; json: boolean }): Promise<void> {
  const given = readName(name, 'Give the key a name of at most 200 characters: ./tunery keys create --name NAME')
  if (!Object.hasOwn(scopePresets, scopes))
    throw new UsageError(`--scopes is one of ${Object.keys(scopePresets).join(', ')}.`)
  const key = await withAccounts((accounts) => accounts.createKey(given, scopes as ScopePreset))
  console.log(json ? JSON.stringify(key) : `${key.key}\n\nThis key is shown once. It may: ${key.scopes.join(', ')}.`)
}
