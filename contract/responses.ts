// OpenAI's Responses API: one answer for a list of items, which the service can keep for the next turn.
import { z } from 'zod'
import { ReasoningEffort } from './chat.ts'
import { digits, Metadata } from './common.ts'
import { CursorQuery, openaiList } from './files.ts'
import { list } from './lists.ts'
import { pictureBodyBytes, routesOf } from './route.ts'
import { onlyIf } from './sampling.ts'

const Text = z.string()
const InputPart = z.discriminatedUnion(
  'type',
  [
    z.looseObject({ type: z.literal('input_text'), text: Text }),
    z.looseObject({ type: z.literal('output_text'), text: Text }),
    z.looseObject({ type: z.literal('refusal'), refusal: Text }),
    z.looseObject({ type: z.literal('input_image'), image_url: z.string().min(1) }),
  ],
  { error: "must be a part of type 'input_text', 'output_text', 'refusal' or 'input_image' with an image_url" },
)
export type InputPart = z.infer<typeof InputPart>

const itemTypes = {
  error:
    "must be 'message', 'function_call', 'function_call_output', 'custom_tool_call', 'custom_tool_call_output' or " +
    "'reasoning'",
}
const MessageItem = z.looseObject({
  type: z.literal('message', itemTypes).optional(),
  role: z.enum(['user', 'assistant', 'system', 'developer']),
  content: z.union([Text, list(InputPart, { max: 2048 })]),
})
const FunctionCallItem = z.looseObject({
  type: z.literal('function_call', itemTypes),
  call_id: z.string().min(1).max(128),
  name: z.string().min(1).max(64),
  namespace: z.string().max(64).nullish(),
  arguments: Text,
})
const CustomCallItem = z.looseObject({
  type: z.literal('custom_tool_call', itemTypes),
  call_id: z.string().min(1).max(128),
  name: z.string().min(1).max(64),
  namespace: z.string().max(64).nullish(),
  input: Text,
})
const CustomCallOutputItem = z.looseObject({
  type: z.literal('custom_tool_call_output', itemTypes),
  call_id: z.string().min(1).max(128),
  output: z.union([Text, list(InputPart, { max: 2048 })]),
})
const FunctionCallOutputItem = z.looseObject({
  type: z.literal('function_call_output', itemTypes),
  call_id: z.string().min(1).max(128),
  output: z.union([Text, list(InputPart, { max: 2048 })]),
})
const ReasoningItem = z.looseObject({ type: z.literal('reasoning', itemTypes) })

export const InputItem = z.union(
  [MessageItem, FunctionCallItem, FunctionCallOutputItem, CustomCallItem, CustomCallOutputItem, ReasoningItem],
  { error: 'must be a message, a call of a tool, the output of a call or a reasoning item' },
)
export type InputItem = z.infer<typeof InputItem>

const JsonObject = z.record(z.string(), z.unknown())
export const FunctionTool = z.looseObject({
  type: z.literal('function', {
    error: "must be 'function': hosted tools are not offered here; run them in your program",
  }),
  name: z.string().min(1).max(64),
  description: z.string().nullish(),
  parameters: JsonObject.nullish(),
  strict: z.boolean().nullish(),
})
export const CustomTool = z.looseObject({
  type: z.literal('custom'),
  name: z.string().min(1).max(64),
  description: z.string().nullish(),
  format: z
    .discriminatedUnion('type', [
      z.looseObject({ type: z.literal('text') }),
      z.looseObject({ type: z.literal('grammar'), syntax: z.enum(['lark', 'regex']), definition: z.string().min(1) }),
    ])
    .nullish()
    .describe('A regex is enforced where it can be; a lark grammar is shown to the model.'),
})
const NamespaceTool = z.looseObject({
  type: z.literal('namespace'),
  name: z.string().min(1).max(64),
  description: z.string().nullish(),
  tools: list(z.union([FunctionTool, CustomTool]), { max: 128 }),
})
const HostedTool = z
  .looseObject({ type: z.string().min(1).max(64) })
  .refine(({ type }) => !['function', 'custom', 'namespace'].includes(type), {
    path: ['name'],
    error: 'must be a text of 1 to 64 characters, and what else the tool has must be of its type',
  })
  .describe('A tool that OpenAI runs, such as web_search: left out, and listed in ignored_tools of the response.')
