// What the routes that generate text share: from the prompts to an answer under way.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { ApiError } from '../../../contract/errors.ts'
import type { Usage } from '../../../contract/sampling.ts'
import type { GenerationEvents } from '../../batching/generation.ts'
import type { Scheduler, Submitted } from '../../batching/scheduler.ts'
import type { MemoryLimits } from '../../batching/slot-sizes.ts'
import type { ReplyParser } from '../../chat/reply-parser.ts'
import type { GrammarSession, GrammarSpec, Grammars, GrammarVocab } from '../../grammar/grammars.ts'
import type { Vocab } from '../../llama/vocab.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import type { PlaceLogprobs } from '../../sampling/logprobs.ts'
import { type PromptText, type Tokenizer, tokenizePrompt } from '../../tokenizer/tokenizer.ts'
import type { LeftUsage } from '../aborted-usage.ts'
import { createChoices, wholeSink } from '../answer/choices.ts'
import type { Dialect, DialectOptions } from '../answer/format.ts'
import { streamSink } from '../answer/stream.ts'
import { header, sendError } from '../io.ts'
import { prepareGeneration, promptBounds, type SamplingFields } from '../prepare.ts'
import { type Use, useModel } from './use-model.ts'

export type GenerationServices = {
  models: Models
  scheduler: Scheduler
  grammars: Grammars
  limits: MemoryLimits
  tokenizer: Tokenizer
  left: LeftUsage
  onFault(error: unknown): void
}

export type Body = SamplingFields & {
  model: string
  stream?: boolean | null
  stream_options?: { include_usage?: boolean | null } | null
}

/** What a dialect makes of its request. */
export type Asked = {
  prompts: number[][]
  /** The field that the prompts came from. */
  param: string
  grammar: { spec: GrammarSpec; vocab: GrammarVocab } | null
  /** Control tokens that are passed on as text. */
  control_texts: ReadonlyMap<number, Buffer> | null
  /** How many likely tokens to tell of each place; null tells nothing. */
  top_logprobs: number | null
  createParser(): ReplyParser
  makeDialect(options: DialectOptions, vocab: Vocab): Dialect
  /** Text that stands before every choice of a prompt, with its tokens' log-probabilities. */
  echo?: { text: string; places: PlaceLogprobs[] }[]
  /** Nothing is to be generated: the echo is the answer. */
  echoOnly?: boolean
}

/** The tokens of a prompt for the model that is asked. `param` names the field that it came from. */
export type Tokenize = (prompt: PromptText, param: string) => Promise<number[]>

// Each choice is a sequence of its own in the engine.
const choicesMax = 128

export async function generate(
  services: GenerationServices,
  request: IncomingMessage,
  response: ServerResponse,
  body: Body,
  ask: (served: ServedModel, use: Use, tokenize: Tokenize) => Promise<Asked>,
): Promise<void> {
  const { models, scheduler, grammars, limits, tokenizer, left, onFault } = services
  const served = models.get(body.model)
  if (served.kind === 'embedding')
    throw new ApiError(
      'model_not_callable',
      `'${body.model}' makes embeddings; it cannot be asked for text. POST /v1/embeddings takes it.`,
      { param: 'model' },
    )
  const use = useModel(served, response)
  const letGo = use.hold()
  const sessions: GrammarSession[] = []
  const account = header(request, 'x-tunery-account') ?? ''
  const tokenize: Tokenize = (prompt, param) => {
    const { signal } = use
    return tokenizePrompt(tokenizer, served.model.vocab, prompt, {
      account,
      signal,
      ...promptBounds(served.model, limits, param),
    })
  }
  try {
    const asked = await ask(served, use, tokenize)
    const perPrompt = body.n ?? 1
    const count = asked.prompts.length * perPrompt
    if (count > choicesMax)
      throw new ApiError(
        'invalid_request',
        `${count} choices are asked for; ${choicesMax} at most can be made at once.`,
        { param: 'n' },
      )
    const prepared = asked.prompts.map((prompt) => prepareGeneration(served.model, limits, prompt, body, asked.param))
    if (asked.grammar)
      while (sessions.length < count)
        sessions.push(await grammars.open(asked.grammar.vocab, asked.grammar.spec, use.signal, account))
    if (use.ended()) return closeAll(sessions)

    const prompt_tokens = asked.prompts.reduce((sum, prompt) => sum + prompt.length, 0)
    response.setHeader('x-prompt-tokens', prompt_tokens)
    const includeUsage = body.stream_options?.include_usage === true
    const dialect = asked.makeDialect(
      { model: header(request, 'x-served-model-name') ?? body.model, nullUsage: includeUsage },
      served.model.vocab,
    )
    const logprobs = asked.top_logprobs !== null
    const sink = body.stream
      ? streamSink(response, dialect, includeUsage || header(request, 'x-tunery-usage') === 'always')
      : wholeSink(response, dialect, count, logprobs)
    const submitted: Submitted[] = []
    const cancelAll = () => {
      for (const { cancel } of submitted) cancel()
    }
    const onDone = () => {
      cancelAll()
      use.end()
    }
    const onLeft = () => {
      cancelAll()
      left.note(String(response.getHeader('x-request-id')), usageSoFar(submitted, prompt_tokens, perPrompt))
    }
    const onStart: GenerationEvents['onStart'] = ({ cached_tokens, queue_ms }) => {
      if (!response.headersSent)
        response.setHeader('x-cached-tokens', cached_tokens).setHeader('x-queue-ms', queue_ms.toFixed(1))
    }
    const events = createChoices({
      count,
      prompt_tokens,
      choices_per_prompt: perPrompt,
      logprobs,
      createParser: asked.createParser,
      sink,
      onStart,
      onDone,
    })
    use.cancelWith(onLeft, (error) => sink.failed(error))
    const submissions = events.map((each, index) => {
      const { request: base, size } = prepared[Math.floor(index / perPrompt)]!
      // Choices that share a seed differ all the same.
      const seed = base.sampling.seed === null ? null : base.sampling.seed + (index % perPrompt)
      const sampling = { ...base.sampling, seed }
      return {
        events: each,
        size,
        request: {
          ...base,
          sampling,
          account,
          top_logprobs: asked.top_logprobs,
          control_texts: asked.control_texts,
          grammar: sessions[index] ?? null,
        },
      }
    })
    // A queue that is full is an error with its own status as long as nothing is written.
    if (!asked.echoOnly) submitted.push(...scheduler.submit(served, submissions))
    for (const [index, each] of events.entries()) {
      const echo = asked.echo?.[Math.floor(index / perPrompt)]
      if (echo) each.onText(echo.text, echo.places)
      if (asked.echoOnly) each.onEnd({ finish_reason: 'length', completion_tokens: 0, cached_tokens: 0 })
    }
  } catch (error) {
    closeAll(sessions)
    if (!(error instanceof ApiError) && !use.ended()) onFault(error)
    sendError(response, error)
    use.end()
  } finally {
    letGo()
  }
}

function usageSoFar(submitted: readonly Submitted[], prompt_tokens: number, perPrompt: number): Usage {
  let completion_tokens = 0
  let cached_tokens = 0
  for (const [index, each] of submitted.entries()) {
    const progress = each.progress()
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

const closeAll = (sessions: GrammarSession[]) => {
  for (const session of sessions) session.close()
}
