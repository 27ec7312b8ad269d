import type { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'

/** Turns what zod found wrong into the one error that the caller reads: which field, what is allowed. */
export function validationError(issues: readonly z.core.$ZodIssue[], where: string): ApiError {
  const issue = deepest(issues[0]!)
  const field = issue.path.map(String).join('.')
  const details = {
    field: field || where,
    issues: issues.slice(0, 10).map((each) => ({ field: deepest(each).path.map(String).join('.'), message: deepest(each).message })),
  }
  if (issue.code === 'unrecognized_keys') {
    const names = issue.keys.map((key) => (field ? `${field}.${key}` : key))
    return new ApiError(
      'unknown_field',
      `Unknown field${names.length > 1 ? 's' : ''} ${names.map((name) => `'${name}'`).join(', ')}. Remove it or check its spelling.`,
      {
        details: { ...details, field: names[0] },
        param: names[0],
      },
    )
  }
  if (issue.code === 'custom' && issue.params?.unsupported)
    return new ApiError('parameter_not_supported', `'${field}' ${issue.message}.`, { details, param: field })
  return new ApiError('invalid_request', `${field ? `'${field}'` : `The ${where}`}: ${issue.message}.`, { details, param: field || undefined })
}

// A union's own message says only 'invalid input'; the branch that came closest says what is wrong.
function deepest(issue: z.core.$ZodIssue): z.core.$ZodIssue {
  if (issue.code !== 'invalid_union') return issue
  const branches = issue.errors.filter((branch) => branch.length > 0)
  const best = branches.sort(
    (a, b) => b[0]!.path.length - a[0]!.path.length || Number(a[0]!.code === 'invalid_type') - Number(b[0]!.code === 'invalid_type'),
  )[0]?.[0]
  return best ? deepest({ ...best, path: [...issue.path, ...best.path] }) : issue
}