const ResponseTool = z.union([FunctionTool, CustomTool, NamespaceTool, HostedTool])
export type ResponseTool = z.infer<typeof ResponseTool>
const FunctionChoice = z.looseObject({ type: z.enum(['function', 'custom']), name: z.string().min(1).max(64) })
const AllowedChoice = z.looseObject({
  type: z.literal('allowed_tools'),
  mode: z.enum(['auto', 'required']),
  tools: list(z.looseObject({ type: z.string().max(64), name: z.string().min(1).max(64).nullish() }), {
    min: 1,
    max: 128,
  }).describe('Those of the tools that may be called.'),
})
export const TextFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({
    type: z.literal('json_schema'),
    name: z.string().regex(/^[\w-]{1,64}$/, 'must be 1 to 64 letters, digits, hyphens and underscores'),
    description: z.string().nullish(),
    schema: JsonObject,
    strict: z.boolean().nullish(),
  }),
])

const isFalse = (value: unknown) => value === false
const isEmptyList = (value: unknown) => Array.isArray(value) && value.length === 0
const oneOf = (...allowed: unknown[]) => onlyIf((value) => allowed.includes(value), { enum: [...allowed, null] })

export const ResponseRequest = z.looseObject({
  model: z.string().min(1).max(256),
  input: z.union([z.string(), list(InputItem, { min: 1, max: 2000 })]).describe('A text, or a list of items.'),
  instructions: z.string().nullish().describe('A system message of this answer only.'),
  previous_response_id: z
    .string()
    .max(100)
    .nullish()
    .describe('The stored response whose conversation this continues.'),
  store: z.boolean().nullish().describe('Whether to keep the response for 30 days. Default true.'),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({}).nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  max_output_tokens: z
    .int()
    .min(1)
    .max(4096)
    .nullish()
    .describe('1 to 4096. Default 1024, or what the context leaves.'),
  tools: list(ResponseTool, { max: 128 }).nullish(),
  tool_choice: z.union([z.enum(['none', 'auto', 'required']), FunctionChoice, AllowedChoice]).nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z.looseObject({ format: TextFormat.nullish(), verbosity: oneOf('medium') }).nullish(),
  metadata: Metadata.nullish(),
  reasoning: z
    .looseObject({ effort: ReasoningEffort.nullish() })
    .nullish()
    .describe('How much to think, as `reasoning_effort` of chat completions.'),
  user: z.string().nullish(),
  safety_identifier: z.string().nullish(),
  prompt_cache_key: z.string().nullish(),
  background: onlyIf(isFalse, { enum: [false, null] }, 'Leave it out, or use POST /v1/batches'),
  conversation: onlyIf(() => false, { enum: [null] }, 'Send previous_response_id'),
  prompt: onlyIf(() => false, { enum: [null] }, 'Send the text as instructions or input'),
  truncation: oneOf('disabled'),
  service_tier: oneOf('auto', 'default'),
  include: onlyIf((value) => Array.isArray(value) && value.every((field) => field === 'reasoning.encrypted_content'), {
    type: 'array',
    items: { enum: ['reasoning.encrypted_content'] },
  }),
  top_logprobs: oneOf(0),
  max_tool_calls: onlyIf(() => false, { enum: [null] }, 'It limits hosted tools, which are not offered here'),
  context_management: onlyIf(isEmptyList, { enum: [null] }, 'Shorten the input in your program'),
  moderation: onlyIf(() => false, { enum: [null] }),
  // Fields of chat completions that have another place here.
  messages: onlyIf(() => false, { enum: [null] }, 'Send them as input'),
  max_tokens: onlyIf(() => false, { enum: [null] }, 'Send max_output_tokens'),
  max_completion_tokens: onlyIf(() => false, { enum: [null] }, 'Send max_output_tokens'),
  response_format: onlyIf(() => false, { enum: [null] }, 'Send text.format'),
  functions: onlyIf(isEmptyList, { enum: [null] }, 'Send tools'),
  n: oneOf(1),
  stop: onlyIf(isEmptyList, { enum: [null] }, 'Use POST /v1/chat/completions, which has it'),
})
export type ResponseRequest = z.infer<typeof ResponseRequest>

