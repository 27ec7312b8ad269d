// What validation says of a dataset's tokens: the figures, and the rows that the base cannot learn from.
import type { Validation } from '../../contract/datasets.ts'
import type { Db } from '../db/open.ts'
import { type LocalBase, requireRowTokens } from '../hub/service.ts'
import { type Issue, maxListed } from './rows.ts'
import * as store from './store.ts'
import { filesOf } from './store.ts'
import { type Asker, CountStopped, TokenCount, type Tokens } from './tokens.ts'

interface Parts {
  db: Db
  dataDir: string
  tokens: Tokens
}

/**
 * Adds what the base makes of the dataset to what its structure says. Throws invalid_request for a `max_length` beyond
 * the base's context.
 */
export async function withTokens(
  parts: Parts,
  told: Validation,
  dataset: store.DatasetRow,
  base: LocalBase,
  asked: number | undefined,
  asker: Asker,
): Promise<Validation> {
  const max_length = requireRowTokens(base, asked, 'max_length')
  try {
    const found = await count(parts, dataset, base, max_length, asker)
    return found.rows + found.refused_rows === 0 ? told : report(told, base, found)
  } catch (error) {
    if (error instanceof CountStopped) return { ...told, tokens_unknown: error.message }
    throw error
  }
}

/** Counted once for a base; anew where rows are cut at another length, or are parsed otherwise. */
async function count(
  { db, dataDir, tokens }: Parts,
  dataset: store.DatasetRow,
  base: LocalBase,
  max_length: number,
  asker: Asker,
): Promise<TokenCount> {
  const known = async () => {
    const found = TokenCount.safeParse(JSON.parse((await store.tokensOf(db, dataset.id, base.id)) ?? 'null')).data
    return found?.max_length === max_length && found.parse_control_tokens === tokens.parse_control_tokens
      ? found
      : undefined
  }
  const before = await known()
  if (before) return before
  const rows = filesOf(dataDir, dataset.id, dataset.format).rows
  // Rows of a file that was converted say where they stood in it.
  const found = await tokens.count(
    asker,
    { hf: base.hf, rows, max_length, source_lines: dataset.format !== 'jsonl' },
    known,
  )
  await store.saveTokens(db, dataset.id, base.id, JSON.stringify(found))
  return found
}

function report(told: Validation, base: LocalBase, found: TokenCount): Validation {
  const { tokens, rows, cut, no_learned, refused, parse_control_tokens: _, ...figures } = found
  const unlearned = no_learned.map(({ line, tokens, at_least }) => ({
    line,
    code: 'no_learned_tokens',
    message: `has ${at_least ? 'more than ' : ''}${tokens} tokens, and nothing of its answers is within the first ${found.max_length}, at which rows are cut: it teaches nothing. Shorten what comes before the answer, or raise max_length.`,
  }))
  const problems = refused.map(({ line, message }) => ({ line, code: 'not_for_this_base', message: `: ${message}` }))
  const nothingLearned = rows > 0 && found.no_learned_rows === rows
  const wrong = nothingLearned ? [...problems, ...unlearned] : problems
  const error_count = (told.error_count ?? 0) + found.refused_rows + (nothingLearned ? rows : 0)
  const issues = inOrder([...(told.issues ?? []), ...wrong])
  return {
    ...told,
    valid: error_count === 0,
    ...(error_count > 0 && {
      error_count,
      // What a list of before this version lacks stands in its sentences alone.
      errors:
        told.errors && !told.issues
          ? told.errors
          : issues.map(({ line, message }) => `line ${line}${message.startsWith(':') ? '' : ' '}${message}`),
    }),
    issues,
    warnings: inOrder([...(told.warnings ?? []), ...(nothingLearned ? [] : unlearned)]),
    warning_count: (told.warning_count ?? 0) + (nothingLearned ? 0 : found.no_learned_rows),
    ...(rows > 0 && {
      avg_tokens_per_sample: Math.round((tokens / rows) * 10) / 10,
      tokens: { model_id: base.id, total: tokens, counted_rows: rows, ...figures, cut },
    }),
  }
}

const inOrder = (issues: Issue[]) => issues.sort((a, b) => a.line - b.line).slice(0, maxListed)
