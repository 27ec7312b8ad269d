import type { IncomingMessage, ServerResponse } from 'node:http'
import { type ChatMessage, ChatRequest } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { picturesMax } from '../../../pictures/formats.ts'
import type { MemoryLimits } from '../../batching/slot-sizes.ts'
import { controlsOf } from '../../chat/control-tokens.ts'
import { type Conversation, prepareConversation } from '../../chat/conversation.ts'
import { findMarkers, picturesOf, showPictures } from '../../chat/pictures.ts'
import type { Model } from '../../llama/model.ts'
import type { ServedModel } from '../../models/models.ts'
import { atPicture, pictureFile, pictureTextMax } from '../../vision/picture-files.ts'
import type { PictureSpan } from '../../vision/picture-tokens.ts'
import type { LoadedProjector } from '../../vision/projectors.ts'
import { createChatFormat } from '../answer/chat-format.ts'
import { bodyBytesMax, header, readBody } from '../io.ts'
import { promptBounds, requirePicturesFit } from '../prepare.ts'
import { type GenerationInput, type GenerationServices, generate, type Tokenize } from './generate.ts'
import type { ModelUse } from './use-model.ts'

export async function chatCompletions(
  services: GenerationServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const sees = services.models.list().some(({ projector }) => projector !== null)
  const body = await readBody(request, ChatRequest, sees ? bodyBytesMax + pictureTextMax : bodyBytesMax)
  if (body.top_logprobs && !body.logprobs)
    throw new ApiError('invalid_request', 'top_logprobs needs logprobs: true.', { param: 'top_logprobs' })
  const account = header(request, 'x-tunery-account') ?? ''
  await generate(services, request, response, body, (served, use, tokenize) =>
    chatInput(services, body, account, served, use, tokenize),
  )
}

/** The input of a generation that answers a conversation. */
export async function chatInput(
  services: GenerationServices,
  body: ChatRequest,
  account: string,
  served: ServedModel,
  { signal }: ModelUse,
  tokenize: Tokenize,
): Promise<GenerationInput> {
  const { model, projector } = served
  requirePossibleLength(model, services.limits, body)
  requireLibrary(served, body)
  const conversation = prepareConversation(model, body, projector !== null)
  const { grammar, control_texts, stop, createParser } = conversation
  const controls = controlsOf(model)
  const tokens = await tokenize(conversation.prompt, 'messages')
  const { prompt, spans } = projector
    ? await addPictures(services, model, projector, tokens, conversation.pictures, { account, signal })
    : { prompt: tokens, spans: [] }
  return {
    prompts: [prompt],
    pictures: spans,
    param: 'messages',
    grammar: grammar && { spec: grammar, vocab: controls.grammar_vocab },
    control_texts: control_texts.length > 0 ? controls.texts : null,
    top_logprobs: body.logprobs ? (body.top_logprobs ?? 0) : null,
    stop,
    createParser,
    createFormat: createChatFormat,
  }
}

/** Throws parameter_not_supported for pictures that this engine lacks the library for. */
function requireLibrary({ projector, projector_path }: ServedModel, { messages }: ChatRequest): void {
  if (projector || projector_path === null || picturesOf(messages).length === 0) return
  throw new ApiError(
    'parameter_not_supported',
    'This model reads images, but the library for them is not installed where it runs: its operator runs ' +
      '`npm run setup -- --with vision`, which needs g++. Until then it reads text only.',
    { param: 'messages' },
  )
}

/** The prompt with the pictures of its conversation. Throws what `Features` throws, and context_length_exceeded. */
async function addPictures(
  { features, limits }: GenerationServices,
  model: Model,
  projector: LoadedProjector,
  tokens: number[],
  { parts, marker }: Conversation['pictures'],
  caller: { account: string; signal: AbortSignal },
): Promise<{ prompt: number[]; spans: PictureSpan[] }> {
  if (parts.length === 0) return { prompt: tokens, spans: [] }
  if (parts.length > picturesMax)
    throw new ApiError('invalid_request', `A request takes ${picturesMax} pictures; this one has ${parts.length}.`, {
      param: 'messages',
    })
  const files = parts.map(({ url, param }) => pictureFile(url, param))
  const markers = findMarkers(tokens, marker, parts.length)
  // Counted first: an encoding takes seconds.
  let picture_tokens = 0
  for (const [index, file] of files.entries())
    picture_tokens += await atPicture(parts[index]!.param, features.tokensOf(projector, file, caller.signal))
  requirePicturesFit(model, limits, tokens.length - parts.length * marker.length, picture_tokens)
  const pictures = await Promise.all(
    files.map((file, index) => atPicture(parts[index]!.param, features.of(projector, file, caller))),
  )
  return showPictures(tokens, markers, marker.length, pictures)
}

// Templates write arguments as JSON, each in its own way.
const argumentsMax = 1_000_000
const argumentsLength = (message: ChatMessage): number =>
  message.role === 'assistant'
    ? (message.tool_calls ?? []).reduce((sum, call) => sum + call.function.arguments.length, 0)
    : 0

/**
 * Throws ApiError context_length_exceeded if the messages are too long in any tokenization, before a template copies
 * them. Throws invalid_request if the arguments of tool calls are too long.
 */
function requirePossibleLength(model: Model, limits: MemoryLimits, { messages }: ChatRequest): void {
  const lengthOf = ({ content }: ChatMessage) =>
    typeof content === 'string'
      ? content.length
      : (content ?? []).reduce((sum, part) => sum + (part.type === 'text' ? part.text.length : 0), 0)
  const written = messages.reduce((sum, message) => sum + argumentsLength(message), 0)
  if (written > argumentsMax)
    throw new ApiError(
      'invalid_request',
      `The arguments of all tool_calls may have ${argumentsMax} characters together; these have ${written}.`,
      { param: 'messages' },
    )
  const tokens_min = Math.ceil(
    messages.reduce((sum, message) => sum + lengthOf(message), 0) / model.vocab.longest_token_bytes,
  )
  const { tokens_max, tooLong } = promptBounds(model, limits, 'messages')
  if (tokens_min > tokens_max) throw tooLong(tokens_min)
}
