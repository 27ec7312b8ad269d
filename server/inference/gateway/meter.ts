// Takes down what one request used, once.

import type { UsageFinish, UsageKind } from '../../usage/journal.ts'
import type { Usage as UsageJournal } from '../../usage/service.ts'
import type { TokenCounts } from './usage-scanner.ts'

export interface Metered {
  request_id: string
  account_id: string
  key_id: string
  model: string
  model_id: string
  kind: UsageKind
}

/** Prices of a million tokens. */
export interface Prices {
  input_per_million_tokens: number
  output_per_million_tokens: number
}

export interface Meter {
  /** To be called before the client has the end of its answer. Only the first call counts. */
  end(finish: UsageFinish, counts: TokenCounts): void
  /**
   * For an answer whose client has left: `used` tells what it had used, and `otherwise` counts where that is not known;
   * undefined takes nothing down.
   */
  endLater(used: Promise<TokenCounts | undefined>, otherwise: TokenCounts | undefined): void
}

/** `pending` holds what `endLater` waits for. */
export function startMeter(
  journal: Pick<UsageJournal, 'record'>,
  metered: Metered,
  prices: Prices,
  pending: Set<Promise<void>>,
): Meter {
  const created_at = Date.now()
  const began = performance.now()
  let ended = false
  const meter: Meter = {
    end(finish, { prompt_tokens, completion_tokens, cached_tokens }) {
      if (ended) return
      ended = true
      const cost =
        (prompt_tokens * prices.input_per_million_tokens + completion_tokens * prices.output_per_million_tokens) / 1e6
      const duration_ms = Math.round(performance.now() - began)
      journal.record({
        ...metered,
        created_at,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        duration_ms,
        cost,
        finish,
      })
    },
    endLater(used, otherwise) {
      const ending = used
        .catch(() => undefined)
        .then((counts = otherwise) => counts && meter.end('client_left', counts))
        .finally(() => pending.delete(ending))
      pending.add(ending)
    },
  }
  return meter
}
