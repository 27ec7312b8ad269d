// The token part of a validation: token counts for a base, and the rows that the base cannot learn from.
import type { Validation } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import type { Db } from '../db/open.ts'
import { type LocalBase, requireRowTokens } from '../hub/index.ts'
import type { Artifacts } from '../storage/objects/index.ts'
import { maxListed } from './row-comparison.ts'
import type { Problem } from './row-message.ts'
import { describeProblem, type Issue } from './rows.ts'
import * as store from './store.ts'
import { objectiveOf, pictureCountOf, rowsKey } from './store.ts'
import { CountStopped, type Requester, TokenCount, type Tokens } from './tokens.ts'

interface Dependencies {
  db: Db
  artifacts: Artifacts
  tokens: Tokens
}

/**
 * Adds token counts for a base to a structural validation. Throws invalid_request if `max_length` exceeds the context.
 */
export async function withTokens(
  dependencies: Dependencies,
  structure: Validation,
  dataset: store.DatasetRow,
  base: LocalBase,
  requestedLength: number | undefined,
  requester: Requester,
): Promise<Validation> {
  const max_length = requireRowTokens(base, requestedLength, 'max_length')
  try {
    const found = await count(dependencies, dataset, base, max_length, requester)
    return found.rows + found.refused_rows === 0 ? structure : report(structure, base, found, dataset)
  } catch (error) {
    const unknown = error instanceof CountStopped || (error instanceof ApiError && error.code === 'training_not_ready')
    if (unknown) return { ...structure, tokens_unknown: error.message }
    throw error
  }
}

/** Counts are cached per base, and redone for another `max_length` or another setting of `parse_control_tokens`. */
async function count(
  { db, artifacts, tokens }: Dependencies,
  dataset: store.DatasetRow,
  base: LocalBase,
  max_length: number,
  requester: Requester,
): Promise<TokenCount> {
  const findCached = async () => {
    const found = TokenCount.safeParse(JSON.parse((await store.tokensOf(db, dataset.id, base.id)) ?? 'null')).data
    return found?.max_length === max_length && found.parse_control_tokens === tokens.parse_control_tokens
      ? found
      : undefined
  }
  const cached = await findCached()
  if (cached) return cached
  const rows = await artifacts.ensureLocal(rowsKey(dataset.id))
  const objective = objectiveOf(dataset)
  const found = await tokens.count(requester, { hf: base.hf, rows, max_length, objective }, findCached)
  await store.saveTokens(db, dataset.id, base.id, JSON.stringify(found))
  return found
}

const noLearnedTokens = (
  { tokens, at_least }: TokenCount['no_learned'][number],
  max_length: number,
  preferences: boolean,
  pictures: boolean,
): Problem => [
  'no_learned_tokens',
  `has ${at_least ? 'more than ' : ''}${tokens} tokens, and ${
    preferences
      ? `one of its answers is longer than ${max_length}: preferences are cut at the front of their prompt, never in ` +
        'an answer, so the row is left out. Shorten the answer, or raise max_length.'
      : `nothing of its answers is within the first ${max_length}, at which rows are cut: it teaches nothing. Shorten ` +
        'what comes before the answer, or raise max_length.'
  }${pictures ? ' No picture is cut either: a row whose pictures do not all fit is left out. Smaller ones may fit.' : ''}`,
]

const lostThoughts = (base: LocalBase): Problem => [
  'thoughts_not_taught',
  `has thoughts (reasoning_content), and the chat template of ${base.id} has no place for them: the answer is taught ` +
    'without them. Choose a base that thinks, or write them into the answer.',
]

function report(structure: Validation, base: LocalBase, found: TokenCount, dataset: store.DatasetRow): Validation {
  const { tokens, rows, cut, no_learned, refused, parse_control_tokens: _, ...others } = found
  const { lost_thoughts, lost_thoughts_rows, ...figures } = others
  const withoutThoughts = lost_thoughts.map(({ line }) => describeProblem(line, lostThoughts(base)).issue)
  const withoutLearnedTokens = no_learned.map((row) =>
    describeProblem(
      row.line,
      noLearnedTokens(row, found.max_length, objectiveOf(dataset) !== 'sft', pictureCountOf(dataset) > 0),
    ),
  )
  const problems = refused.map(({ line, message }) => describeProblem(line, ['not_for_this_base', `: ${message}`]))
  const nothingLearned = rows > 0 && found.no_learned_rows === rows
  const wrong = nothingLearned ? [...problems, ...withoutLearnedTokens] : problems
  const error_count = (structure.error_count ?? 0) + found.refused_rows + (nothingLearned ? rows : 0)
  const structural = (structure.issues ?? []).map((issue, index) => ({ issue, error: structure.errors![index]! }))
  const listed = [...structural, ...wrong].sort((a, b) => a.issue.line - b.issue.line).slice(0, maxListed)
  return {
    ...structure,
    valid: error_count === 0,
    ...(error_count > 0 && {
      error_count,
      // Checks stored by older versions have only the sentences in `errors`, not the `issues`.
      errors: structure.errors && !structure.issues ? structure.errors : listed.map(({ error }) => error),
    }),
    issues: listed.map(({ issue }) => issue),
    warnings: sortedIssues([
      ...(structure.warnings ?? []),
      ...(nothingLearned ? [] : withoutLearnedTokens.map(({ issue }) => issue)),
      ...withoutThoughts,
    ]),
    warning_count: (structure.warning_count ?? 0) + (nothingLearned ? 0 : found.no_learned_rows) + lost_thoughts_rows,
    ...(rows > 0 && {
      avg_tokens_per_sample: Math.round((tokens / rows) * 10) / 10,
      tokens: { model_id: base.id, total: tokens, counted_rows: rows, ...figures, cut },
    }),
  }
}

const sortedIssues = (issues: Issue[]) => issues.sort((a, b) => a.line - b.line).slice(0, maxListed)
