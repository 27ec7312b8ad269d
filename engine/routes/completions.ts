import type { IncomingMessage, ServerResponse } from 'node:http'
import { CompletionRequest } from '../../contract/completions.ts'
import { ApiError } from '../../contract/errors.ts'
import { completionDialect } from '../answer/completion-dialect.ts'
import { createReplyParser } from '../chat/reply-parser.ts'
import { tokenizePrompt } from '../chat/template.ts'
import { readBody } from '../http-io.ts'
import type { Model } from '../llama/model.ts'
import { requireRoom } from '../prepare.ts'
import { promptPlaces, type Scoring } from '../score.ts'
import { type Asked, type GenerationServices, generate } from './generate.ts'
import { knownTokens, textsOf } from './inputs.ts'

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
      // Plain completions have no form: all text is content.
      createParser: () => createReplyParser({ thoughts: null, calls: null }),
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

function promptsOf(model: Model, prompt: CompletionRequest['prompt']): Promise<number[][]> {
  return Promise.all(textsOf(prompt).map(async (each) => (typeof each === 'string' ? tokenizePrompt(model, each) : knownTokens(model, each, 'prompt'))))
}
