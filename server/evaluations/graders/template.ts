// Templates of graders: `{{item.…}}` is a field of the row, `{{sample.…}}` a part of the answer. Nothing else is
// evaluated.

/** Longest text that a template may become, in characters. */
export const textMax = 1_000_000

export interface Values {
  item: Record<string, unknown>
  sample?: Record<string, unknown>
}

/** What is wrong with a grader's use of a row; the row counts as 0. */
export class GraderError extends Error {}

const expression = /\{\{\s*([^{}]*?)\s*\}\}/g
const known = /^(item|sample)(\.[^\s.{}]+)*$/

/** The first expression of a template that names neither the row nor the answer, or undefined. */
export function templateProblem(template: string): string | undefined {
  for (const [, name] of template.matchAll(expression))
    if (!known.test(name!)) return `'{{${name!.slice(0, 60)}}}' must begin with item. or sample.`
  return undefined
}

/** Fills a template. Throws GraderError for a field that is missing, or a text that is too long. */
export function fill(template: string, values: Values): string {
  let length = template.length
  return template.replace(expression, (_, name: string) => {
    const text = textOf(valueAt(name, values))
    length += text.length
    if (length > textMax) throw new GraderError(`A template becomes longer than ${textMax} characters.`)
    return text
  })
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** The value of a name such as `item.input`. Throws GraderError for one that is missing. */
export function valueAt(name: string, values: Values): unknown {
  let value: unknown = values
  for (const part of name.split('.')) {
    // Own fields alone: a row cannot reach what every object has.
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part))
      throw new GraderError(`There is no '${name}' here.`)
    value = (value as Record<string, unknown>)[part]
  }
  if (value === undefined || value === null) throw new GraderError(`'${name}' is empty here.`)
  return value
}
