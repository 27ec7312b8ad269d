// Templates of graders: `{{item.…}}` is a field of the row, `{{sample.…}}` a part of the answer. Nothing else is
// evaluated.

import type { failureKinds, JudgeUsage } from '../../../../contract/graders.ts'

/** Longest text that a template may become, in characters; the messages of a request together. */
export const textMax = 1_000_000

export interface Values {
  item: Record<string, unknown>
  sample?: Record<string, unknown>
}

/** The answer lacks what a grader reads, such as a field of its JSON: it scores 0. */
export class GraderError extends Error {}

export type FailureKind = (typeof failureKinds)[number]

/** The grader itself failed, or its row lacks what it reads: the answer has no score. */
export class GraderFailure extends GraderError {
  readonly kind: FailureKind
  /** What its judge took all the same. */
  readonly judge: JudgeUsage | undefined
  constructor(kind: FailureKind, message: string, judge?: JudgeUsage) {
    super(message)
    this.kind = kind
    this.judge = judge
  }
}

/** Grading as a whole ends: too many graders fail, or the budget of its judges is spent. */
export class GradingStopped extends GraderError {
  readonly code: 'graders_failed' | 'judge_budget_spent'
  constructor(code: 'graders_failed' | 'judge_budget_spent', message: string) {
    super(message)
    this.code = code
  }
}

const path = /^(item|sample)(\.[^\s.{}]+)*$/

interface Expression {
  name: string
  /** Where it begins and ends in the template. */
  from: number
  to: number
}

/**
 * The expressions of a template: `{{`, a name without braces, `}}`. Reads each character at most twice: no regular
 * expression finds them in linear time, as a name may be any run of spaces.
 */
function* expressionsIn(template: string): Generator<Expression> {
  const brace = /[{}]/g
  let from = template.indexOf('{{')
  while (from !== -1) {
    brace.lastIndex = from + 2
    const at = brace.exec(template)?.index
    if (at === undefined) return
    const isExpression = template.startsWith('}}', at)
    if (isExpression) yield { name: template.slice(from + 2, at).trim(), from, to: at + 2 }
    from = template.indexOf('{{', isExpression ? at + 2 : at - 1)
  }
}

/** The first expression of a template that names neither the row nor the answer, or undefined. */
export function templateProblem(template: string): string | undefined {
  for (const { name } of expressionsIn(template))
    if (!path.test(name)) return `'{{${name.slice(0, 60)}}}' must begin with item. or sample.`
  return undefined
}

/** Fills a template. Throws GraderError for a field that is missing, or a text that is longer than `length_max`. */
export function fill(template: string, values: Values, length_max = textMax): string {
  let length = template.length
  let filled = ''
  let end = 0
  for (const { name, from, to } of expressionsIn(template)) {
    const text = textOf(valueAt(name, values))
    length += text.length
    if (length > length_max) break
    filled += template.slice(end, from) + text
    end = to
  }
  if (length > length_max) throw new GraderError(`A template becomes longer than ${textMax} characters.`)
  return filled + template.slice(end)
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** The value of a name such as `item.input`. Throws GraderError for one that is missing, GraderFailure if the row's. */
export function valueAt(name: string, values: Values): unknown {
  const problem = (message: string) =>
    name.startsWith('sample') ? new GraderError(message) : new GraderFailure('row', message)
  let value: unknown = values
  for (const part of name.split('.')) {
    // Own fields alone: a row cannot reach what every object has.
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part))
      throw problem(`There is no '${name}' here.`)
    value = (value as Record<string, unknown>)[part]
  }
  if (value === undefined || value === null) throw problem(`'${name}' is empty here.`)
  return value
}
