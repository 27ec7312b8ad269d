import type { IncomingMessage, ServerResponse } from 'node:http'
import { ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { chatDialect } from '../answer/chat-dialect.ts'
import { controlsOf } from '../chat/controls.ts'
import { prepareConversation } from '../chat/conversation.ts'
import { tokenizePrompt } from '../chat/template.ts'
import { readBody } from '../http-io.ts'
import { type GenerationServices, generate } from './generate.ts'

export async function chatCompletions(services: GenerationServices, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await readBody(request, ChatRequest)
  if (body.top_logprobs && !body.logprobs) throw new ApiError('invalid_request', 'top_logprobs needs logprobs: true beside it.', { param: 'top_logprobs' })
  await generate(services, request, response, body, async ({ model }) => {
    const { prompt, grammar, control_texts, createParser } = prepareConversation(model, body)
    const controls = await controlsOf(model)
    return {
      prompts: [await tokenizePrompt(model, prompt)],
      param: 'messages',
      grammar: grammar && { spec: grammar, vocab: controls.grammar_vocab },
      control_texts: control_texts.length > 0 ? controls.texts : null,
      top_logprobs: body.logprobs ? (body.top_logprobs ?? 0) : null,
      createParser,
      makeDialect: chatDialect,
    }
  })
}
