// What keeps the accounts' prompts apart in the prefix cache of a server elsewhere: how long an answer takes would tell one account what
// another has asked.
import { createHmac } from 'node:crypto'
import path from 'node:path'
import { keyOf } from '../../key-file.ts'

/** Gives each account a salt that others cannot guess. The secret behind it is made once for the data folder, where it is first needed. */
export function createSalt(dataDir: string): (account_id: string) => string {
  let secret: Buffer | undefined
  return (account_id) => {
    secret ??= keyOf(path.join(dataDir, 'salt.key'))
    return createHmac('sha256', secret).update(account_id).digest('hex')
  }
}
