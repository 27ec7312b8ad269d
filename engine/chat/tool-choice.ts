// Which tools an answer may call, how often, and what their arguments must look like.
import type { ChatRequest, Tool } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { schemaRules } from '../grammar/schema-rules.ts'
import { type TemplateTool, templateTool } from './messages.ts'
import { isWithin } from './template.ts'
import { callsMax, type ToolFormat } from './tool-formats.ts'

export type ToolPlan = {
  /** What the model is shown. */
  shown: TemplateTool[]
  /** What it may call. */
  callable: { name: string; schema: Record<string, unknown> }[]
  /** Whether it must. */
  required: boolean
  calls_max: number
}

const anyObject = { type: 'object', additionalProperties: true }
const noArguments = { type: 'object', properties: {}, additionalProperties: false }
/** Of all schemas that are enforced in one answer, as JSON. */
const schemaCharactersMax = 80_000
/** Of all tools together: a template writes them indented, level by level. */
const toolBounds = { depth: 32, values: 20_000, characters: 500_000 }

/** Null where the answer can have no calls. Throws ApiError for tools and choices that contradict each other. */
export function planTools(
  request: Pick<ChatRequest, 'tools' | 'tool_choice' | 'parallel_tool_calls'>,
  { syntax, name }: ToolFormat,
): ToolPlan | null {
  // A model that was not trained on calls does not know when to end a list of them, so it has to be asked for.
  const parallel = name === 'prompted' ? request.parallel_tool_calls === true : request.parallel_tool_calls !== false

  const tools = request.tools ?? []
  const choice = request.tool_choice ?? 'auto'
  refuseDoubles(tools)
  if (!isWithin(tools, toolBounds))
    throw new ApiError(
      'invalid_request',
      'The tools are too many, too large or nested too deep. Send fewer, or simpler ones.',
      { param: 'tools' },
    )
  if (tools.length === 0 && choice !== 'none' && choice !== 'auto')
    throw new ApiError(
      'invalid_request',
      'tool_choice asks for a call, but there are no tools. Send tools, or leave tool_choice out.',
      {
        param: 'tool_choice',
      },
    )
  if (tools.length === 0 || choice === 'none') return null
  const named = typeof choice === 'object' ? choice.function.name : null
  const callable = tools.flatMap((tool, index) =>
    named === null || tool.function.name === named
      ? [{ name: tool.function.name, schema: argumentsSchema(tool, index), strict: tool.function.strict === true }]
      : [],
  )
  if (callable.length === 0)
    throw new ApiError('invalid_request', `tool_choice names '${named}', which is not one of the tools.`, {
      param: 'tool_choice.function.name',
    })
  return {
    shown: tools.map(templateTool),
    callable: withinBudget(callable),
    required: choice !== 'auto',
    calls_max: named !== null || syntax.alone || !parallel ? 1 : callsMax,
  }
}

/** Whether a JSON schema can be enforced while the answer is decoded. */
export function isEnforceable(schema: unknown): boolean {
  try {
    schemaRules(schema)
    return true
  } catch (error) {
    if (error instanceof ApiError) return false
    throw error
  }
}

/** Runs a check of a schema that came in the field `param`. */
export function checkSchemaOf(schema: unknown, param: string): void {
  try {
    schemaRules(schema)
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    throw new ApiError(error.code, error.message, { param, ...(error.details && { details: error.details }) })
  }
}

function argumentsSchema({ function: { parameters, strict } }: Tool, index: number): Record<string, unknown> {
  const param = `tools.${index}.function.parameters`
  if (!parameters) return noArguments
  if (parameters.type !== undefined && parameters.type !== 'object')
    throw new ApiError('invalid_request', "A tool's parameters must be a schema of type 'object'.", { param })
  if (isEmptyList(parameters)) return noArguments
  const schema = parameters.properties === undefined ? parameters : { type: 'object', ...parameters }
  if (strict) checkSchemaOf(schema, param)
  return strict || isEnforceable(schema) ? schema : anyObject
}

/**
 * All schemas are one grammar: the largest give way, unless their tools are strict, until the rest can be made into
 * one.
 */
function withinBudget(
  callable: { name: string; schema: Record<string, unknown>; strict: boolean }[],
): ToolPlan['callable'] {
  const sizes = callable.map(({ schema }) => JSON.stringify(schema).length)
  let left = sizes.reduce((sum, size) => sum + size, 0)
  const loose = new Set<number>()
  const largestFirst = [...sizes.keys()]
    .filter((index) => !callable[index]!.strict)
    .sort((a, b) => sizes[b]! - sizes[a]!)
  for (const index of largestFirst) {
    if (left <= schemaCharactersMax) break
    loose.add(index)
    left -= sizes[index]!
  }
  return callable.map(({ name, schema }, index) => ({ name, schema: loose.has(index) ? anyObject : schema }))
}

/**
 * A schema that says nothing of any argument: the tool takes none, unless it says that it takes what it doesn't name.
 */
function isEmptyList(parameters: Record<string, unknown>): boolean {
  const {
    type: _,
    properties,
    required: _required,
    additionalProperties,
    $schema,
    title,
    description,
    ...rest
  } = parameters
  return (
    isEmpty(rest) &&
    (properties === undefined || isEmpty(properties)) &&
    (additionalProperties === undefined || additionalProperties === false)
  )
}

function isEmpty(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Object.keys(value).length === 0
}

function refuseDoubles(tools: readonly Tool[]): void {
  const names = new Set<string>()
  for (const [
    index,
    {
      function: { name },
    },
  ] of tools.entries()) {
    if (names.has(name))
      throw new ApiError('invalid_request', `Two tools are called '${name}'. Give each a name of its own.`, {
        param: `tools.${index}.function.name`,
      })
    names.add(name)
  }
}
