import { ApiError } from '../../contract/errors.ts'
import type { GrammarWorker, SessionState } from './host.ts'
import { failed, ready, stateWord, working } from './session-memory.ts'
import type { GrammarSource } from './worker-messages.ts'

export interface GrammarSession {
  /** What it is made of. */
  readonly source: GrammarSource
  /**
   * Mask of the tokens that may come next: bit i % 32 of word i / 32. The memory is valid until the next `accept`. End
   * tokens are in the mask exactly if the text is complete; if nothing else is, the text has ended. Blocks the thread
   * for up to `wait_ms`. Returns null if the mask is not ready by then: ask again. Throws ApiError
   * `schema_not_enforceable` or `engine_failed` if the session has failed.
   */
  mask(wait_ms: number): Uint32Array | null
  /** Accepts the sampled token. The worker computes the next mask meanwhile. */
  accept(token: number): void
  close(): void
}

/** A session with its current worker. Null while it moves to another worker. */
export type WorkerSession = GrammarSession &
  SessionState & { worker: GrammarWorker | null; readonly isClosed: boolean; fail(error: ApiError): void }

export function createSession(initial: SessionState, source: GrammarSource, onClose: () => void): WorkerSession {
  const { state, mask } = initial.memory
  let error: ApiError | null = null
  let isClosed = false

  const session: WorkerSession = {
    ...initial,
    source,
    worker: null,
    get isClosed() {
      return isClosed
    },
    fail(reason) {
      error ??= reason
    },
    mask(wait_ms) {
      const deadline = performance.now() + wait_ms
      for (;;) {
        if (error) throw error
        const word = Atomics.load(state, 0)
        if ((word & 3) === ready) return mask
        if ((word & 3) === failed)
          throw new ApiError('engine_failed', 'The text left its grammar, or the model has no token that continues it.')
        // Timers may be late while the thread is busy with masks, so check the worker here too.
        session.worker?.check()
        const left_ms = deadline - performance.now()
        if (left_ms <= 0) return null
        Atomics.wait(state, 0, word, left_ms)
      }
    },
    accept(token) {
      session.tokens.push(token)
      Atomics.store(state, 0, stateWord(session.tokens.length, working))
      session.worker?.accept(session, token)
    },
    close() {
      if (isClosed) return
      isClosed = true
      onClose()
    },
  }
  return session
}

// Constraint on an answer while it is decoded.

/**
 * `tag` is XGrammar's structural tag: `{ type: 'structural_tag', format }`. `relaxed` stands in for it if it is too
 * costly or cannot be enforced.
 */
export type GrammarSpec =
  | { kind: 'json_object' }
  | { kind: 'json_schema'; schema: Record<string, unknown> }
  | { kind: 'structural_tag'; tag: object; schemas?: readonly NamedSchema[]; relaxed?: GrammarSpec }

/** A schema of the request, for errors. `param`: the field that has it. */
export interface NamedSchema {
  of: string
  param: string
  schema: unknown
}
