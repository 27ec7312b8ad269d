// The graders that need no model. They run in a thread that can be ended (grading-thread.ts): a schema of a client's,
// and a pattern in it, may take any time. Patterns of `regex` are searched by RE2, in linear time.
import { isDeepStrictEqual } from 'node:util'
import { Ajv } from 'ajv'
import { RE2JS } from 're2js'
import type { SimpleGrader } from '../../../../contract/graders.ts'
import { similarity } from './similarity.ts'
import { fill, GraderError, GraderFailure, type Values } from './template.ts'

export interface Score {
  score: number
  passed: boolean
  label?: string
  error?: string
}

export type LocalGrader = Exclude<SimpleGrader, { type: 'label_model' | 'score_model' | 'python' | 'endpoint' }>

/** Compiled patterns, and compiled schemas, that are kept. */
const compiledMax = 100

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
    case 'regex':
      return binary(matcher(grader).test(fill(grader.input, values)) !== grader.negate)
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
  try {
    return { value: JSON.parse(withoutFence(text.trim())) }
  } catch {
    return undefined
  }
}

const fence = '```'

function withoutFence(text: string): string {
  if (!text.startsWith(fence) || !text.endsWith(fence) || text.length < 2 * fence.length) return text
  const block = text.slice(fence.length, -fence.length)
  const from = block.startsWith('json') ? 'json'.length : 0
  const line = block.indexOf('\n', from)
  return line !== -1 && block.slice(from, line).trim() === '' ? block.slice(line) : text
}

function satisfies(value: unknown, schema: Record<string, unknown>): boolean {
  const valid: unknown = validator(schema)(value)
  if (typeof valid === 'boolean') return valid
  // An asynchronous schema gives a promise; nobody else listens to its failure.
  Promise.resolve(valid).catch(() => {})
  throw new GraderError('The schema is asynchronous.')
}

/** What must compile before a grader can score. */
export type Compilable = { pattern: string; ignore_case: boolean } | { schema: Record<string, unknown> }

/** Throws GraderError for a pattern or a schema that cannot be used. */
export function compile(source: Compilable): void {
  if ('pattern' in source) matcher(source)
  else validator(source.schema)
}

// By the source: each answer comes to the thread with its own copy of the grader.
const matchers = new Map<string, RE2JS>()
const validators = new Map<string, (value: unknown) => boolean>()

function remembered<T>(cache: Map<string, T>, key: string, make: () => T): T {
  let cached = cache.get(key)
  if (cached === undefined) {
    cached = make()
    cache.set(key, cached)
    if (cache.size > compiledMax) cache.delete(cache.keys().next().value!)
  }
  return cached
}

function matcher({ pattern, ignore_case }: { pattern: string; ignore_case: boolean }): RE2JS {
  return remembered(matchers, `${ignore_case} ${pattern}`, () => {
    try {
      // It writes JavaScript's `\uXXXX` and `(?<name>` in the syntax of RE2.
      return RE2JS.compile(RE2JS.translateRegExp(pattern), ignore_case ? RE2JS.CASE_INSENSITIVE : 0)
    } catch (error) {
      throw new GraderError(`is no pattern of RE2: ${(error as Error).message.replace('error parsing regexp: ', '')}`)
    }
  })
}

function validator(schema: Record<string, unknown>): (value: unknown) => boolean {
  return remembered(validators, JSON.stringify(schema), () => {
    try {
      return new Ajv({ strict: false, validateFormats: false, logger: false }).compile(schema) as (
        value: unknown,
      ) => boolean
    } catch (error) {
      throw new GraderError(`The schema cannot be used: ${(error as Error).message}`)
    }
  })
}

/** The share of the fields that are equal; all of them pass. */
function equalFields(
  answer: { value: unknown } | undefined,
  reference: { value: unknown } | undefined,
  names: string[] | undefined,
): Score {
  if (!reference) throw new GraderFailure('row', 'The reference is not JSON.')
  if (!answer) return binary(false)
  const expected = reference.value
  const fields = names ?? (isObject(expected) ? Object.keys(expected) : [])
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
  let current = value
  for (const part of path.split('.')) {
    if (typeof current !== 'object' || current === null || !Object.hasOwn(current, part)) return undefined
    current = (current as Record<string, unknown>)[part]
  }
  return current
}

interface Call {
  function: { name: string; arguments: string }
}

/** The calls of a list; what else a row may have there is none. */
const callsIn = (value: unknown): Call[] =>
  (Array.isArray(value) ? value : []).filter(
    (call) => typeof call?.function?.name === 'string' && typeof call.function.arguments === 'string',
  )

function hasCall(grader: Extract<LocalGrader, { type: 'tool_call' }>, { item, sample }: Values): boolean {
  const calls = callsIn(sample?.output_tools)
  const [first] = callsIn(item.reference_calls)
  const name = grader.function ?? first?.function.name
  if (name === undefined)
    throw new GraderFailure('row', "The row's answer has no call, and the grader names no function.")
  const expected = grader.arguments ?? (grader.function === undefined ? parsed(first!.function.arguments)?.value : {})
  return calls.some(({ function: called }) => {
    const args = parsed(called.arguments)?.value
    return (
      called.name === name &&
      isObject(args) &&
      Object.entries(expected ?? {}).every(([field, value]) => isDeepStrictEqual(args[field], value))
    )
  })
}
