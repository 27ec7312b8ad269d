// What the sandbox and its child process tell each other: lines of JSON.

export type PythonReply =
  | { ready: true }
  | { id: number; score: number }
  | { id: number; loaded: true }
  | { id: number; error: string; kind: 'runtime' | 'form' | 'timeout' | 'memory' }
  /** Python is broken: the child ends. */
  | { fatal: string }

export type PythonRequest =
  | { id: number; load: string }
  | { id: number; grade: { sample: unknown; item: unknown } }
  /** Ends what runs by an exception. */
  | { interrupt: true }
