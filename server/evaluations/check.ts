// Refuses graders that could never score: before an evaluation begins, not at its first row.
import { Ajv } from 'ajv'
import { ApiError } from '../../contract/errors.ts'
import type { CreateEvaluation } from '../../contract/evaluations.ts'
import { contentText, type Grader, type SimpleGrader } from '../../contract/graders.ts'
import { compileFormula } from './graders/formula.ts'
import { templateProblem } from './graders/template.ts'

/** Longest schema, in characters of JSON. */
const schemaMax = 100_000

/** Throws invalid_request with the field of the first problem. `field` is where the template is. */
export function checkMessages(template: CreateEvaluation['template'], field = 'template'): void {
  if (!Array.isArray(template)) return
  for (const [index, { content }] of template.entries())
    checkTemplate(`${field}.${index}.content`, contentText(content))
}

/** Throws invalid_request with the field of the first problem. `field` is where the graders are. */
export function checkGraders(graders: readonly Grader[], field = 'graders'): void {
  for (const [index, grader] of graders.entries()) {
    const at = `${field}.${index}`
    if (grader.type !== 'multi') {
      checkSimple(at, grader)
      continue
    }
    for (const [name, part] of Object.entries(grader.graders)) checkSimple(`${at}.graders.${name}`, part)
    attempt(`${at}.calculate_output`, () => compileFormula(grader.calculate_output, Object.keys(grader.graders)))
  }
}

function checkSimple(at: string, grader: SimpleGrader): void {
  if (grader.type === 'label_model' || grader.type === 'score_model')
    for (const [index, { content }] of grader.input.entries())
      checkTemplate(`${at}.input.${index}.content`, contentText(content))
  else if ('input' in grader) checkTemplate(`${at}.input`, grader.input)
  if ('reference' in grader) checkTemplate(`${at}.reference`, grader.reference)
  switch (grader.type) {
    case 'regex':
      attempt(`${at}.pattern`, () => new RegExp(grader.pattern, 'u'))
      break
    case 'json_schema':
      checkSchema(grader.schema, `${at}.schema`)
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

/** Throws invalid_request for a JSON Schema that is none. */
export function checkSchema(schema: Record<string, unknown>, field: string): void {
  const text = JSON.stringify(schema)
  if (text.length > schemaMax) throw refused(field, `is longer than ${schemaMax} characters`)
  if (text.includes('"$async"')) throw refused(field, 'may not have $async')
  attempt(field, () => new Ajv({ strict: false, validateFormats: false }).validateSchema(schema, true))
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
export const judgesOf = (graders: readonly Grader[]): string[] => [
  ...new Set(
    graders
      .flatMap((grader): SimpleGrader[] => (grader.type === 'multi' ? Object.values(grader.graders) : [grader]))
      .flatMap((grader) => (grader.type === 'label_model' || grader.type === 'score_model' ? [grader.model] : [])),
  ),
]
