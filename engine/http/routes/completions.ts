import type { IncomingMessage, ServerResponse } from 'node:http'
import { CompletionRequest } from '../../../contract/completions.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { TextOrTokens } from '../../../contract/lists.ts'
import { createReplyParser } from '../../chat/reply-parser.ts'
import type { Model } from '../../llama/model.ts'
import type { FimTokens, Vocab } from '../../llama/vocab.ts'
import { stopSequences } from '../../sampling/stop-sequences.ts'
import { fimPrompt } from '../../tokenizer/tokenizer.ts'
import { createCompletionFormat } from '../answer/completion-format.ts'
import { header, readBody } from '../io.ts'
import { requirePromptFits } from '../prepare.ts'
import { type GenerationInput, type GenerationServices, generate } from './generate.ts'
import { type EchoServices, promptLogprobs } from './score.ts'

export async function completions(
  services: GenerationServices & EchoServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const body = await readBody(request, CompletionRequest)
  const echo = body.echo === true
  const account = header(request, 'x-tunery-account') ?? ''
  const echoOnly = body.max_tokens === 0
  if (echoOnly && !echo)
    throw new ApiError('invalid_request', 'max_tokens: 0 gives an answer only with echo: true.', {
      param: 'max_tokens',
    })
  const suffix = body.suffix || null
  if (echo && suffix !== null)
    throw new ApiError('invalid_request', 'echo repeats a prompt that the answer follows: leave out echo or suffix.', {
      param: 'echo',
    })
  await generate(services, request, response, body, async (served, use, tokenize) => {
    const { model } = served
    const fim = suffix === null ? null : requireFimTokens(model.vocab)
    // Code that is filled in may have the text of any token in its strings.
    const controls = (body.parse_special ?? fim === null) ? 'all' : 'none'
    const tokenizeText = (text: string, param: string) => tokenize({ text, controls }, param)
    const requested = await Promise.all(
      textsOf(body.prompt).map((text) =>
        typeof text === 'string' ? tokenizeText(text, 'prompt') : requireKnownTokens(model, text, 'prompt'),
      ),
    )
    const after = fim && (await tokenizeText(suffix!, 'suffix'))
    const prompts = after ? requested.map((before) => fimPrompt(model.vocab, fim, before, after)) : requested
    const input: GenerationInput = {
      prompts,
      param: 'prompt',
      grammar: null,
      control_texts: null,
      top_logprobs: body.logprobs ?? null,
      // Text completions have no tool calls or reasoning: all text is content.
      stop: stopSequences(body.stop),
      createParser: () => createReplyParser({ thoughts: null, answer: null, calls: null }),
      createFormat: createCompletionFormat,
      echoOnly,
    }
    if (!echo) return input
    input.echo = []
    for (const prompt of prompts) {
      requirePromptFits(model, services.limits, prompt, 'prompt')
      const tokenLogprobs =
        body.logprobs == null
          ? []
          : await promptLogprobs(services, served, prompt, body.logprobs, { account, signal: use.signal })
      input.echo.push({
        text: Buffer.concat(prompt.map((token) => model.vocab.bytes(token))).toString('utf8'),
        tokenLogprobs,
      })
    }
    return input
  })
}

/** Throws ApiError parameter_not_supported if the vocabulary has no tokens for fill-in-the-middle. */
function requireFimTokens({ fim }: Vocab): FimTokens {
  if (fim) return fim
  throw new ApiError(
    'parameter_not_supported',
    "'suffix': the tokenizer of this model has no tokens for fill-in-the-middle. Leave it out, or ask a code model.",
    { param: 'suffix' },
  )
}

/** The texts of `prompt` or `input`, which is one or several strings or token lists. */
export function textsOf(input: TextOrTokens): (string | number[])[] {
  return typeof input === 'string' || typeof input[0] === 'number'
    ? [input as string | number[]]
    : (input as (string | number[])[])
}

/** Returns `tokens`. Throws ApiError invalid_request if a token is not in the model's vocabulary. */
export function requireKnownTokens(model: Model, tokens: number[], param: string): number[] {
  const unknown = tokens.find((token) => token >= model.vocab.size)
  if (unknown !== undefined)
    throw new ApiError(
      'invalid_request',
      `There is no token ${unknown}: this model has ${model.vocab.size}, from 0 on.`,
      { param },
    )
  return tokens
}
