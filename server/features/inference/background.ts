// Requests that nobody waits for: batches and evaluations. They are computed while the engine has no live request, and
// wait out what passes.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ChatRequest } from '../../../contract/chat.ts'
import { CompletionRequest } from '../../../contract/completions.ts'
import { EmbeddingsRequest } from '../../../contract/embeddings.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { AnswerWarning } from '../../../contract/inference.ts'
import { validationError } from '../../platform/http/validation.ts'
import type { Turn } from '../../platform/queue/worker.ts'
import { ReplicaFailure, type TokenCounts } from '../serving/index.ts'
import { meterFullResponse } from './gateway/relay.ts'
import type { Isolation } from './isolation.ts'
import type { Inference, InferenceRequest, Operation } from './service.ts'

const schemas = { chat: ChatRequest, completion: CompletionRequest, embedding: EmbeddingsRequest }
export const backgroundOperations = {
  chat: { kind: 'chat', path: '/chat/completions' },
  completion: { kind: 'completion', path: '/completions' },
  embedding: { kind: 'embedding', path: '/embeddings' },
} as const satisfies Record<string, Operation & { kind: keyof typeof schemas }>
type BackgroundOperation = (typeof backgroundOperations)[keyof typeof backgroundOperations]

/** Failures of a request inside the service, and losses of upstreams, before it is given up. */
const failuresMax = 5
const lossesMax = 2
const retryMax_ms = 30_000

interface Tools {
  inference: Pick<Inference, 'answer' | 'isElsewhere' | 'isolation'>
  log: Logger
  turn: Turn
}

/** Its account has as much work as it may that waits for upstreams: this is to be put off. */
export class TurnOver extends Error {}

interface BackgroundRequest extends Pick<InferenceRequest, 'caller' | 'request_id'> {
  /** As the client wrote it. It is answered whole, whatever it says of streams. */
  body: Record<string, unknown>
}

/**
 * Lets other work begin beside one that asks a model of an upstream: that may be slow, or hang, and costs this machine
 * nothing. Throws TurnOver.
 */
export async function yieldToOthers(
  inference: Pick<Inference, 'isElsewhere'>,
  turn: Turn,
  account_id: string,
  model: unknown,
): Promise<void> {
  if (turn.hasYielded || typeof model !== 'string' || !(await inference.isElsewhere(account_id, model))) return
  if (!turn.yield(account_id)) throw new TurnOver()
}

/**
 * Resolves with the answer, or with the error that repeating would not mend. Throws if the signal aborts, or a
 * TurnOver.
 */
export async function askInBackground(
  { inference, log, turn }: Tools,
  operation: BackgroundOperation,
  { caller, request_id, body }: BackgroundRequest,
  signal: AbortSignal,
): Promise<{ bytes: Buffer; counts: TokenCounts; warnings: AnswerWarning[] } | { error: ApiError }> {
  const parsed = schemas[operation.kind].safeParse({ ...body, stream: undefined, stream_options: undefined })
  if (!parsed.success) return { error: validationError(parsed.error.issues, 'request') }
  const request = { caller, request_id, body: parsed.data, text: undefined, stream: false, background: true }
  await yieldToOthers(inference, turn, caller.account_id, parsed.data.model)
  const ask = async () => {
    let warnings: AnswerWarning[] = []
    const warn = (codes: AnswerWarning[]) => {
      warnings = codes
    }
    const { response, meter } = await inference.answer(operation, { ...request, warn }, signal)
    return { ...meterFullResponse(response, meter), warnings }
  }
  let isolation: Isolation | undefined
  for (let tries = 1, failures = 0; ; tries++) {
    try {
      isolation = await inference.isolation(caller.account_id, parsed.data.model)
      const answered = await (isolation ? isolation.ask({ ...caller, request_id }, ask, signal) : ask())
      isolation?.forget(request_id)
      return answered
    } catch (error) {
      signal.throwIfAborted()
      const apiError = error instanceof ApiError ? error : undefined
      if (apiError && apiError.status < 500 && apiError.status !== 429) return { error: apiError }
      if (!apiError) log.error({ err: error, request_id }, 'a request in the background failed')
      if (isolation?.isToBlame(request_id)) return { error: endsEngine() }
      // A full queue of live requests, or a server that is away, is no failure of this request: it waits. One that lost
      // its upstreams may be what killed them.
      const isLost = apiError instanceof ReplicaFailure && apiError.lost && !isolation
      const waits = apiError?.code === 'overloaded' || (apiError?.code === 'engine_unavailable' && !isLost)
      if (!waits && ++failures >= (isLost ? lossesMax : failuresMax))
        return {
          error:
            apiError ?? new ApiError('internal_error', 'Something failed inside the service. Its log has the cause.'),
        }
      const asked_ms = Number(apiError?.details?.retry_after_seconds ?? 0) * 1000
      await sleep(Math.min(retryMax_ms, Math.max(asked_ms, 500 * 2 ** Math.min(tries, 8))), undefined, { signal })
    }
  }
}

const endsEngine = () =>
  new ApiError(
    'engine_failed',
    'The engine ended each time it worked on this request, also while it had no other. It is not asked again; change ' +
      'it or leave it out.',
  )
