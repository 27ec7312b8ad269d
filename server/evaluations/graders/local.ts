// The graders that need no model. They run in a thread that can be ended (grading-thread.ts): a pattern or a schema of a
// client's may take any time.
import { isDeepStrictEqual } from 'node:util'
import { Ajv } from 'ajv'
import type { SimpleGrader } from '../../../contract/graders.ts'
import { similarity } from './similarity.ts'
import { fill, GraderError, type Values } from './template.ts'

export interface Score {
  score: number
  passed: boolean
  label?: string
  error?: string
}

export type LocalGrader = Exclude<SimpleGrader, { type: 'label_model' | 'score_model' }>

const binary = (passed: boolean): Score => ({ score: passed ? 1 : 0, passed })

/** Scores an answer. Throws GraderError if the row or the answer lacks what the grader reads. */
export function gradeLocally(grader: LocalGrader, values: Values): Score {
  switch (grader.type) {
    case 'string_check': {
      const [input, reference] = [fill(grader.input, values), fill(grader.reference, values)]
      if (grader.operation === 'eq') return binary(input === reference)
      if (grader.operation === 'ne') return binary(input !== reference)
      return binary(contains(input, reference, grader.operation === 'ilike'))
    }
    case 'contains':
      return binary(contains(fill(grader.input, values), fill(grader.reference, values), grader.ignore_case))
    case 'text_similarity': {
      const score = similarity(grader.evaluation_metric, fill(grader.input, values), fill(grader.reference, values))
      return { score, passed: score >= grader.pass_threshold }
    }
    case 'regex': {
      const found = new RegExp(grader.pattern, grader.ignore_case ? 'iu' : 'u').test(fill(grader.input, values))
      return binary(found !== grader.negate)
    }
    case 'json_schema': {
      const answer = parsed(fill(grader.input, values))
      return binary(answer !== undefined && satisfies(answer.value, grader.schema))
    }
    case 'json_equal':
      return equalFields(parsed(fill(grader.input, values)), parsed(fill(grader.reference, values)), grader.fields)
    case 'tool_call':
      return binary(hasCall(grader, values))
  }
}

const contains = (text: string, part: string, ignoreCase: boolean) =>
  ignoreCase ? text.toLowerCase().includes(part.toLowerCase()) : text.includes(part)

/** The value of a JSON text, also in a code block of Markdown; undefined if it is none. */
function parsed(text: string): { value: unknown } | undefined {
  const block = /^\s*```(?:json)?\s*\n([\s\S]*?)\n?```\s*$/.exec(text)
  try {
    return { value: JSON.parse(block ? block[1]! : text) }
  } catch {
    return undefined
  }
}

function satisfies(value: unknown, schema: Record<string, unknown>): boolean {
  const valid: unknown = validator(schema)(value)
  if (typeof valid === 'boolean') return valid
  // An asynchronous schema gives a promise; nobody else listens to its failure.
  Promise.resolve(valid).catch(() => {})
  throw new GraderError('The schema is asynchronous.')
}

// By the schema's JSON: each answer comes to the thread with its own copy of the grader.
const validators = new Map<string, (value: unknown) => boolean>()

function validator(schema: Record<string, unknown>): (value: unknown) => boolean {
  const key = JSON.stringify(schema)
  let found = validators.get(key)
  if (!found) {
    try {
      found = new Ajv({ strict: false, validateFormats: false }).compile(schema) as (value: unknown) => boolean
    } catch (error) {
      throw new GraderError(`The schema cannot be used: ${(error as Error).message}`)
    }
    validators.set(key, found)
  }
  return found
}

/** The share of the fields that are equal; all of them pass. */
function equalFields(
  answer: { value: unknown } | undefined,
  reference: { value: unknown } | undefined,
  given: string[] | undefined,
): Score {
  if (!reference) throw new GraderError('The reference is not JSON.')
  if (!answer) return binary(false)
  const expected = reference.value
  const fields = given ?? (isObject(expected) ? Object.keys(expected) : [])
  if (fields.length === 0) return binary(isDeepStrictEqual(answer.value, expected))
  const equal = fields.filter((field) =>
    isDeepStrictEqual(fieldOf(answer.value, field), fieldOf(expected, field)),
  ).length
  return { score: equal / fields.length, passed: equal === fields.length }
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

function fieldOf(value: unknown, path: string): unknown {
  if (isObject(value) && Object.hasOwn(value, path)) return value[path]
  let found = value
  for (const part of path.split('.')) {
    if (typeof found !== 'object' || found === null || !Object.hasOwn(found, part)) return undefined
    found = (found as Record<string, unknown>)[part]
  }
  return found
}

interface Call {
  function: { name: string; arguments: string }
}

/** The calls of a list; what else a row may have there is none. */
const callsIn = (value: unknown): Call[] =>
  (Array.isArray(value) ? value : []).filter(
    (each) => typeof each?.function?.name === 'string' && typeof each.function.arguments === 'string',
  )

function hasCall(grader: Extract<LocalGrader, { type: 'tool_call' }>, { item, sample }: Values): boolean {
  const made = callsIn(sample?.output_tools)
  const [known] = callsIn(item.reference_calls)
  const name = grader.function ?? known?.function.name
  if (name === undefined) throw new GraderError("The row's answer has no call, and the grader names no function.")
  const expected = grader.arguments ?? (grader.function === undefined ? parsed(known!.function.arguments)?.value : {})
  return made.some(({ function: called }) => {
    const given = parsed(called.arguments)?.value
    return (
      called.name === name &&
      isObject(given) &&
      Object.entries(expected ?? {}).every(([field, value]) => isDeepStrictEqual(given[field], value))
    )
  })
}
