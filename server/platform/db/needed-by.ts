import { ApiError } from '../../../contract/errors.ts'
import type { Trx } from './open.ts'

/** Names what still needs an object, or undefined. Runs in the transaction that deletes the object. */
export type NeededBy = (trx: Trx, account_id: string, id: string) => Promise<string | undefined>

/** Throws in_use if anything needs the object. `message` says what to do about it. */
export async function assertNotNeeded(
  checks: readonly NeededBy[],
  trx: Trx,
  account_id: string,
  id: string,
  message: (used_by: string) => string,
): Promise<void> {
  for (const check of checks) {
    const used_by = await check(trx, account_id, id)
    if (used_by) throw new ApiError('in_use', message(used_by), { details: { used_by } })
  }
}
