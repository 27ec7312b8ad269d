// What requests to sample have taken, once each.
import type { TokenCounts } from '../serving/index.ts'
import type { Usage, UsageFinish } from '../usage/index.ts'

interface Options {
  usage: Pick<Usage, 'record'>
  prices: { input_per_million_tokens: number; output_per_million_tokens: number }
  now(): number
}

/** Records the usage of a request that begins now. */
export function sampleRecorder(
  { usage, prices, now }: Options,
  { account_id, key_id }: { account_id: string; key_id: string },
  { model, model_id }: { model: string; model_id: string },
  request_id: string,
): (finish: UsageFinish, counts: TokenCounts) => void {
  const created_at = now()
  const began = performance.now()
  return (finish, { prompt_tokens, completion_tokens, cached_tokens }) =>
    usage.record({
      request_id,
      created_at,
      account_id,
      key_id,
      model,
      model_id,
      kind: 'completion',
      prompt_tokens,
      completion_tokens,
      cached_tokens,
      duration_ms: Math.round(performance.now() - began),
      first_token_ms: null,
      cost:
        (prompt_tokens * prices.input_per_million_tokens + completion_tokens * prices.output_per_million_tokens) / 1e6,
      finish,
    })
}
