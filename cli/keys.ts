import { type ScopePreset, scopePresets } from '../contract/scopes.ts'
import { withAccounts } from './accounts.ts'
import { readName, UsageError } from './usage.ts'

/** Creates an API key in the data folder's database. Safe while a server runs. */
export async function keys({ name, scopes, json }: { name?: string; scopes: string; json: boolean }): Promise<void> {
  const keyName = readName(name, 'Give the key a name of at most 200 characters: ./tunery keys create --name NAME')
  if (!Object.hasOwn(scopePresets, scopes))
    throw new UsageError(`--scopes is one of ${Object.keys(scopePresets).join(', ')}.`)
  const key = await withAccounts((accounts) => accounts.createKey(keyName, scopes as ScopePreset))
  console.log(json ? JSON.stringify(key) : `${key.key}\n\nThis key is shown once. It may: ${key.scopes.join(', ')}.`)
}
