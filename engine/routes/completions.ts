import type { IncomingMessage, ServerResponse } from 'node:http'
import { CompletionRequest } from '../../contract/completions.ts'
import { ApiError } from '../../contract/errors.ts'
import { completionDialect } from '../answer/completion-dialect.ts'
import type { ReplyParser } from '../chat/reply-parser.ts'
import { tokenizePrompt } from '../chat/template.ts'
import { readBody } from '../http-io.ts'
import type { Model } from '../llama/model.ts'
import { requireRoom } from '../prepare.ts'
import { promptPlaces, type Scoring } from '../score.ts'
import { type Asked, type GenerationServices, generate } from './generate.ts'

export async function completions(services: GenerationServices & { scoring: Scoring }, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await readBody(request, CompletionRequest)
  const echo = body.echo === true
  const echoOnly = body.max_tokens === 0
  if (echoOnly && !echo) throw new ApiError('invalid_request', 'max_tokens: 0 gives an answer only with echo: true.', { param: 'max_tokens' })
  await generate(services, request, response, body, async (served, use) => {
    const { model } = served
    const prompts = await promptsOf(model, body.prompt)
    const asked: Asked = {
      prompts,
      param: 'prompt',
      grammar: null,
      control_texts: null,
      top_logprobs: body.logprobs ?? null,
      createParser: plainParser,
      makeDialect: completionDialect,
      echoOnly,
    }
    if (!echo) return asked
    asked.echo = []
    for (const prompt of prompts) {
      requireRoom(model, services.limits, prompt, 'prompt')
      const places = body.logprobs == null ? [] : await promptPlaces(services.scoring, served, prompt, body.logprobs, use.signal)
      asked.echo.push({ text: Buffer.concat(prompt.map((token) => model.vocab.bytes(token))).toString('utf8'), places })
    }
    return asked
  })
}

/** Plain completions have no form: all text is content. */
function plainParser(): ReplyParser {
  return { push: (text) => [{ kind: 'content', text }], finish: () => [], calledTools: () => false }
}

async function promptsOf(model: Model, prompt: CompletionRequest['prompt']): Promise<number[][]> {
  const given = typeof prompt === 'string' || typeof prompt[0] === 'number' ? [prompt as string | number[]] : (prompt as (string | number[])[])
  return Promise.all(given.map((each) => tokensOf(model, each)))
}

/** The tokens of a text, or the tokens as given, which must be of this vocabulary. */
export async function tokensOf(model: Model, input: string | number[], param = 'prompt'): Promise<number[]> {
  if (typeof input === 'string') return tokenizePrompt(model, input)
  const unknown = input.find((token) => token >= model.vocab.size)
  if (unknown !== undefined) throw new ApiError('invalid_request', `There is no token ${unknown}: this model has ${model.vocab.size}, from 0 on.`, { param })
  return input
}
