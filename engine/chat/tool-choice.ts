// Resolves tools and tool_choice: which tools an answer may call, how often, and the schemas of their arguments.
import type { ChatRequest, Tool, ToolChoice } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { costlyPaths } from '../grammar/schema-check.ts'
import { schemaRules } from '../grammar/schema-rules.ts'
import { type TemplateTool, templateTool } from './messages.ts'
import { isWithinBounds } from './template.ts'
import { callsMax, type ToolFormat } from './tool-formats.ts'

export interface ToolPlan {
  /** Tools in the prompt. */
  shown: TemplateTool[]
  /** Tools that the answer may call. */
  callable: CallableTool[]
  /** Whether it must call one. */
  required: boolean
  calls_max: number
}

interface CallableTool {
  name: string
  schema: Record<string, unknown>
  /** Whether its arguments must match the schema, whatever that costs. */
  strict: boolean
  /** The field of the request with its schema. */
  param: string
}

const anyObject = { type: 'object', additionalProperties: true }
const noArguments = { type: 'object', properties: {}, additionalProperties: false }
/** Total size of the schemas enforced in one answer, as JSON. */
const schemaCharactersMax = 80_000
/** Bounds of all tools together: templates write them indented, once per level. */
const toolBounds = { depth: 32, values: 20_000, characters: 500_000 }

/** Null if the answer can have no calls. Throws ApiError if tools and choice contradict each other. */
export function planTools(
  request: Pick<ChatRequest, 'tools' | 'tool_choice' | 'parallel_tool_calls'>,
  { is_single, name }: ToolFormat,
): ToolPlan | null {
  // A model not trained on tool calls does not know when to stop, so parallel calls are opt-in.
  const parallel = name === 'prompted' ? request.parallel_tool_calls === true : request.parallel_tool_calls !== false

  const tools = request.tools ?? []
  const choice = request.tool_choice ?? 'auto'
  rejectDuplicates(tools)
  if (!isWithinBounds(tools, toolBounds))
    throw new ApiError(
      'invalid_request',
      'The tools are too many, too large or nested too deep. Send fewer, or simpler ones.',
      { param: 'tools' },
    )
  if (tools.length === 0 && choice !== 'none' && choice !== 'auto')
    throw new ApiError(
      'invalid_request',
      'tool_choice asks for a call, but there are no tools. Send tools, or leave tool_choice out.',
      { param: 'tool_choice' },
    )
  if (tools.length === 0 || choice === 'none') return null
  const { names, mode, param } = choiceOf(choice)
  const unknown = names?.find((name) => !tools.some((tool) => tool.function.name === name))
  if (unknown !== undefined)
    throw new ApiError('invalid_request', `tool_choice names '${unknown}', which is not one of the tools.`, { param })
  const callable = tools.flatMap((tool, index) =>
    names === null || names.includes(tool.function.name) ? [callableTool(tool, index)] : [],
  )
  return {
    shown: tools.map(templateTool),
    callable: withinBudget(callable),
    required: mode !== 'auto',
    calls_max: mode === 'one' || is_single || !parallel ? 1 : callsMax,
  }
}

/** Which tools may be called, null for all; and the field that names them. */
function choiceOf(choice: Exclude<ToolChoice, 'none'>): {
  names: string[] | null
  mode: 'auto' | 'required' | 'one'
  param: string
} {
  if (typeof choice === 'string') return { names: null, mode: choice, param: 'tool_choice' }
  if (choice.type === 'function')
    return { names: [choice.function.name], mode: 'one', param: 'tool_choice.function.name' }
  const { mode, tools } = choice.allowed_tools
  return { names: tools.map((tool) => tool.function.name), mode, param: 'tool_choice.allowed_tools.tools' }
}

/** Whether a JSON schema can be enforced during decoding. */
function isEnforceable(schema: unknown): boolean {
  try {
    schemaRules(schema)
    return true
  } catch (error) {
    if (error instanceof ApiError) return false
    throw error
  }
}

/** Throws ApiError if a schema can't be enforced. `param` is the request field of the schema. */
export function requireEnforceable(schema: unknown, param: string): void {
  try {
    schemaRules(schema)
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    throw new ApiError(error.code, error.message, { param, ...(error.details && { details: error.details }) })
  }
}

function callableTool(tool: Tool, index: number): CallableTool {
  const { name, strict } = tool.function
  const param = `tools.${index}.function.parameters`
  return { name, schema: argumentsSchema(tool, param), strict: strict === true, param }
}

/** The plan with any arguments for costly tools that are not strict, else for all that are not; null without any. */
export function relaxedPlan(plan: ToolPlan): ToolPlan | null {
  const open = plan.callable.filter(({ strict, schema }) => !strict && schema !== anyObject && schema !== noArguments)
  if (open.length === 0) return null
  const costly = open.filter(({ schema }) => costlyPaths(schema).length > 0)
  const relaxed = costly.length > 0 ? costly : open
  return {
    ...plan,
    callable: plan.callable.map((tool) => (relaxed.includes(tool) ? { ...tool, schema: anyObject } : tool)),
  }
}

function argumentsSchema({ function: { parameters, strict } }: Tool, param: string): Record<string, unknown> {
  if (!parameters) return noArguments
  const { properties } = parameters
  if (typeof (properties ?? {}) !== 'object' || (Array.isArray(properties) && properties.length > 0))
    throw new ApiError('invalid_request', "A tool's properties must be an object with a schema for each argument.", {
      param: `${param}.properties`,
    })
  if (parameters.type !== undefined && parameters.type !== 'object')
    throw new ApiError('invalid_request', "A tool's parameters must be a schema of type 'object'.", { param })
  if (takesNoArguments(parameters)) return noArguments
  const schema = parameters.properties === undefined ? parameters : { type: 'object', ...parameters }
  if (strict) requireEnforceable(schema, param)
  return strict || isEnforceable(schema) ? schema : anyObject
}

/** All schemas become one grammar. Beyond the size limit the largest non-strict schemas are relaxed to any object. */
function withinBudget(callable: CallableTool[]): CallableTool[] {
  const sizes = callable.map(({ schema }) => JSON.stringify(schema).length)
  let total = sizes.reduce((sum, size) => sum + size, 0)
  const relaxed = new Set<number>()
  const largestFirst = [...sizes.keys()]
    .filter((index) => !callable[index]!.strict)
    .sort((a, b) => sizes[b]! - sizes[a]!)
  for (const index of largestFirst) {
    if (total <= schemaCharactersMax) break
    relaxed.add(index)
    total -= sizes[index]!
  }
  return callable.map((tool, index) => (relaxed.has(index) ? { ...tool, schema: anyObject } : tool))
}

/** Whether a schema has no arguments and does not allow unnamed ones. */
function takesNoArguments(parameters: Record<string, unknown>): boolean {
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

function rejectDuplicates(tools: readonly Tool[]): void {
  const names = new Set<string>()
  for (const [
    index,
    {
      function: { name },
    },
  ] of tools.entries()) {
    if (names.has(name))
      throw new ApiError('invalid_request', `Two tools are called '${name}'. Give each a different name.`, {
        param: `tools.${index}.function.name`,
      })
    names.add(name)
  }
}
