// Refuses graders that could never score: before an evaluation begins, not at its first row.
import { ApiError } from '../../../contract/errors.ts'
import type { CreateEvaluation } from '../../../contract/evaluations.ts'
import { contentText, type Grader, type SimpleGrader } from '../../../contract/graders.ts'
import type { Endpoints } from '../../platform/outbound/signed-post.ts'
import type { CompileCheck } from './graders/compile-check.ts'
import { compileFormula } from './graders/formula.ts'
import type { Compilable } from './graders/local.ts'
import type { PythonGraders, PythonSource } from './graders/python/pool.ts'
import { GraderFailure, templateProblem } from './graders/template.ts'

/** Longest schema, in characters of JSON. */
const schemaMax = 100_000
/** Graders of one evaluation, the parts of `multi` included. */
const gradersMax = 50
/** Python graders of these: each source has a process of its own. */
const pythonMax = 10
/** Longest graders of one evaluation together, in characters of JSON: they are read for each answer. */
const gradersCharactersMax = 300_000

/** A pattern or a schema of the request, and its field. */
interface ToCompile {
  field: string
  compilable: Compilable
}

/** Throws invalid_request with the field of the first problem. `field` is where the template is. */
export function checkMessages(template: CreateEvaluation['template'], field = 'template'): void {
  if (!Array.isArray(template)) return
  for (const [index, { content }] of template.entries())
    checkTemplate(`${field}.${index}.content`, contentText(content))
}

/** What graders are checked with: patterns and schemas compile in a thread, sources load in a sandbox. */
export interface Checks {
  compile: CompileCheck
  python: Pick<PythonGraders, 'check'>
  endpoints: Pick<Endpoints, 'problem'>
}

/**
 * Throws invalid_request, or address_blocked, with the field of the first problem. `field`: where the list of graders
 * is, or the one grader.
 */
export async function checkGraders(
  checks: Checks,
  account_id: string,
  given: readonly Grader[] | Grader,
  field = 'graders',
): Promise<void> {
  const graders = listOf(given)
  const all = allOf(given, field)
  const count = all.length
  if (count > gradersMax)
    throw refused(field, `has ${count} graders with the parts of multi, and may have ${gradersMax}`)
  if (JSON.stringify(graders).length > gradersCharactersMax)
    throw refused(field, `is longer than ${gradersCharactersMax} characters of JSON`)
  const sources = all.filter(([, { type }]) => type === 'python').length
  if (sources > pythonMax) throw refused(field, `has ${sources} python graders, and may have ${pythonMax}`)
  const toCompile: ToCompile[] = []
  for (const [index, grader] of graders.entries()) {
    const at = placeOf(given, field, index)
    if (grader.type !== 'multi') {
      checkSimple(at, grader, toCompile)
      continue
    }
    for (const [name, part] of Object.entries(grader.graders)) checkSimple(`${at}.graders.${name}`, part, toCompile)
    attempt(`${at}.calculate_output`, () => compileFormula(grader.calculate_output, Object.keys(grader.graders)))
  }
  await checkCompiled(checks.compile, account_id, toCompile)
  for (const [at, grader] of all) {
    if (grader.type === 'endpoint') checkEndpoint(checks.endpoints, grader.url, `${at}.url`)
    if (grader.type === 'python')
      await checkPython(checks.python, { account_id, source: grader.source }, `${at}.source`)
  }
}

const listOf = (given: readonly Grader[] | Grader) => ('type' in given ? [given] : given)
const placeOf = (given: readonly Grader[] | Grader, field: string, index: number) =>
  'type' in given ? field : `${field}.${index}`

/** All graders with where they are, the parts of `multi` in its place. */
const allOf = (given: readonly Grader[] | Grader, field: string): [string, SimpleGrader][] =>
  listOf(given).flatMap((grader, index): [string, SimpleGrader][] => {
    const at = placeOf(given, field, index)
    if (grader.type !== 'multi') return [[at, grader]]
    return Object.entries(grader.graders).map(([name, part]) => [`${at}.graders.${name}`, part])
  })

/** Throws invalid_request, or address_blocked, for an address that can never be asked. */
export function checkEndpoint(endpoints: Checks['endpoints'], url: string, field: string): void {
  const problem = endpoints.problem(url)
  if (!problem) return
  throw new ApiError(
    problem.blocked ? 'address_blocked' : 'invalid_request',
    `'${field}': ${problem.message}. Give an https address of the public internet.`,
    { param: field, details: { field } },
  )
}

async function checkPython(python: Checks['python'], grader: PythonSource, field: string): Promise<void> {
  try {
    await python.check(grader)
  } catch (error) {
    if (!(error instanceof GraderFailure)) throw error
    if (error.kind === 'unavailable') throw new ApiError('engine_unavailable', error.message, { param: field })
    throw refused(field, error.message.slice(0, 500))
  }
}

function checkSimple(at: string, grader: SimpleGrader, toCompile: ToCompile[]): void {
  if (grader.type === 'label_model' || grader.type === 'score_model')
    for (const [index, { content }] of grader.input.entries())
      checkTemplate(`${at}.input.${index}.content`, contentText(content))
  else if ('input' in grader) checkTemplate(`${at}.input`, grader.input)
  if ('reference' in grader) checkTemplate(`${at}.reference`, grader.reference)
  switch (grader.type) {
    case 'regex':
      toCompile.push({ field: `${at}.pattern`, compilable: grader })
      break
    case 'json_schema':
      toCompile.push(schemaToCompile(grader.schema, `${at}.schema`))
      break
    case 'label_model': {
      const unknown = grader.passing_labels.find((label) => !grader.labels.includes(label))
      if (unknown !== undefined) throw refused(`${at}.passing_labels`, `has '${unknown}', which is none of the labels`)
      break
    }
    case 'score_model':
      if (grader.range[0] >= grader.range[1]) throw refused(`${at}.range`, 'must begin with the lower score')
      break
  }
}

/** Throws invalid_request for a JSON Schema that cannot be used. */
export async function checkSchema(
  check: CompileCheck,
  account_id: string,
  schema: Record<string, unknown>,
  field: string,
): Promise<void> {
  await checkCompiled(check, account_id, [schemaToCompile(schema, field)])
}

function schemaToCompile(schema: Record<string, unknown>, field: string): ToCompile {
  const text = JSON.stringify(schema)
  if (text.length > schemaMax) throw refused(field, `is longer than ${schemaMax} characters`)
  if (text.includes('"$async"')) throw refused(field, 'may not have $async')
  return { field, compilable: { schema } }
}

async function checkCompiled(check: CompileCheck, account_id: string, toCompile: readonly ToCompile[]): Promise<void> {
  const problem = await check(account_id, toCompile)
  if (problem) throw refused(problem.field, problem.message.slice(0, 300))
}

function checkTemplate(field: string, template: string): void {
  const problem = templateProblem(template)
  if (problem) throw refused(field, problem)
}

function attempt(field: string, work: () => unknown): void {
  try {
    work()
  } catch (error) {
    throw refused(field, (error as Error).message.slice(0, 300))
  }
}

const refused = (field: string, why: string) =>
  new ApiError('invalid_request', `'${field}': ${why.replace(/\.$/, '')}.`, { details: { field }, param: field })

/** The models that judge answers. */
export const judgesOf = (graders: readonly Grader[] | Grader): string[] => [
  ...new Set(
    allOf(graders, '').flatMap(([, grader]) =>
      grader.type === 'label_model' || grader.type === 'score_model' ? [grader.model] : [],
    ),
  ),
]
