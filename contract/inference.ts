// Chat completions: the request as this service bounds it, and the response shapes that OpenAI's clients read.
// The engine validates with the same schema, since alone in a container it has no gateway before it.
import { z } from 'zod'
import { route } from './route.ts'

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })

/** A message's text, or its parts; only text parts can be read by today's engines. */
export const Content = z.union([z.string(), z.array(TextPart)])

export const chatRoles = ['system', 'developer', 'user', 'assistant'] as const

export const ChatMessage = z.looseObject({
  role: z.enum(chatRoles),
  content: Content,
})
export type ChatMessage = z.infer<typeof ChatMessage>

const Stop = z.union([z.string().min(1), z.array(z.string().min(1)).max(4)])

/** The parameters of generation, with the ranges of the specification. Null means 'not given', as OpenAI's clients send it. */
export const Sampling = z.object({
  temperature: z.number().min(0).max(2).nullish().describe('0 to 2; 0 always takes the likeliest token. Default 0.7.'),
  top_p: z.number().min(0).max(1).nullish().describe('0 to 1. Default 0.9.'),
  top_k: z.int().min(1).max(100).nullish().describe('1 to 100. Default 50.'),
  max_tokens: z.int().min(1).max(4096).nullish().describe('1 to 4096. Default 1024, or what the context leaves.'),
  max_completion_tokens: z.int().min(1).max(4096).nullish().describe("OpenAI's newer name of max_tokens; wins where both are given."),
  stop: Stop.nullish().describe('One sequence or up to four; generation ends before the first that appears.'),
  seed: z.int().min(0).max(4294967295).nullish().describe('The same seed, prompt and settings give the same answer on the same machine.'),
})

/** What applies where a request leaves a parameter out. */
export const samplingDefaults = { temperature: 0.7, top_p: 0.9, top_k: 50, max_tokens: 1024 } as const

// Fields of OpenAI's protocol that would change the answer and that the engine does not do yet: refused when set to anything but
// what leaves the answer as it is. Every other unknown field is ignored, as that protocol's clients expect.
const onlyIf = (harmless: (value: unknown) => boolean) =>
  z
    .unknown()
    .refine((value) => value === undefined || value === null || harmless(value), { params: { unsupported: true }, error: 'is not supported yet. Leave it out' })
    .optional()
const isEmpty = (value: unknown) => typeof value === 'object' && Object.keys(value as object).length === 0
const unsupported = {
  n: onlyIf((value) => value === 1),
  tools: onlyIf(isEmpty),
  functions: onlyIf(isEmpty),
  tool_choice: onlyIf((value) => value === 'none' || value === 'auto'),
  response_format: onlyIf((value) => (value as { type?: unknown }).type === 'text'),
  logprobs: onlyIf((value) => value === false),
  top_logprobs: onlyIf((value) => value === 0),
  logit_bias: onlyIf(isEmpty),
  presence_penalty: onlyIf((value) => value === 0),
  frequency_penalty: onlyIf((value) => value === 0),
  repetition_penalty: onlyIf((value) => value === 1),
  min_p: onlyIf((value) => value === 0),
}

export const ChatRequest = z.looseObject({
  model: z.string().min(1).max(256).describe('A base model of the hub that is on this machine, a deployment, or a finished job’s model.'),
  messages: z.array(ChatMessage).min(1).max(2000),
  stream: z.boolean().nullish().describe('Server-Sent Events, ended by `data: [DONE]`.'),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  ...Sampling.shape,
  ...unsupported,
})
export type ChatRequest = z.infer<typeof ChatRequest>

export const Usage = z.object({ prompt_tokens: z.int(), completion_tokens: z.int(), total_tokens: z.int() })
export type Usage = z.infer<typeof Usage>

export const finishReasons = ['stop', 'length'] as const
export type FinishReason = (typeof finishReasons)[number]

export const ChatResponse = z.object({
  id: z.string(),
  object: z.literal('chat.completion'),
  created: z.int().describe('Unix seconds.'),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      message: z.object({ role: z.literal('assistant'), content: z.string(), refusal: z.null() }),
      logprobs: z.null(),
      finish_reason: z.enum(finishReasons),
    }),
  ),
  usage: Usage,
})
export type ChatResponse = z.infer<typeof ChatResponse>

export const ChatChunk = z.object({
  id: z.string(),
  object: z.literal('chat.completion.chunk'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      delta: z.object({ role: z.literal('assistant').optional(), content: z.string().optional() }),
      logprobs: z.null(),
      finish_reason: z.enum(finishReasons).nullable(),
    }),
  ),
  usage: Usage.nullish(),
})
export type ChatChunk = z.infer<typeof ChatChunk>

export const ModelCard = z.object({ id: z.string(), object: z.literal('model'), created: z.int(), owned_by: z.string() })
export const ModelList = z.object({ object: z.literal('list'), data: z.array(ModelCard) })

const tag = 'Inference'
export const chatCompletions = route({
  method: 'POST',
  path: '/chat/completions',
  scope: 'inference',
  tag,
  summary: 'Answer a conversation, whole or as a stream',
  body: ChatRequest,
  produces: 'text/event-stream',
  responses: { 200: ChatResponse },
  openai: true,
})
export const listCallableModels = route({
  method: 'GET',
  path: '/models',
  scope: 'inference',
  tag,
  summary: 'Everything that the `model` field of inference takes',
  responses: { 200: ModelList },
  openai: true,
})
