// Refuses graders that could never score: before an evaluation begins, not at its first row.
import { Ajv } from 'ajv'
import { ApiError } from '../../contract/errors.ts'
import type { CreateEvaluation } from '../../contract/evaluations.ts'
import type { Grader, SimpleGrader } from '../../contract/graders.ts'
import { compileFormula } from './graders/formula.ts'
import { templateProblem } from './graders/template.ts'

/** Longest schema, in characters of JSON. */
const schemaMax = 100_000

/** Throws invalid_request with the field of the first problem. */
export function checkGraders(graders: readonly Grader[], template: CreateEvaluation['template']): void {
  for (const [index, { content }] of (template ?? []).entries()) checkTemplate(`template.${index}.content`, content)
  for (const [index, grader] of graders.entries()) {
    const at = `graders.${index}`
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
      checkTemplate(`${at}.input.${index}.content`, typeof content === 'string' ? content : content.text)
  else if ('input' in grader) checkTemplate(`${at}.input`, grader.input)
  if ('reference' in grader) checkTemplate(`${at}.reference`, grader.reference)
  switch (grader.type) {
    case 'regex':
      attempt(`${at}.pattern`, () => new RegExp(grader.pattern, 'u'))
      break
    case 'json_schema':
      if (JSON.stringify(grader.schema).length > schemaMax)
        throw refused(`${at}.schema`, `is longer than ${schemaMax} characters`)
      attempt(`${at}.schema`, () =>
        new Ajv({ strict: false, validateFormats: false }).validateSchema(grader.schema, true),
      )
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
