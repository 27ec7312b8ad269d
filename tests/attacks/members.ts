// Accounts, members and their keys, for the attacks on what they may.
import assert from 'node:assert/strict'
import type { Role, Scope } from '../../contract/scopes.ts'
import { newBrowser } from '../support/browser.ts'
import { type Client, client } from '../support/client.ts'
import type { DataFolder } from '../support/server.ts'

export const browserAt = ({ url }: { url: string }) => newBrowser({ url, services: undefined as never })
export const linkToken = (link: string) => new URL(link).hash.slice(1)
export const signed = (key: string) => ({ authorization: `Bearer ${key}` })

/** Another account, and a key of its owner. */
export function newAccount(folder: DataFolder, name: string) {
  const created: unknown = folder.tunery('accounts', 'create', '--name', name)
  const { account, key } = created as { account: { id: string }; key: string }
  return { id: account.id, key }
}

/** A member of the account of `by` with a role, and a client with a key of theirs. */
export async function addMember(by: Client, url: string, role: Role, carried?: readonly Scope[]) {
  const { body: member } = await by.api('POST', '/members', { name: `a ${role}`, role })
  const answer = await by.api('POST', '/keys', { name: 'k', user_id: member.id, ...(carried && { scopes: carried }) })
  assert.equal(answer.status, 201, JSON.stringify(answer.body))
  return { id: member.id as string, key: answer.body.key as string, ...client(url, answer.body.key) }
}
