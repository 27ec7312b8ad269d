// Messages to the text a model was trained on, by the model's own template.
import { Template } from '@huggingface/jinja'
import type { ChatMessage } from '../contract/chat.ts'
import { ApiError } from '../contract/errors.ts'
import type { Model } from './llama/model.ts'

const parsed = new WeakMap<Model, Template>()

/**
 * Renders the conversation and the opening of the assistant's answer. Throws ApiError: model_not_callable where the model has no
 * (readable) template, invalid_request where the template refuses the conversation.
 */
export function renderChat(model: Model, messages: readonly ChatMessage[]): string {
  const template = parsed.get(model) ?? parse(model)
  try {
    return template.render({
      messages: messages.map(({ role, content }) => ({ role: role === 'developer' ? 'system' : role, content: contentText(content) })),
      add_generation_prompt: true,
      bos_token: model.vocab.bos_text,
      eos_token: model.vocab.eos_text,
    })
  } catch (error) {
    throw new ApiError('invalid_request', `The model's chat template refuses these messages: ${(error as Error).message}`, { param: 'messages' })
  }
}

/** The tokens of a prompt, with the one BOS that the model wants, whether or not the text has it already. */
export async function tokenizePrompt(model: Model, text: string): Promise<number[]> {
  const { vocab } = model
  const tokens = await vocab.tokenize(text, true)
  if (vocab.wants_bos && tokens[0] !== vocab.bos) tokens.unshift(vocab.bos!)
  return tokens
}

function parse(model: Model): Template {
  if (model.chat_template === null)
    throw new ApiError('model_not_callable', 'This model has no chat template, so it cannot be asked with messages.', {
      param: 'model',
    })
  try {
    const template = new Template(model.chat_template)
    parsed.set(model, template)
    return template
  } catch (error) {
    throw new ApiError('model_not_callable', `This model's chat template can't be read: ${(error as Error).message}`, { param: 'model' })
  }
}

function contentText(content: ChatMessage['content']): string {
  return typeof content === 'string' ? content : (content ?? []).map((part) => (part.type === 'text' ? part.text : '')).join('')
}
