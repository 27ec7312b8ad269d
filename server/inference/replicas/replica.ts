// What a replica is: something that serves a model, this machine's engine or a server elsewhere.
import { ApiError, type ErrorCode } from '../../../contract/errors.ts'
import type { UsageKind } from '../../usage/journal.ts'
import type { TokenCounts } from '../gateway/usage-scanner.ts'
import type { Incoming } from './http-client/response.ts'
import type { Headers } from './http-client/response-parser.ts'

/** What a request runs on: whole weights of the hub or of a tuned model, and an adapter on them or none. */
export interface Target {
  /** `gguf` is undefined of a base whose weights are not on this machine. */
  base: { id: string; gguf?: string }
  adapter?: { id: string; gguf: string }
}

/** One request as a replica sends it on. */
export interface Ask {
  request_id: string
  account_id: string
  kind: UsageKind
  /** Path below the base address, such as /chat/completions. */
  path: string
  /** The model's name as the client wrote it: every answer says this one. */
  model: string
  target: Target
  body: Record<string, unknown>
  /** The body as the client wrote it; undefined where it was put together here. */
  text: string | undefined
  stream: boolean
}

/** An answer with status 200, whole or just begun. */
export interface Answer {
  headers: Headers
  /** How long the request waited for the model to be loaded. */
  load_ms: number
  content: { whole: Buffer } | { first: Buffer | undefined; rest: Incoming }
  /** The name to put in place of the model's in what comes; undefined where it says the client's already. */
  rename: string | undefined
  /** Whether it comes from another kind of server than our engine. */
  foreign: boolean
  /** Whether its stream tells the usage with each piece because this service has asked for that. */
  askedRunning: boolean
  /** What the request has used, of a client that has left; undefined where nobody knows. */
  usageOfLeft?: () => Promise<TokenCounts | undefined>
}

export type ModelStatus = 'loaded' | 'loading' | 'not_loaded'

export interface Replica {
  /** For the log. */
  readonly name: string
  readonly max_concurrent: number
  /** Requests that it has now. */
  outstanding: number
  /** Whether it answered when it was last asked. */
  up(): boolean
  /** Whether it can serve this, once loaded. */
  takes(target: Target): boolean
  status(target: Target): ModelStatus
  /** Loads the target where it is not loaded yet. */
  load(target: Target): Promise<void>
  /** Frees what it holds of the target itself, not of what it stands on; nothing where it holds nothing. */
  unload(target: Target): Promise<void>
  /**
   * Sends a request; resolves with the whole answer, or with the first bytes of a stream. Throws a ReplicaFailure where
   * another replica may do better, any other ApiError where it would say the same.
   */
  send(ask: Ask, signal: AbortSignal): Promise<Answer>
  /** Tells when it has become able to take more. */
  onFree(tell: () => void): void
}

/** The weights could not be loaded; the service's log says why. */
export class LoadFailure extends ApiError {
  constructor() {
    super('engine_failed', 'The model could not be loaded into the engine. The log of the service has the reason.')
  }
}

/**
 * The replica failed, not the request. `lost` where it had the request already: one that kills its server must not kill
 * them all.
 */
export class ReplicaFailure extends ApiError {
  readonly lost: boolean

  constructor(
    code: ErrorCode,
    message: string,
    { lost = false, details }: { lost?: boolean; details?: Record<string, unknown> } = {},
  ) {
    super(code, message, details ? { details } : {})
    this.lost = lost
  }
}
