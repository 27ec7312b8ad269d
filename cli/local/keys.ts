import { type ScopePreset, scopePresets } from '../../contract/scopes.ts'
import { UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { withAccounts } from './accounts.ts'
import { readName } from './names.ts'

interface KeyOptions extends GlobalOptions {
  name?: string
  scopes: string
}

/** Creates an API key in the data folder's database. Safe while a server runs. */
export async function createLocalKey({ name, scopes, json }: KeyOptions): Promise<void> {
  const keyName = readName(name, 'Give the key a name of at most 200 characters: ./tunery keys create --name NAME')
  if (!Object.hasOwn(scopePresets, scopes))
    throw new UsageError(`--scopes is one of ${Object.keys(scopePresets).join(', ')}.`)
  const key = await withAccounts((accounts) => accounts.createKey(keyName, scopes as ScopePreset))
  console.log(json ? JSON.stringify(key) : `${key.key}\n\nThis key is shown once. It may: ${key.scopes.join(', ')}.`)
}
