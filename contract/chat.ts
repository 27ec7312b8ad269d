// Chat completions: the request with this service's limits, and the responses that OpenAI's clients read. The engine
// validates with the same schema, since it can run without the gateway.
import { z } from 'zod'
import { ErrorBody } from './errors.ts'
import { list } from './lists.ts'
import { pictureBodyBytes, routesOf } from './route.ts'
import { finishReasons, onlyIf, Sampling, StreamOptions, TokenLogprob, Usage } from './sampling.ts'

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const RefusalPart = z.looseObject({ type: z.literal('refusal'), refusal: z.string() })
/** For vision models; text models reject it. */
const ImagePart = z.looseObject({ type: z.literal('image_url'), image_url: z.looseObject({ url: z.string().min(1) }) })

export const ContentPart = z.discriminatedUnion('type', [TextPart, RefusalPart, ImagePart], {
  error: "must be a part of type 'text' or 'image_url'",
})
export type ContentPart = z.infer<typeof ContentPart>
const partsMax = 2048
const Content = z.union([z.string(), list(ContentPart, { max: partsMax })])

const ToolName = z
  .string()
  .regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must be 1 to 64 characters of a-z, A-Z, 0-9, underscore and hyphen')
export const ToolCall = z.looseObject({
  id: z.string().min(1).max(128),
  type: z.literal('function'),
  function: z.looseObject({
    name: z.string().min(1).max(64),
    arguments: z.string().describe('JSON, as the model wrote it.'),
  }),
})
export type ToolCall = z.infer<typeof ToolCall>

export const ChatMessage = z.discriminatedUnion(
  'role',
  [
    z.looseObject({ role: z.enum(['system', 'developer', 'user']), content: Content }),
    z
      .looseObject({
        role: z.literal('assistant'),
        content: Content.nullish(),
        tool_calls: list(ToolCall, { max: 128 }).nullish(),
        reasoning_content: z.string().nullish(),
        reasoning: z.string().nullish().describe('As `reasoning_content`.'),
        thinking: z.string().nullish().describe('As `reasoning_content`.'),
      })
      .refine((message) => message.content != null || (message.tool_calls?.length ?? 0) > 0, {
        path: ['content'],
        error: 'may be left out only with tool_calls',
      }),
    z.looseObject({ role: z.literal('tool'), content: Content, tool_call_id: z.string().min(1).max(128) }),
  ],
  { error: 'must be a message of role system, developer, user, assistant or tool' },
)
export type ChatMessage = z.infer<typeof ChatMessage>

const JsonObject = z.record(z.string(), z.unknown())
export const Tool = z.looseObject({
  type: z.literal('function'),
  function: z.looseObject({
    name: ToolName,
    description: z.string().nullish(),
    parameters: JsonObject.nullish().describe('JSON schema of the arguments; enforced while they are written.'),
    strict: z
      .boolean()
      .nullish()
      .describe('Refuses a schema that cannot be enforced, instead of taking any JSON object.'),
  }),
})
export type Tool = z.infer<typeof Tool>
const FunctionChoice = z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: ToolName }) })
export const ToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  FunctionChoice,
  z.looseObject({
    type: z.literal('allowed_tools'),
    allowed_tools: z.looseObject({
      mode: z.enum(['auto', 'required']),
      tools: list(FunctionChoice, { min: 1, max: 128 }).describe('Those of the tools that may be called.'),
    }),
  }),
])
export type ToolChoice = z.infer<typeof ToolChoice>

export const TextResponseFormat = z.looseObject({ type: z.literal('text') })
export const JsonResponseFormat = z.looseObject({ type: z.literal('json_object') })
export const JsonSchemaResponseFormat = z.looseObject({
  type: z.literal('json_schema'),
  json_schema: z.looseObject({
    name: z.string().min(1).max(64),
    description: z.string().nullish(),
    schema: JsonObject.nullish(),
    strict: z.boolean().nullish(),
  }),
})
export const ResponseFormat = z.discriminatedUnion('type', [
  TextResponseFormat,
  JsonResponseFormat,
  JsonSchemaResponseFormat,
])
export type ResponseFormat = z.infer<typeof ResponseFormat>

const isEmpty = (value: unknown) => Array.isArray(value) && value.length === 0
const unsupported = {
  functions: onlyIf(isEmpty, { type: 'array', items: {}, maxItems: 0 }, 'Send them as tools'),
  function_call: onlyIf(
    (value) => value === 'none' || value === 'auto',
    { enum: ['none', 'auto', null] },
    'Send tool_choice',
  ),
  audio: onlyIf(() => false, { enum: [null] }),
  modalities: onlyIf((value) => Array.isArray(value) && value.every((modality) => modality === 'text'), {
    type: 'array',
    items: { enum: ['text'] },
  }),
  web_search_options: onlyIf(() => false, { enum: [null] }),
}

export const ChatTemplateKwargs = JsonObject.describe(
  'Further variables of the model’s chat template, such as enable_thinking. Names that other templates have for the ' +
    'same are translated.',
)

export const ReasoningEffort = z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'])
export type ReasoningEffort = z.infer<typeof ReasoningEffort>
const effortNote =
  'How much to think: the nearest effort that the model’s chat template knows. none turns thoughts off where that is ' +
  'possible. Default: the template’s own. Without effect on models that do not think.'

