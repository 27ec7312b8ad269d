// Structured output: sessions return the mask of tokens that may come next, so that the output follows a grammar.
// Worker threads do all the work.
import { createHash } from 'node:crypto'
import { ApiError } from '../../contract/errors.ts'
import { writeEbnf } from './ebnf.ts'
import { addJsonRules } from './json-rules.ts'
import { prune, type Rules, rule } from './rules.ts'
import { costlyPaths } from './schema-check.ts'
import { schemaRules } from './schema-rules.ts'
import type { GrammarSession, GrammarSpec, NamedSchema } from './session.ts'
import { type GrammarVocab, readVocab } from './session-memory.ts'
import { resolveTag } from './structural-tag.ts'
import { defaultLimits, type GrammarLimits, type GrammarRequest, VocabGrammars } from './vocab-grammars.ts'
import type { GrammarSource } from './worker-messages.ts'

export type { GrammarSession, GrammarSpec, GrammarVocab }

export interface Grammars {
  /**
   * Validates and compiles a grammar (or finds it in the cache) and opens a session: of `relaxed` where there is one
   * and the grammar is too costly. Waits, accounts in turn, for its trial and for a worker of a costly one. Throws
   * ApiError: `schema_not_enforceable`, with what to change; `overloaded`, if too many of the account wait.
   */
  open(vocab: GrammarVocab, spec: GrammarSpec, signal?: AbortSignal, account?: string): Promise<GrammarSession>
  close(): Promise<void>
}

/** `options` override the default limits of `vocab-grammars.ts`. */
export function createGrammars(options: Partial<GrammarLimits> = {}): Grammars {
  const limits = { ...defaultLimits, ...options }
  const byVocab = new WeakMap<GrammarVocab, Promise<VocabGrammars>>()
  const vocabGrammars = new Set<VocabGrammars>()
  let sweeping: NodeJS.Timeout | undefined
  let isClosed = false

  const sweep = (): void => {
    let running = false
    for (const one of vocabGrammars) running = one.sweep() || running
    if (running) return
    clearInterval(sweeping)
    sweeping = undefined
  }

  const forVocab = (vocab: GrammarVocab): Promise<VocabGrammars> => {
    let pending = byVocab.get(vocab)
    if (!pending) {
      pending = readVocab(vocab).then((data) => {
        const one = new VocabGrammars(data, limits)
        vocabGrammars.add(one)
        return one
      })
      byVocab.set(vocab, pending)
    }
    return pending
  }

  const openOne = async (vocab: GrammarVocab, spec: GrammarSpec, signal: AbortSignal | undefined, account: string) => {
    const source = sourceOf(spec)
    const one = await forVocab(vocab)
    if (isClosed) throw new ApiError('shutting_down', 'The engine is stopping.')
    sweeping ??= setInterval(sweep, Math.min(5_000, limits.idle_ms)).unref()
    return one.open({ ...source, account, isTrusted: spec.kind === 'json_object' }, signal)
  }

  return {
    async open(vocab, spec, signal, account = '') {
      signal?.throwIfAborted()
      try {
        return await openOne(vocab, spec, signal, account)
      } catch (error) {
        const relaxed = spec.kind === 'structural_tag' && spec.relaxed
        if (!relaxed || !(error instanceof ApiError) || error.code !== 'schema_not_enforceable') throw error
        return await this.open(vocab, relaxed, signal, account)
      }
    },
    async close() {
      isClosed = true
      clearInterval(sweeping)
      await Promise.all([...vocabGrammars].map((one) => one.end()))
    },
  }
}

function sourceOf(spec: GrammarSpec): Pick<GrammarRequest, 'key' | 'source' | 'mayTakeLong' | 'costlyParts'> {
  const source: GrammarSource =
    spec.kind === 'structural_tag'
      ? { kind: 'tag', tag: resolveTag(spec.tag) }
      : { kind: 'ebnf', ebnf: writeEbnf(spec.kind === 'json_object' ? objectRules() : schemaRules(spec.schema)) }
  const mayTakeLong = spec.kind !== 'structural_tag' || spec.relaxed === undefined
  const key = createHash('sha256')
    .update(JSON.stringify([source, mayTakeLong]))
    .digest('base64')
  return { key, source, mayTakeLong, costlyParts: () => costlyParts(schemasOf(spec)) }
}

function schemasOf(spec: GrammarSpec): readonly NamedSchema[] {
  if (spec.kind === 'json_object') return []
  if (spec.kind === 'json_schema') return [{ of: '', param: '', schema: spec.schema }]
  return spec.schemas ?? [{ of: '', param: '', schema: spec.tag }]
}

/** The schemas that most likely make a grammar costly: all of them where none looks so. */
function costlyParts(schemas: readonly NamedSchema[]): (NamedSchema & { paths: string[] })[] {
  const parts = schemas.map((each) => ({ ...each, paths: costlyPaths(each.schema) }))
  const costly = parts.filter(({ paths }) => paths.length > 0)
  return costly.length > 0 ? costly : parts
}

function objectRules(): Rules {
  const rules: Rules = new Map()
  addJsonRules(rules)
  rules.set('root', rule('object'))
  return prune(rules)!
}
