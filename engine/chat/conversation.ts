// A chat request for one model: the text it is asked with, the form its answer is held to, and how the answer is read.
import type { ChatMessage, ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import type { GrammarSpec } from '../grammar/session.ts'
import { type PromptText, withoutMarks } from '../tokenizer/tokenizer.ts'
import { answerForm, type JsonForm, type Thinking } from './answer-form.ts'
import { adaptHistory, type TemplateMessage, templateMessages } from './messages.ts'
import { createReplyParser, type ReplyForm, type ReplyParser } from './reply-parser.ts'
import { type ChatModel, type ChatTemplate, readKwargs, readTemplate } from './template.ts'
import { checkSchemaOf, planTools, type ToolPlan } from './tool-choice.ts'
import { callsAsText, systemIntoUser, withToolPrompt } from './tool-prompt.ts'

export type Conversation = {
  /** Up to where the assistant's answer begins. */
  prompt: PromptText
  /** What holds the answer to its form while it is decoded; null where it is free. */
  grammar: GrammarSpec | null
  /** Those of the template, where this answer is read for them. */
  control_texts: string[]
  /** A fresh parser for one answer. */
  createParser(): ReplyParser
}

/**
 * Throws ApiError: model_not_callable where the model has no (readable) template, parameter_not_supported for parts
 * that it can't read, schema_not_enforceable, invalid_request where the request contradicts itself or the template
 * refuses the conversation.
 */
export function prepareConversation(model: ChatModel, request: ChatRequest): Conversation {
  const template = readTemplate(model)
  const { syntax } = template.tool_format
  const plan = planTools(request, template.tool_format)
  const json = readResponseFormat(request.response_format)
  if (json && plan && !plan.required && syntax.alone)
    throw new ApiError(
      'parameter_not_supported',
      'This model writes calls of tools as plain JSON, so they can’t be told from an answer in JSON. Send response_format or tools, or set tool_choice to none or required.',
      { param: 'response_format' },
    )
  const prompt = render(
    template,
    templateMessages(model, request.messages, template.takes_reasoning),
    plan,
    readKwargs(request.chat_template_kwargs),
  )
  const thinking = thinkingAfter(template, prompt)
  const form: ReplyForm = {
    thoughts: thinking === 'never' ? null : { begun: thinking === 'begun' },
    calls: plan && { syntax, names: plan.callable.map(({ name }) => name), calls_max: plan.calls_max },
  }
  return {
    prompt,
    grammar: answerForm(json, plan, syntax, thinking),
    control_texts: form.thoughts || plan ? template.control_texts : [],
    createParser: () => createReplyParser(form),
  }
}

/** The prompt of a conversation without tools, as `prepareConversation` makes it. Throws the same. */
export function renderChat(model: ChatModel, messages: readonly ChatMessage[]): PromptText {
  const template = readTemplate(model)
  return render(template, templateMessages(model, messages, template.takes_reasoning), null, {})
}

function render(
  template: ChatTemplate,
  messages: TemplateMessage[],
  plan: ToolPlan | null,
  kwargs: Record<string, unknown>,
): PromptText {
  const { name } = template.tool_format
  const variables = (rendered: TemplateMessage[]) => ({ ...kwargs, messages: rendered })
  try {
    if (name !== 'prompted')
      return template.render({ ...variables(adaptHistory(messages, name)), ...(plan && { tools: plan.shown }) })
    const asText = callsAsText(messages)
    if (!plan) return template.render(variables(asText))
    const withTools = withToolPrompt(asText, plan.shown)
    if (asText[0]?.role === 'system') return template.render(variables(withTools))
    try {
      return template.render(variables(withTools))
    } catch (error) {
      if (error instanceof ApiError) throw error
      // Some templates take no system message, and here the caller has sent none.
      return template.render(variables(systemIntoUser(withTools)))
    }
  } catch (error) {
    if (error instanceof ApiError) throw error
    throw new ApiError(
      'invalid_request',
      `The model's chat template refuses these messages: ${(error as Error).message}`,
      { param: 'messages' },
    )
  }
}

/**
 * Where the prompt leaves a model that thinks: templates begin its thoughts, or end them at once where it shall not
 * think.
 */
function thinkingAfter(template: ChatTemplate, prompt: PromptText): Thinking {
  if (!template.thinks) return 'never'
  const end = withoutMarks(prompt).trimEnd()
  if (end.endsWith('<think>')) return 'begun'
  return end.endsWith('</think>') ? 'never' : 'perhaps'
}

function readResponseFormat(format: ChatRequest['response_format']): JsonForm | null {
  if (!format || format.type === 'text') return null
  if (format.type === 'json_object') return { kind: 'json_object' }
  const { schema } = format.json_schema
  if (!schema)
    throw new ApiError('invalid_request', 'Send the schema that the answer shall have.', {
      param: 'response_format.json_schema.schema',
    })
  checkSchemaOf(schema, 'response_format.json_schema.schema')
  return { kind: 'json_schema', schema }
}
