// Takes down what one request used, once.

import type { UsageFinish, UsageKind } from '../usage/record.ts'
import type { Usage as UsageJournal } from '../usage/service.ts'
import type { TokenCounts } from './usage-of.ts'

export interface Metered {
  request_id: string
  account_id: string
  key_id: string
  model: string
  model_id: string
  kind: UsageKind
}

export interface Meter {
  /** To be called before the client has the end of its answer. Only the first call counts. */
  end(finish: UsageFinish, counts: TokenCounts): void
}

export function startMeter(journal: UsageJournal, metered: Metered): Meter {
  const created_at = Date.now()
  const began = performance.now()
  let ended = false
  return {
    end(finish, { prompt_tokens, completion_tokens, cached_tokens }) {
      if (ended) return
      ended = true
      journal.record({ ...metered, created_at, prompt_tokens, completion_tokens, cached_tokens, duration_ms: Math.round(performance.now() - began), finish })
    },
  }
}
