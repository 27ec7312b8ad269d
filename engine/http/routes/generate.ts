// Shared by chat and text completions: from prompts to a running response.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { ApiError } from '../../../contract/errors.ts'
import type { Usage } from '../../../contract/sampling.ts'
import type { GenerationEvents } from '../../batching/generation.ts'
import type { GenerationHandle, Scheduler } from '../../batching/scheduler.ts'
import type { MemoryLimits } from '../../batching/slot-sizes.ts'
import type { ReplyParser } from '../../chat/reply.ts'
import type { GrammarSession, GrammarSpec, Grammars, GrammarVocab } from '../../grammar/grammars.ts'
import type { Vocab } from '../../llama/vocab.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import { weightsHeader, weightsOf } from '../../models/weights-header.ts'
import type { TokenLogprobs } from '../../sampling/logprobs.ts'
import { type PromptText, type Tokenizer, tokenizePrompt } from '../../tokenizer/tokenizer.ts'
import type { Features } from '../../vision/features.ts'
import type { PictureSpan } from '../../vision/picture-tokens.ts'
import type { AbortedUsage } from '../aborted-usage.ts'
import { createChoices, jsonSink } from '../answer/choices.ts'
import type { AnswerFormat, AnswerFormatOptions } from '../answer/format.ts'
import { streamSink } from '../answer/stream.ts'
import { header, sendError } from '../io.ts'
import type { Metrics } from '../metrics.ts'
import { observeGeneration } from '../observe.ts'
import { prepareGeneration, promptBounds, type SamplingFields } from '../prepare.ts'
import { idsOf, type LogIds, spanOf } from '../trace.ts'
import { type ModelUse, useModel } from './use-model.ts'

export interface GenerationServices {
  models: Models
  scheduler: Pick<Scheduler, 'submit' | 'holdBackground'>
  grammars: Grammars
  limits: MemoryLimits
  tokenizer: Tokenizer
  features: Features
  abortedUsage: AbortedUsage
  metrics: Metrics
  onFault(error: unknown, ids: LogIds): void
}

interface GenerationBody extends SamplingFields {
  model: string
  stream?: boolean | null | undefined
  stream_options?: { include_usage?: boolean | null | undefined } | null | undefined
}

/** Input of a generation, built by the chat or completion route. */
export interface GenerationInput {
  prompts: number[][]
  /** Pictures of the prompt; only a single prompt has any. */
  pictures?: readonly PictureSpan[]
  /** Request field of the prompts, for errors. */
  param: string
  /** Most tokens of an answer, where that is less than was asked for. */
  max_tokens?: number
  grammar: { spec: GrammarSpec; vocab: GrammarVocab } | null
  /** Control tokens that appear in the output as text. */
  control_texts: ReadonlyMap<number, Buffer> | null
  /** Number of top tokens per position; null for no log-probabilities. */
  top_logprobs: number | null
  /** Whether the tokens that end an answer are among the log-probabilities. */
  end_logprob?: boolean
  /** Tokens that end an answer beside the model's own, and whether its own do not. */
  ends?: { stop_tokens: ReadonlySet<number>; ignore_end: boolean }
  /** Sequences that end the text wherever they are in it. */
  stop: readonly string[]
  createParser(): ReplyParser
  createFormat(options: AnswerFormatOptions, vocab: Vocab): AnswerFormat
  /** Echoed prompts, with their tokens' log-probabilities; prepended to every choice. */
  echo?: { text: string; tokenLogprobs: TokenLogprobs[] }[]
  /** Generate nothing: the echo is the answer. */
  echoOnly?: boolean
}

/** Tokenizes a prompt for the requested model. `param` is the request field of the prompt. */
export type Tokenize = (prompt: PromptText, param: string) => Promise<number[]>

// The spans of the first choices of a request say enough.
const tracedChoices = 4
// Each choice is a separate sequence in the engine.
const choicesMax = 128

