import type { VocabData } from './session-memory.ts'

/** A grammar in XGrammar's input formats. */
export type GrammarSource = { kind: 'ebnf'; ebnf: string } | { kind: 'tag'; tag: object }

export interface WorkerData {
  vocab: VocabData
  control: SharedArrayBuffer
  memory_bytes: number
}

/** Each message is a job with a unique number. Jobs of a session carry the session's number. */
export type ToWorker =
  | { kind: 'compile'; job: number; grammar: string; source: GrammarSource }
  | { kind: 'probe'; job: number; grammar: string; masks: number; total_ms: number }
  | { kind: 'open'; job: number; grammar: string; memory: SharedArrayBuffer; tokens: number[] }
  | { kind: 'accept'; job: number; token: number }
  | { kind: 'close'; job: number }
  | { kind: 'forget'; job: number; grammar: string }

export type FromWorker =
  | { kind: 'started' }
  | {
      kind: 'done'
      job: number
      elapsed_ms: number
      /** Slowest mask of a probe. */
      slowest_ms?: number
      /** Whether a probe found no allowed token. */
      stuck?: boolean
    }
  | { kind: 'failed'; job: number; reason: string }
