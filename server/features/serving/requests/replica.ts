// A replica serves a model: this machine's engine, or an upstream.
import { ApiError, type ErrorCode } from '../../../../contract/errors.ts'
import type { Span } from '../../../platform/telemetry/tracing.ts'
import type { Projector } from '../../hub/index.ts'
import type { UsageKind } from '../../usage/index.ts'
import type { Headers, HttpResponse } from '../http-client/response.ts'
import type { TokenCounts } from './usage-scanner.ts'

/** The weights that a request runs on: a base from the hub or a fully tuned model, optionally with a LoRA adapter. */
export interface Target {
  /**
   * `gguf` is undefined if the base's weights are not on this machine. `projector`: of a model that reads pictures.
   * `merged_from`: the adapter that these weights contain.
   */
  base: { id: string; gguf?: string; projector?: Projector | null | undefined; merged_from?: string }
  /** `projector`: of an adapter that has its own; others read pictures with that of the base. */
  adapter?: { id: string; gguf: string; projector?: Projector | null }
}

/** With which a target reads pictures. */
export const projectorOf = ({ base, adapter }: Target): Projector | null => adapter?.projector ?? base.projector ?? null

/** An inference request, ready to be routed to a replica. */
export interface ReplicaRequest {
  request_id: string
  account_id: string
  kind: UsageKind
  /** Path below the base address, such as /chat/completions. */
  path: string
  /** The model's name as the client wrote it; responses repeat it. */
  model: string
  target: Target
  body: Record<string, unknown>
  /** The body as the client sent it; undefined if the service built it. */
  text: string | undefined
  stream: boolean
  /** Computed only while the engine has no other request. */
  background: boolean
  /** Is not sent to another replica after a loss: it is asked again where it can do no harm; see isolation.ts. */
  isolated?: boolean
  prompt_tokens_max?: number | undefined
  /** The span within which it is sent, if it is traced. */
  span?: Span | null | undefined
  /** What it has used by the time it fails: set by a replica that sends it to a server which does not tell. */
  progress?: { used?: TokenCounts }
}

/** A response with status 200: the full body, or a stream whose first chunk has arrived. */
export interface ReplicaResponse {
  headers: Headers
  /** The header x-weights: which weights answered, as the server that has them reports it. */
  weights: string | undefined
  /** How long the request waited for the model to load. */
  load_ms: number
  content: { body: Buffer } | { firstChunk: Buffer | undefined; stream: HttpResponse }
  /** What an answer of an upstream has used so far; our engine tells in the answer itself. */
  usage?: () => TokenCounts
  /** Tokens that the request had used when its client disconnected; undefined if unknown. */
  abortedUsage?: () => Promise<TokenCounts | undefined>
}

export type ModelStatus = 'loaded' | 'loading' | 'not_loaded'

export interface Replica {
  /** For the log. */
  readonly name: string
  readonly max_concurrent: number
  /** Requests in progress. */
  inFlight: number
  /** It holds some of many adapters, and loads others when they are requested. Default: it has what it serves. */
  readonly loadsOnDemand?: boolean
  /** Whether it may have another request at all: not while it hangs. Default: always. */
  admits?(): boolean
  /** In how many seconds it may admit one again. */
  retryAfter_seconds?(): number
  /** Whether the last probe or request succeeded. */
  isUp(): boolean
  /** Whether it can serve the target, once loaded. */
  canServe(target: Target): boolean
  status(target: Target): ModelStatus
  /** Loads the target unless it is loaded. */
  load(target: Target): Promise<void>
  /** Unloads the target's adapter, or its base if it has no adapter. Does nothing if it is not loaded. */
  unload(target: Target): Promise<void>
  /**
   * Sends a request and resolves with the full response, or with the first chunk of a stream. Throws a ReplicaFailure
   * if another replica might succeed, another ApiError if it would fail the same way.
   */
  send(request: ReplicaRequest, signal: AbortSignal): Promise<ReplicaResponse>
  /** Calls the listener when the replica may take requests again. */
  onCapacity(listener: () => void): void
}

/** The weights could not be loaded; the service's log has the reason. */
export class LoadFailure extends ApiError {
  constructor(message = 'The model could not be loaded into the engine. The log of the service has the reason.') {
    super('engine_failed', message)
  }
}

/**
 * The replica failed, not the request. `lost`: the replica failed after it had received the request, which may have
 * crashed it and must not crash the others. `accompanied`: it had other requests then, which may have crashed it too.
 */
export class ReplicaFailure extends ApiError {
  readonly lost: boolean
  accompanied = false

  constructor(
    code: ErrorCode,
    message: string,
    { lost = false, details }: { lost?: boolean; details?: Record<string, unknown> } = {},
  ) {
    super(code, message, details ? { details } : {})
    this.lost = lost
  }
}