export async function generate(
  services: GenerationServices,
  request: IncomingMessage,
  response: ServerResponse,
  body: GenerationBody,
  prepare: (served: ServedModel, use: ModelUse, tokenize: Tokenize) => Promise<GenerationInput>,
): Promise<void> {
  const { scheduler, limits, tokenizer, abortedUsage, onFault } = services
  const served = textModel(services.models, body.model)
  const use = useModel(served, response)
  const release = use.retain()
  const sessions: GrammarSession[] = []
  const account = header(request, 'x-tunery-account') ?? ''
  const background = header(request, 'x-tunery-priority') === 'background'
  const endHold = background ? () => {} : scheduler.holdBackground()
  const tokenize: Tokenize = (prompt, param) => {
    const { signal } = use
    return tokenizePrompt(tokenizer, served.model.vocab, prompt, {
      account,
      signal,
      ...promptBounds(served.model, limits, param),
    })
  }
  try {
    const input = await prepare(served, use, tokenize)
    const perPrompt = body.n ?? 1
    const count = input.prompts.length * perPrompt
    checkChoices(count)
    const fields = input.max_tokens === undefined ? body : { ...body, max_tokens: input.max_tokens }
    const prepared = input.prompts.map((prompt) =>
      prepareGeneration(served.model, limits, prompt, fields, input.param, input.pictures),
    )
    if (input.grammar)
      while (sessions.length < count)
        sessions.push(await services.grammars.open(input.grammar.vocab, input.grammar.spec, use.signal, account))
    if (use.ended()) return closeAll(sessions)

    const prompt_tokens = countPromptTokens(input, request)
    response.setHeader('x-prompt-tokens', prompt_tokens).setHeader(weightsHeader, weightsOf(served))
    const includeUsage = body.stream_options?.include_usage === true
    const format = input.createFormat(
      { model: header(request, 'x-served-model-name') ?? body.model, nullUsage: includeUsage },
      served.model.vocab,
    )
    const logprobs = input.top_logprobs !== null
    const sink = body.stream
      ? streamSink(response, format, includeUsage || header(request, 'x-tunery-usage') === 'always')
      : jsonSink(response, format, count, logprobs)
    const submitted: GenerationHandle[] = []
    const cancelAll = () => {
      for (const { cancel } of submitted) cancel()
    }
    const onDone = () => {
      cancelAll()
      use.end()
    }
    const onDisconnect = () => {
      cancelAll()
      abortedUsage.record(String(response.getHeader('x-request-id')), usageSoFar(submitted, prompt_tokens, perPrompt))
    }
    const onStart: GenerationEvents['onStart'] = ({ cached_tokens, queue_ms }) => {
      if (!response.headersSent)
        response
          .setHeader('x-cached-tokens', cached_tokens)
          .setHeader('x-queue-ms', queue_ms.toFixed(1))
          // Once more: after a load the hashes may be known by now.
          .setHeader(weightsHeader, weightsOf(served))
    }
    const events = createChoices({
      count,
      prompt_tokens,
      choices_per_prompt: perPrompt,
      logprobs,
      createParser: input.createParser,
      sink,
      onStart,
      onDone,
    })
    use.cancelWith(onDisconnect, (error) => sink.failed(error))
    const span = spanOf(request)
    const submissions = events.map((choice, index) => {
      const { request: base, size_class } = prepared[Math.floor(index / perPrompt)]!
      return {
        events: observeGeneration(choice, services.metrics, index < tracedChoices ? span : undefined),
        size_class,
        request: {
          ...base,
          sampling: samplingOfChoice(base.sampling, index % perPrompt),
          stop: input.stop,
          account,
          background,
          top_logprobs: input.top_logprobs,
          ...(input.end_logprob && { end_logprob: true }),
          ...input.ends,
          control_texts: input.control_texts,
          grammar: sessions[index] ?? null,
        },
      }
    })
    // `submit` throws if the queue is full; nothing is written yet, so the error has its own status.
    if (!input.echoOnly) submitted.push(...scheduler.submit(served, submissions))
    sendEcho(input, events, perPrompt)
  } catch (error) {
    closeAll(sessions)
    if (!(error instanceof ApiError) && !use.ended()) onFault(error, idsOf(request, response))
    sendError(response, error)
    use.end()
  } finally {
    endHold()
    release()
  }
}

function textModel(models: Models, name: string): ServedModel {
  const served = models.get(name)
  if (served.kind === 'embedding')
    throw new ApiError(
      'model_not_callable',
      `'${name}' makes embeddings; it cannot be asked for text. POST /v1/embeddings takes it.`,
      { param: 'model' },
    )
  return served
}

function checkChoices(count: number): void {
  if (count > choicesMax)
    throw new ApiError(
      'invalid_request',
      `${count} choices are asked for; ${choicesMax} at most can be made at once.`,
      { param: 'n' },
    )
}

/** Tokens of all prompts. Throws if they are more than the request may have. */
function countPromptTokens({ prompts, param }: GenerationInput, request: IncomingMessage): number {
  const prompt_tokens = prompts.reduce((sum, prompt) => sum + prompt.length, 0)
  const tokensMax = Number(header(request, 'x-tunery-prompt-tokens-max') ?? Number.POSITIVE_INFINITY)
  if (prompt_tokens > tokensMax)
    throw new ApiError(
      'context_length_exceeded',
      `The conversation has ${prompt_tokens} tokens; ${tokensMax} at most are taken here. Shorten it.`,
      { details: { prompt_tokens, context_length: tokensMax }, param },
    )
  return prompt_tokens
}

/** The seed is offset, so that choices of one prompt differ. */
function samplingOfChoice<S extends { seed: bigint | null }>(sampling: S, choice: number): S {
  return { ...sampling, seed: sampling.seed === null ? null : sampling.seed + BigInt(choice) }
}

/** Begins each choice with its echoed prompt, and ends it where nothing is generated. */
function sendEcho(input: GenerationInput, choices: GenerationEvents[], perPrompt: number): void {
  for (const [index, choice] of choices.entries()) {
    const echo = input.echo?.[Math.floor(index / perPrompt)]
    if (echo) choice.onText(echo.text, echo.tokenLogprobs)
    if (input.echoOnly) choice.onEnd({ finish_reason: 'length', completion_tokens: 0, cached_tokens: 0 })
  }
}

function usageSoFar(submitted: readonly GenerationHandle[], prompt_tokens: number, perPrompt: number): Usage {
  let completion_tokens = 0
  let cached_tokens = 0
  for (const [index, choice] of submitted.entries()) {
    const progress = choice.progress()
    completion_tokens += progress.completion_tokens
    if (index % perPrompt === 0) cached_tokens += progress.cached_tokens
  }
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    prompt_tokens_details: { cached_tokens },
  }
}

function closeAll(sessions: GrammarSession[]) {
  for (const session of sessions) session.close()
}
