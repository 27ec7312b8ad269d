// Records the usage of one request in the journal, exactly once.
import type { TokenCounts } from '../serving/index.ts'
import type { UsageFinish, Usage as UsageJournal, UsageKind } from '../usage/index.ts'

interface MeteredRequest {
  request_id: string
  account_id: string
  key_id: string
  model: string
  model_id: string
  kind: UsageKind
}

/** What is known of a request when it has ended. */
export type MeteredUsage = Parameters<UsageJournal['record']>[0]

/** Prices per million tokens. */
interface Prices {
  input_per_million_tokens: number
  output_per_million_tokens: number
}

export interface Meter {
  /** The first token has come, of a streamed answer. */
  firstToken(): void
  /** Call it before the client gets the last byte. Only the first call has an effect. */
  end(finish: UsageFinish, counts: TokenCounts): void
  /**
   * For a client that disconnected: records `used` once it resolves, or `fallback` if it is unknown; nothing if both
   * are undefined.
   */
  endAborted(used: Promise<TokenCounts | undefined>, fallback: TokenCounts | undefined): void
}

/**
 * `pending` collects the lookups of `endAborted`, so that a shutdown can wait for them. `onEnd` gets what was recorded.
 */
export function startMeter(
  journal: Pick<UsageJournal, 'record'>,
  request: MeteredRequest,
  prices: Prices,
  pending: Set<Promise<void>>,
  onEnd?: (usage: MeteredUsage) => void,
): Meter {
  const created_at = Date.now()
  const started_at = performance.now()
  let first_token_ms: number | null = null
  let ended = false
  const meter: Meter = {
    firstToken() {
      first_token_ms ??= Math.round(performance.now() - started_at)
    },
    end(finish, { prompt_tokens, completion_tokens, cached_tokens }) {
      if (ended) return
      ended = true
      const cost =
        (prompt_tokens * prices.input_per_million_tokens + completion_tokens * prices.output_per_million_tokens) / 1e6
      const duration_ms = Math.round(performance.now() - started_at)
      const usage: MeteredUsage = {
        ...request,
        created_at,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        duration_ms,
        first_token_ms,
        cost,
        finish,
      }
      journal.record(usage)
      onEnd?.(usage)
    },
    endAborted(used, fallback) {
      const lookup = used
        .catch(() => undefined)
        .then((counts = fallback) => counts && meter.end('client_left', counts))
        .finally(() => pending.delete(lookup))
      pending.add(lookup)
    },
  }
  return meter
}