const status = z.enum(['in_progress', 'completed', 'incomplete'])
export const OutputItem = z.discriminatedUnion('type', [
  z.object({
    type: z.literal('message'),
    id: z.string(),
    status,
    role: z.literal('assistant'),
    content: z.array(
      z.object({
        type: z.literal('output_text'),
        text: z.string(),
        annotations: z.array(z.never()),
        logprobs: z.array(z.never()),
      }),
    ),
  }),
  z.object({
    type: z.literal('function_call'),
    id: z.string(),
    status,
    call_id: z.string(),
    name: z.string(),
    namespace: z.string().optional(),
    arguments: z.string(),
  }),
  z.object({
    type: z.literal('custom_tool_call'),
    id: z.string(),
    status,
    call_id: z.string(),
    name: z.string(),
    namespace: z.string().optional(),
    input: z.string(),
  }),
  z.object({
    type: z.literal('reasoning'),
    id: z.string(),
    status,
    summary: z.array(z.never()),
    content: z.array(z.object({ type: z.literal('reasoning_text'), text: z.string() })),
  }),
])
export type OutputItem = z.infer<typeof OutputItem>

export const Response = z.object({
  id: z.string(),
  object: z.literal('response'),
  created_at: z.int(),
  completed_at: z.int().nullable(),
  status: z.enum(['in_progress', 'completed', 'incomplete', 'failed']),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  incomplete_details: z.object({ reason: z.literal('max_output_tokens') }).nullable(),
  instructions: z.string().nullable(),
  model: z.string(),
  output: z.array(OutputItem),
  previous_response_id: z.string().nullable(),
  parallel_tool_calls: z.boolean(),
  temperature: z.number(),
  top_p: z.number(),
  presence_penalty: z.number(),
  frequency_penalty: z.number(),
  top_logprobs: z.literal(0),
  max_output_tokens: z.int().nullable(),
  max_tool_calls: z.null(),
  tool_choice: z.union([z.enum(['none', 'auto', 'required']), z.looseObject({})]),
  tools: z.array(z.looseObject({})),
  ignored_tools: z
    .array(z.object({ type: z.string(), reason: z.string() }))
    .describe('Tools of the request that the model was not shown, and why.'),
  text: z.looseObject({ format: z.looseObject({}) }),
  reasoning: z.object({ effort: ReasoningEffort.nullable(), summary: z.null() }),
  truncation: z.literal('disabled'),
  service_tier: z.literal('default'),
  background: z.literal(false),
  store: z.boolean(),
  user: z.string().nullable(),
  safety_identifier: z.string().nullable(),
  prompt_cache_key: z.string().nullable(),
  metadata: Metadata,
  usage: z
    .object({
      input_tokens: z.int(),
      input_tokens_details: z.object({ cached_tokens: z.int() }),
      output_tokens: z.int(),
      output_tokens_details: z.object({ reasoning_tokens: z.int() }),
      total_tokens: z.int(),
    })
    .nullable(),
})
export type Response = z.infer<typeof Response>

const route = routesOf({ tag: 'Inference', openai: true })
const ResponseParams = z.object({ response_id: z.string() })

export const createResponse = route('POST', '/responses', {
  scope: 'inference',
  summary: "Answer a list of items, as OpenAI's Responses API does",
  body: ResponseRequest,
  body_bytes: pictureBodyBytes,
  responses: { 200: Response },
  concurrent: true,
})
export const getResponse = route('GET', '/responses/{response_id}', {
  scope: 'inference',
  summary: 'A stored response',
  params: ResponseParams,
  query: z.looseObject({
    stream: z.enum(['false'], { error: 'is not supported: a stored response is sent whole' }).optional(),
  }),
  responses: { 200: Response },
})
export const listInputItems = route('GET', '/responses/{response_id}/input_items', {
  scope: 'inference',
  summary: 'The items that a stored response answers, those of earlier turns among them',
  params: ResponseParams,
  query: CursorQuery.extend({ limit: digits(1, 100).default(20), order: z.enum(['asc', 'desc']).default('desc') }),
  responses: { 200: openaiList(z.looseObject({ id: z.string() })) },
})
export const deleteResponse = route('DELETE', '/responses/{response_id}', {
  scope: 'inference',
  summary: 'Delete a stored response',
  params: ResponseParams,
  responses: { 200: z.object({ id: z.string(), object: z.literal('response'), deleted: z.literal(true) }) },
})
