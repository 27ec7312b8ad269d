// The metrics of one request to a model.

import type { ServerMetrics } from '../../platform/telemetry/metrics.ts'
import type { PoolResponse } from '../serving/index.ts'
import type { UsageKind } from '../usage/index.ts'
import type { MeteredUsage } from './meter.ts'

export interface RequestObserver {
  /** A server of models has answered, or begun to. */
  answered(response: Pick<PoolResponse, 'queue_ms' | 'load_ms'>): void
  ended(usage: MeteredUsage): void
  /** It got no answer. */
  failed(outcome: 'failed' | 'client_left'): void
}

/** Shorter loads are the lookup of a loaded model. */
const load_ms_min = 1

/** `background`: requests that nobody waits for count, but not in the times. */
export function observeRequest(
  metrics: ServerMetrics,
  base_model_id: string,
  kind: UsageKind,
  background: boolean,
): RequestObserver {
  const base = metrics.base(base_model_id)
  let counted = false
  const count = (outcome: string) => {
    if (counted) return
    counted = true
    metrics.inferenceRequests.inc({ base, kind, outcome })
  }
  return {
    answered({ queue_ms, load_ms }) {
      if (background) return
      metrics.queueSeconds.observe({ base }, queue_ms / 1000)
      if (load_ms >= load_ms_min) metrics.loadSeconds.observe({ base }, load_ms / 1000)
    },
    ended({ finish, prompt_tokens, completion_tokens, cached_tokens, duration_ms, first_token_ms }) {
      count(finish)
      metrics.inferenceTokens.inc({ base, type: 'prompt' }, prompt_tokens)
      metrics.inferenceTokens.inc({ base, type: 'cached' }, cached_tokens)
      metrics.inferenceTokens.inc({ base, type: 'completion' }, completion_tokens)
      if (background || finish === 'client_left') return
      metrics.inferenceSeconds.observe({ base, kind }, duration_ms / 1000)
      if (first_token_ms == null) return
      metrics.firstTokenSeconds.observe({ base }, first_token_ms / 1000)
      if (completion_tokens > 1)
        metrics.tokenSeconds.observe({ base }, (duration_ms - first_token_ms) / 1000 / (completion_tokens - 1))
    },
    failed: count,
  }
}
