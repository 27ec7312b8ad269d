// What the sandbox and its child process tell each other: lines of JSON.

/** One for each call of a request, in their order. `ms`: how long the call took. */
export type CallReply = { id: number; ms: number } & (
  | { score: number }
  | { loaded: true }
  | { error: string; kind: 'runtime' | 'form' | 'timeout' | 'memory' }
)

export type PythonReply =
  | { ready: true }
  | CallReply
  /** Python is broken: the child ends. */
  | { fatal: string }

/** `grade`: the JSON of a sample and an item, for each call. */
export type CallRequest = { id: number } & ({ load: string } | { grade: string[] })

export type PythonRequest =
  | CallRequest
  /** Ends the call of this number by an exception, if it runs still. */
  | { interrupt: number }
