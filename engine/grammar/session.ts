import { ApiError } from '../../contract/errors.ts'
import type { GrammarSession } from './grammars.ts'
import type { Host, HostedSession } from './host.ts'
import { failed, ready, stateWord, working } from './session-memory.ts'

/** A session with the worker that serves it at the time; without one while it moves to another. */
export type HeldSession = GrammarSession &
  HostedSession & { host: Host | null; readonly isClosed: boolean; fail(error: ApiError): void }

export function holdSession(hosted: HostedSession, onClose: () => void): HeldSession {
  const { state, mask } = hosted.memory
  let error: ApiError | null = null
  let isClosed = false

  const session: HeldSession = {
    ...hosted,
    host: null,
    get isClosed() {
      return isClosed
    },
    fail(reason) {
      error ??= reason
    },
    mask(wait_ms) {
      const until = performance.now() + wait_ms
      for (;;) {
        if (error) throw error
        const word = Atomics.load(state, 0)
        if ((word & 3) === ready) return mask
        if ((word & 3) === failed)
          throw new ApiError(
            'engine_failed',
            'The text left its grammar, or the model has no token that goes on in it.',
          )
        // Timers may wait while a busy thread asks for masks; so each question looks after the worker, too.
        session.host?.check()
        const left = until - performance.now()
        if (left <= 0) return null
        Atomics.wait(state, 0, word, left)
      }
    },
    accept(token) {
      session.tokens.push(token)
      Atomics.store(state, 0, stateWord(session.tokens.length, working))
      session.host?.accept(session, token)
    },
    close() {
      if (isClosed) return
      isClosed = true
      onClose()
    },
  }
  return session
}

// What an answer is held to while it is decoded.

/** `tag` is XGrammar's structural tag: `{ type: 'structural_tag', format }`. */
export type GrammarSpec =
  | { kind: 'json_object' }
  | { kind: 'json_schema'; schema: Record<string, unknown> }
  | { kind: 'structural_tag'; tag: object }
