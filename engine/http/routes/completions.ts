import type { IncomingMessage, ServerResponse } from 'node:http'
import { CompletionRequest } from '../../../contract/completions.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { TextOrTokens } from '../../../contract/lists.ts'
import { createReplyParser } from '../../chat/reply-parser.ts'
import type { Model } from '../../llama/model.ts'
import { completionDialect } from '../answer/completion-format.ts'
import { header, readBody } from '../io.ts'
import { requireRoom } from '../prepare.ts'
import { type Asked, type GenerationServices, generate } from './generate.ts'
import { type EchoServices, promptPlaces } from './score.ts'

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
  await generate(services, request, response, body, async (served, use, tokenize) => {
    const { model } = served
    const controls = body.parse_special === false ? 'none' : 'all'
    const ofText = (text: string) => tokenize({ text, controls }, 'prompt')
    const prompts = await Promise.all(
      textsOf(body.prompt).map((each) =>
        typeof each === 'string' ? ofText(each) : knownTokens(model, each, 'prompt'),
      ),
    )
    const asked: Asked = {
      prompts,
      param: 'prompt',
      grammar: null,
      control_texts: null,
      top_logprobs: body.logprobs ?? null,
      // Plain completions have no form: all text is content.
      createParser: () => createReplyParser({ thoughts: null, calls: null }),
      makeDialect: completionDialect,
      echoOnly,
    }
    if (!echo) return asked
    asked.echo = []
    for (const prompt of prompts) {
      requireRoom(model, services.limits, prompt, 'prompt')
      const places =
        body.logprobs == null
          ? []
          : await promptPlaces(services, served, prompt, body.logprobs, { account, signal: use.signal })
      asked.echo.push({ text: Buffer.concat(prompt.map((token) => model.vocab.bytes(token))).toString('utf8'), places })
    }
    return asked
  })
}

// The forms in which a request may give texts: one or several, each as a string or as its tokens.

/** Each text of what `prompt` or `input` was given. */
export function textsOf(given: TextOrTokens): (string | number[])[] {
  return typeof given === 'string' || typeof given[0] === 'number'
    ? [given as string | number[]]
    : (given as (string | number[])[])
}

/** Returns `tokens`. Throws ApiError invalid_request where the model's vocabulary lacks one of them. */
export function knownTokens(model: Model, tokens: number[], param: string): number[] {
  const unknown = tokens.find((token) => token >= model.vocab.size)
  if (unknown !== undefined)
    throw new ApiError(
      'invalid_request',
      `There is no token ${unknown}: this model has ${model.vocab.size}, from 0 on.`,
      { param },
    )
  return tokens
}