/** A conversation, with a limit on the parts of all its messages together. */
export const Messages = list(ChatMessage, {
  min: 1,
  max: 2000,
  besides: {
    what: 'parts of content in all',
    max: 8 * partsMax,
    size: (messages) => messages.reduce<number>((sum, message) => sum + partsIn(message), 0),
  },
})
const partsIn = (message: unknown) => {
  const content = (message as { content?: unknown } | null)?.content
  return Array.isArray(content) ? content.length : 1
}

/** Parameters of one answer, except the model and how it is sent. */
const ChatFields = z.object({
  messages: Messages,
  ...Sampling.shape,
  max_completion_tokens: z
    .int()
    .min(1)
    .max(4096)
    .nullish()
    .describe("OpenAI's newer name of max_tokens; wins where both are given."),
  logprobs: z.boolean().nullish().describe('Whether to return the log-probability of each token of the answer.'),
  top_logprobs: z
    .int()
    .min(0)
    .max(20)
    .nullish()
    .describe('How many of the likeliest tokens to return for each position. Needs logprobs.'),
  response_format: ResponseFormat.nullish(),
  tools: list(Tool, { max: 128 }).nullish(),
  tool_choice: ToolChoice.nullish().describe('Default: auto where there are tools.'),
  parallel_tool_calls: z.boolean().nullish().describe('Whether one answer may hold several calls. Default true.'),
  reasoning_effort: ReasoningEffort.nullish().describe(effortNote),
  chat_template_kwargs: ChatTemplateKwargs.nullish(),
  ...unsupported,
})

export const ChatRequest = z.looseObject({
  model: z
    .string()
    .min(1)
    .max(256)
    .describe('A base model of the hub that is on this machine, a deployment, or a finished job’s model.'),
  ...ChatFields.shape,
  stream: z.boolean().nullish().describe('Server-Sent Events, ended by `data: [DONE]`.'),
  stream_options: StreamOptions.nullish(),
})
export type ChatRequest = z.infer<typeof ChatRequest>

export const AnswerMessage = z.object({
  role: z.literal('assistant'),
  content: z.string().nullable(),
  refusal: z.null(),
  reasoning_content: z.string().optional().describe('The reasoning of a thinking model before its answer.'),
  tool_calls: z
    .array(
      z.object({
        id: z.string(),
        type: z.literal('function'),
        function: z.object({ name: z.string(), arguments: z.string() }),
      }),
    )
    .optional(),
})
export const ChatLogprobs = z.object({ content: z.array(TokenLogprob).nullable(), refusal: z.null() })

export const ChatResponse = z.object({
  id: z.string(),
  object: z.literal('chat.completion'),
  created: z.int().describe('Unix seconds.'),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      message: AnswerMessage,
      logprobs: ChatLogprobs.nullable(),
      finish_reason: z.enum(finishReasons),
    }),
  ),
  usage: Usage,
})
export type ChatResponse = z.infer<typeof ChatResponse>

const ToolCallDelta = z.object({
  index: z.int(),
  id: z.string().optional(),
  type: z.literal('function').optional(),
  function: z.object({ name: z.string().optional(), arguments: z.string() }),
})
export const ChatDelta = z.object({
  role: z.literal('assistant').optional(),
  content: z.string().optional(),
  reasoning_content: z.string().optional(),
  tool_calls: z.array(ToolCallDelta).optional(),
})
export type ChatDelta = z.infer<typeof ChatDelta>
export const ChatChunk = z.object({
  id: z.string(),
  object: z.literal('chat.completion.chunk'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      delta: ChatDelta,
      logprobs: ChatLogprobs.nullable(),
      finish_reason: z.enum(finishReasons).nullable(),
    }),
  ),
  usage: Usage.nullish(),
})
export type ChatChunk = z.infer<typeof ChatChunk>

export const batchRequestsMax = 100
/** Fields besides `requests` are defaults for each request. */
export const BatchRequest = z.looseObject({
  model: z.string().min(1).max(256).describe('A request may name another one.'),
  requests: list(z.looseObject({}), { min: 1, max: batchRequestsMax }).describe(
    'Each with `messages`, and the fields that differ for it. An invalid one gets its error as the response; ' +
      'the others are not affected.',
  ),
  stream: onlyIf((value) => value === false, { enum: [false, null] }, 'Leave it out: a batch is answered whole'),
})
export type BatchRequest = z.infer<typeof BatchRequest>
export const BatchResponse = z.object({
  object: z.literal('chat.completion.batch'),
  responses: z
    .array(z.union([ChatResponse, ErrorBody]))
    .describe('In the order of the requests: an answer, or its own error.'),
  usage: Usage.describe('Usage of all answers together.'),
})
export type BatchResponse = z.infer<typeof BatchResponse>

const route = routesOf({ tag: 'Inference', openai: true })
export const chatCompletions = route('POST', '/chat/completions', {
  scope: 'inference',
  summary: 'Answer a conversation, whole or as a stream',
  body: ChatRequest,
  body_bytes: pictureBodyBytes,
  produces: 'text/event-stream',
  responses: { 200: ChatResponse },
  concurrent: true,
})
export const chatBatch = route('POST', '/chat/completions/batch', {
  scope: 'inference',
  summary: 'Answer many conversations at once',
  body: BatchRequest,
  body_bytes: pictureBodyBytes,
  responses: { 200: BatchResponse },
  concurrent: true,
})
