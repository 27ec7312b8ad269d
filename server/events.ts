import type { Trx } from './db/open.ts'
import { newId } from './ids.ts'

export type EventType = 'training.started' | 'training.completed' | 'training.failed' | 'model.deployed' | 'usage.threshold'

/** Records that something happened to an account, in the transaction that makes it so: none is lost, none is invented. */
export async function recordEvent(trx: Trx, account_id: string, type: EventType, data: Record<string, unknown>, created_at: number): Promise<void> {
  await trx
    .insertInto('events')
    .values({ id: newId('evt'), account_id, type, data_json: JSON.stringify(data), created_at })
    .execute()
}
