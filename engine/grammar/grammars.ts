// Structured output: sessions that say which tokens may come next, so that what a model writes follows a grammar. All
// work is done in worker threads.
import { createHash } from 'node:crypto'
import { ApiError } from '../../contract/errors.ts'
import { writeEbnf } from './ebnf.ts'
import { addJsonRules } from './json-rules.ts'
import { prune, type Rules, resolveTag, rule } from './rules.ts'
import { heavyPlaces } from './schema-check.ts'
import { schemaRules } from './schema-rules.ts'
import type { GrammarSpec } from './session.ts'
import { readVocab } from './session-memory.ts'
import { createVocabGrammars, defaultLimits, type GrammarLimits, type VocabGrammars } from './vocab-grammars.ts'
import type { GrammarSource } from './worker-messages.ts'

export type { GrammarSpec }

/** A model's tokens. One object per model, as what is made for it is kept by it. */
export type GrammarVocab = {
  size: number
  /** Bytes of each token, empty for control tokens. */
  bytes(token: number): Uint8Array
  isEndOfGeneration(token: number): boolean
}

export type GrammarSession = {
  /**
   * The tokens that may come next: bit i % 32 of word i / 32, in memory that is valid until the next `accept`.
   * End-of-generation tokens are in it exactly where the text is complete; where nothing else is, the text has ended.
   * Null: not ready within `wait_ms` (the thread sleeps that long at most); ask again. Throws ApiError where the
   * session has failed: `schema_not_enforceable`, `engine_failed`.
   */
  mask(wait_ms: number): Uint32Array | null
  /** The token that was chosen. Its successor's mask is worked out meanwhile. */
  accept(token: number): void
  close(): void
}

export type Grammars = {
  /**
   * Checks, compiles (or finds compiled) and opens. Accounts take turns at compiling. Throws ApiError:
   * `schema_not_enforceable`, with what to change; `overloaded`, when too many costly grammars are in use, or of the
   * account wait to be compiled.
   */
  open(vocab: GrammarVocab, spec: GrammarSpec, signal?: AbortSignal, account?: string): Promise<GrammarSession>
  close(): Promise<void>
}

/** `options`: other bounds than the defaults, which are in `vocab-grammars.ts`. */
export function createGrammars(options: Partial<GrammarLimits> = {}): Grammars {
  const limits = { ...defaultLimits, ...options }
  const byVocab = new WeakMap<GrammarVocab, Promise<VocabGrammars>>()
  const all = new Set<VocabGrammars>()
  let sweeping: NodeJS.Timeout | undefined
  let isClosed = false

  const sweep = (): void => {
    let running = false
    for (const one of all) running = one.sweep() || running
    if (running) return
    clearInterval(sweeping)
    sweeping = undefined
  }

  const forVocab = (vocab: GrammarVocab): Promise<VocabGrammars> => {
    let made = byVocab.get(vocab)
    if (!made) {
      made = readVocab(vocab).then((data) => {
        const one = createVocabGrammars(data, limits)
        all.add(one)
        return one
      })
      byVocab.set(vocab, made)
    }
    return made
  }

  return {
    async open(vocab, spec, signal, account = '') {
      signal?.throwIfAborted()
      const source = sourceOf(spec)
      const one = await forVocab(vocab)
      if (isClosed) throw new ApiError('shutting_down', 'The engine is stopping.')
      sweeping ??= setInterval(sweep, Math.min(5_000, limits.idle_ms)).unref()
      return one.open({ ...source, account, isTrusted: spec.kind === 'json_object' }, signal)
    },
    async close() {
      isClosed = true
      clearInterval(sweeping)
      await Promise.all([...all].map((one) => one.end()))
    },
  }
}

function sourceOf(spec: GrammarSpec): { key: string; source: GrammarSource; heavyPlaces: () => string[] } {
  const source: GrammarSource =
    spec.kind === 'structural_tag'
      ? { kind: 'tag', tag: resolveTag(spec.tag) }
      : { kind: 'ebnf', ebnf: writeEbnf(spec.kind === 'json_object' ? objectRules() : schemaRules(spec.schema)) }
  const key = createHash('sha256').update(JSON.stringify(source)).digest('base64')
  return {
    key,
    source,
    heavyPlaces: () =>
      heavyPlaces(spec.kind === 'structural_tag' ? spec.tag : spec.kind === 'json_schema' ? spec.schema : {}),
  }
}

function objectRules(): Rules {
  const rules: Rules = new Map()
  addJsonRules(rules)
  rules.set('root', rule('object'))
  return prune(rules)!
}
