// What runs have trained: their steps and tokens, which become usage when a run rests or ends.
import type { Db } from '../../platform/db/open.ts'
import type { Usage } from '../usage/index.ts'
import * as store from './store.ts'

interface Options {
  db: Db
  usage: Pick<Usage, 'add'>
  /** Price of a million trained tokens. */
  price(base_model_id: string): number
  now(): number
}

export class RunUsage {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  async count(id: string, { step = 0, trained_tokens = 0 }): Promise<void> {
    await this.options.db
      .updateTable('tinker_runs')
      .set((column) => ({
        step: column('step', '+', step),
        trained_tokens: column('trained_tokens', '+', trained_tokens),
      }))
      .where('id', '=', id)
      .execute()
  }

  /** Writes the trained tokens of a run to the usage. */
  async meter(id: string): Promise<void> {
    const { db, usage, price, now } = this.options
    await db.transaction().execute(async (trx) => {
      const row = await store.findRunUnscoped(trx, id)
      if (!row || Number(row.trained_tokens) === 0) return
      const { account_id, key_id, base_model_id, model_name, metered } = row
      const trained_tokens = Number(row.trained_tokens)
      await store.updateRun(trx, id, { trained_tokens: 0, metered: metered + 1 })
      const time = now()
      await usage.add(
        trx,
        {
          request_id: `${id}:${metered}`,
          created_at: time,
          account_id,
          key_id,
          model: model_name,
          model_id: base_model_id,
          kind: 'training',
          finish: 'complete',
          prompt_tokens: 0,
          completion_tokens: 0,
          cached_tokens: 0,
          trained_tokens,
          duration_ms: 0,
          cost: (trained_tokens / 1e6) * price(base_model_id),
        },
        time,
      )
    })
  }
}
