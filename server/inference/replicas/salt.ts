// What keeps the accounts' prompts apart in the prefix cache of a server elsewhere: how long an answer takes would tell one account what
// another has asked.
import { createHmac, randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'

/** Gives each account a salt that others cannot guess. The secret behind it is made once for the data folder, where it is first needed. */
export function createSalt(dataDir: string): (account_id: string) => string {
  let secret: Buffer | undefined
  return (account_id) => {
    secret ??= secretOf(path.join(dataDir, 'salt.key'))
    return createHmac('sha256', secret).update(account_id).digest('hex')
  }
}

function secretOf(file: string): Buffer {
  try {
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 })
    writeFileSync(file, randomBytes(32), { flag: 'wx', mode: 0o600 })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  const secret = readFileSync(file)
  if (secret.length !== 32) throw new Error(`${file} is damaged. Delete it: the service makes another when it starts again.`)
  return secret
}
