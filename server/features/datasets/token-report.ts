// The token part of a validation: token counts for a base, and the rows that the base cannot learn from.
import { createReadStream } from 'node:fs'
import type { Validation } from '../../../contract/datasets.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import { type LocalBase, requireRowTokens, type TrainableBase, writesTools } from '../hub/index.ts'
import { describeProblem, type Issue } from './check-rows.ts'
import { promptsAlone } from './refusals.ts'
import { maxListed } from './row-comparison.ts'
import type { Problem } from './row-problem.ts'
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
  if (objectiveOf(dataset) === 'reinforcement')
    return { ...structure, tokens_unknown: promptsAlone(dataset.id).message }
  try {
    const counted = await count(dependencies, dataset, base, max_length, requester)
    return counted.rows + counted.refused_rows === 0 ? structure : report(structure, base, counted, dataset)
  } catch (error) {
    if (isUnknown(error)) return { ...structure, tokens_unknown: error.message }
    throw error
  }
}

/** Below so many tokens the template's own text may leave no room for an answer. */
const shortRow = 64
/** The part of a file of rows that is searched for tools: the trainer finds later ones. */
const searched_bytes = 64e6

/**
 * Throws dataset_invalid if the check of a dataset's rows says that a training would refuse them, or learn nothing of
 * any: with what it has counted, and where that is likely (very short rows, tools with a base whose template writes
 * none), by counting now. `requestedLength`: the length that the job asks for, if it does.
 */
export async function requireLearnable(
  dependencies: Dependencies,
  dataset: store.DatasetRow,
  base: TrainableBase,
  requestedLength: number | undefined,
  requester: Requester,
): Promise<void> {
  const max_length = requireRowTokens(base, requestedLength, 'max_length')
  const suspect =
    max_length <= shortRow ||
    (!writesTools(base.hf) && (await namesTools(await dependencies.artifacts.ensureLocal(rowsKey(dataset.id)))))
  const counted = suspect
    ? await count(dependencies, dataset, base, max_length, requester).catch((error) => {
        // The trainer refuses what cannot be counted now.
        if (isUnknown(error)) return undefined
        throw error
      })
    : await cachedCount(dependencies, dataset, base, max_length)
  if (!counted || counted.rows + counted.refused_rows === 0) return
  const { refused, no_learned } = counted
  if (refused[0])
    throw new ApiError(
      'dataset_invalid',
      `${base.id} cannot learn rows of '${dataset.id}' (${counted.refused_rows} of ` +
        `${counted.rows + counted.refused_rows}). Line ${refused[0].line}: ` +
        refused[0].message,
      { details: { line: refused[0].line, rows: counted.refused_rows } },
    )
  if (counted.no_learned_rows === counted.rows && no_learned[0])
    throw new ApiError(
      'dataset_invalid',
      `${base.id} would learn nothing: no row of '${dataset.id}' has an answer within max_length, which is ` +
        `${max_length} tokens. Raise max_length, or shorten what comes before the answers.`,
      { details: { field: 'config.training_config.max_length', max_length } },
    )
}

/** Whether rows in the canonical form have tools, or calls of tools. In the text of a message the marks are escaped. */
async function namesTools(file: string): Promise<boolean> {
  let end = ''
  for await (const chunk of createReadStream(file, { encoding: 'latin1', end: searched_bytes })) {
    const text = end + chunk
    if (/"(tools|tool_calls)":/.test(text)) return true
    end = text.slice(-16)
  }
  return false
}

const isUnknown = (error: unknown): error is Error =>
  error instanceof CountStopped || (error instanceof ApiError && error.code === 'training_not_ready')

async function cachedCount(
  { db, tokens }: Pick<Dependencies, 'db' | 'tokens'>,
  dataset: store.DatasetRow,
  base: LocalBase,
  max_length: number,
): Promise<TokenCount | undefined> {
  const cached = TokenCount.safeParse(JSON.parse((await store.tokensOf(db, dataset.id, base.id)) ?? 'null')).data
  return cached?.max_length === max_length && cached.parse_control_tokens === tokens.parse_control_tokens
    ? cached
    : undefined
}

/** Counts are cached per base, and redone for another `max_length` or another setting of `parse_control_tokens`. */
async function count(
  { db, artifacts, tokens }: Dependencies,
  dataset: store.DatasetRow,
  base: LocalBase,
  max_length: number,
  requester: Requester,
): Promise<TokenCount> {
  const findCached = () => cachedCount({ db, tokens }, dataset, base, max_length)
  const cached = await findCached()
  if (cached) return cached
  const rows = await artifacts.ensureLocal(rowsKey(dataset.id))
  const objective = objectiveOf(dataset)
  const counted = await tokens.count(requester, { hf: base.hf, rows, max_length, objective }, findCached)
  await store.saveTokens(db, dataset.id, base.id, JSON.stringify(counted))
  return counted
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
      : `nothing of its answers is within the first ${max_length}, at which rows are cut: it teaches nothing. ` +
        'Shorten what comes before the answer, or raise max_length.'
  }${pictures ? noPictureCut : ''}`,
]

const noPictureCut = ' No picture is cut either: a row whose pictures do not all fit is left out. Smaller ones may fit.'

const lostThoughts = (base: LocalBase): Problem => [
  'thoughts_not_taught',
  `has thoughts (reasoning_content), and the chat template of ${base.id} has no place for them, or asks for answers ` +
    'without any: the answer is taught without them. Choose a base that thinks, or write them into the answer.',
]

function report(structure: Validation, base: LocalBase, counted: TokenCount, dataset: store.DatasetRow): Validation {
  const { tokens, rows, cut, no_learned, refused, parse_control_tokens: _, ...others } = counted
  const { lost_thoughts, lost_thoughts_rows, ...figures } = others
  const withoutThoughts = lost_thoughts.map(({ line }) => describeProblem(line, lostThoughts(base)).issue)
  const withoutLearnedTokens = no_learned.map((row) =>
    describeProblem(
      row.line,
      noLearnedTokens(row, counted.max_length, objectiveOf(dataset) !== 'sft', pictureCountOf(dataset) > 0),
    ),
  )
  const problems = refused.map(({ line, message }) => describeProblem(line, ['not_for_this_base', `: ${message}`]))
  const nothingLearned = rows > 0 && counted.no_learned_rows === rows
  const wrong = nothingLearned ? [...problems, ...withoutLearnedTokens] : problems
  const error_count = (structure.error_count ?? 0) + counted.refused_rows + (nothingLearned ? rows : 0)
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
    warning_count: (structure.warning_count ?? 0) + (nothingLearned ? 0 : counted.no_learned_rows) + lost_thoughts_rows,
    ...(rows > 0 && {
      avg_tokens_per_sample: Math.round((tokens / rows) * 10) / 10,
      tokens: { model_id: base.id, total: tokens, counted_rows: rows, ...figures, cut },
    }),
  }
}

const sortedIssues = (issues: Issue[]) => issues.sort((a, b) => a.line - b.line).slice(0, maxListed)
