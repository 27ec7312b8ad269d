// Prepares a chat request for a model: its prompt, the grammar of its answer and the parser of its answer.
import type { ChatMessage, ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import type { GrammarSpec } from '../grammar/session.ts'
import { stopSequences } from '../sampling/stop-sequences.ts'
import { type PromptText, stripMarkers } from '../tokenizer/tokenizer.ts'
import { answerGrammar, type JsonFormat, type Thinking } from './answer-form.ts'
import { asParts } from './content.ts'
import { adaptHistory, type TemplateMessage, templateMessages, withThoughts } from './messages.ts'
import { type PicturePart, picturesOf } from './pictures.ts'
import type { ReplyParser } from './reply.ts'
import { createReplyParser, type ReplyFormat } from './reply-parser.ts'
import { type ChatModel, type ChatTemplate, readKwargs, readTemplate } from './template.ts'
import { thinkingVariables } from './thinking.ts'
import { planTools, requireEnforceable, type ToolPlan } from './tool-choice.ts'
import { callsAsText, mergeSystemIntoUser, withToolPrompt } from './tool-prompt.ts'

export interface Conversation {
  /** Rendered up to the start of the assistant's answer. */
  prompt: PromptText
  /** The pictures of the messages, in order, and the tokens that stand for each in the prompt. */
  pictures: { parts: PicturePart[]; marker: number[] }
  /** Constrains decoding; null if the answer is unconstrained. */
  grammar: GrammarSpec | null
  /** Markers of the template that this answer's parser reads. */
  control_texts: string[]
  /**
   * Sequences that end the text as it is generated. An answer with parts has none: its parser looks for them in the
   * content, so that none ends a call or the thoughts before it.
   */
  stop: readonly string[]
  /** Creates a parser for one answer. */
  createParser(): ReplyParser
}

/**
 * Throws ApiError: model_not_callable (no readable template), parameter_not_supported (a part that the model can't
 * read), schema_not_enforceable, invalid_request (contradictory request, or rejected by the template). `can_see`: the
 * model is loaded with its projector.
 */
export function prepareConversation(model: ChatModel, request: ChatRequest, can_see = false): Conversation {
  const template = readTemplate(model)
  const { tool_format } = template
  const plan = planTools(request, tool_format)
  const json = readResponseFormat(request.response_format)
  if (json && plan && !plan.required && /[{[]/.test(tool_format.ambiguous_start ?? ''))
    throw new ApiError(
      'parameter_not_supported',
      'This model writes calls of tools as plain JSON, so they can’t be distinguished from an answer in JSON. ' +
        'Send response_format or tools, or set tool_choice to none or required.',
      { param: 'response_format' },
    )
  const prompt = render(
    template,
    templateMessages(request.messages, template.thoughts.field !== null, { ...template.sight, can_see }),
    plan,
    thinkingOf(template, request),
  )
  const thinking = thinkingAfter(template, prompt)
  const { thoughts } = template.thoughts
  const replyFormat: ReplyFormat = {
    thoughts: thoughts && thinking !== 'never' ? { startedInPrompt: thinking === 'started', ...thoughts } : null,
    answer: thoughts?.answer.open ? thoughts.answer : null,
    calls: plan && { format: tool_format, tools: plan.callable, calls_max: plan.calls_max },
  }
  const hasParts = Object.values(replyFormat).some((part) => part !== null)
  const stop = stopSequences(request.stop)
  return {
    prompt,
    pictures: { parts: picturesOf(request.messages), marker: template.sight.marker ?? [] },
    grammar: answerGrammar(json, plan, tool_format, thinking, thoughts),
    control_texts: hasParts ? template.control_texts : [],
    stop: hasParts ? [] : stop,
    createParser: () => createReplyParser(replyFormat, hasParts ? stop : []),
  }
}

function thinkingOf(template: ChatTemplate, request: ChatRequest): Record<string, unknown> {
  const kwargs = readKwargs(request.chat_template_kwargs)
  const { reasoning_effort } = request
  // Without either, a prompt is that of a training row.
  if (!reasoning_effort && Object.keys(kwargs).length === 0) return {}
  return thinkingVariables(template.thinking(), reasoning_effort, kwargs)
}

/** The prompt of a conversation without tools, as `prepareConversation` makes it. Throws the same errors. */
export function renderChat(model: ChatModel, messages: readonly ChatMessage[], can_see = false): PromptText {
  const template = readTemplate(model)
  const adapted = templateMessages(messages, template.thoughts.field !== null, { ...template.sight, can_see })
  return render(template, adapted, null, {})
}

function render(
  template: ChatTemplate,
  messages: TemplateMessage[],
  plan: ToolPlan | null,
  kwargs: Record<string, unknown>,
): PromptText {
  const { name } = template.tool_format
  const { parts_only } = template.sight
  const { field, excludes_content } = template.thoughts
  const variables = (rendered: TemplateMessage[]) => ({
    ...kwargs,
    messages: rendered
      .map((message) => (parts_only ? { ...message, content: asParts(message.content) } : message))
      .map((message) => (field === null ? message : withThoughts(message, field, excludes_content))),
  })
  try {
    if (name !== 'prompted')
      return template.render({
        ...variables(adaptHistory(messages, template.tool_format)),
        ...(plan && { tools: plan.shown }),
      })
    const asText = callsAsText(messages)
    if (!plan) return template.render(variables(asText))
    const withTools = withToolPrompt(asText, plan.shown)
    if (asText[0]?.role === 'system') return template.render(variables(withTools))
    try {
      return template.render(variables(withTools))
    } catch (error) {
      if (error instanceof ApiError) throw error
      // Some templates have no system role, and the caller sent no system message.
      return template.render(variables(mergeSystemIntoUser(withTools)))
    }
  } catch (error) {
    if (error instanceof ApiError) throw error
    const bad = template.tool_format.arguments === 'object' ? callWithoutObject(messages) : null
    if (bad !== null)
      throw new ApiError(
        'invalid_request',
        `The arguments of the call '${bad}' in these messages are no JSON object, and this model's chat template ` +
          'takes no others. A call that was cut off cannot be sent back as it is: send {} as its arguments, or leave ' +
          'the call out.',
        { param: 'messages' },
      )
    const why = (error as Error).message
    if (plan && renders(() => render(template, messages, withoutSchemas(plan), kwargs)))
      throw new ApiError(
        'invalid_request',
        `The model's chat template cannot write these tools (${why}). Give every argument a schema that is an ` +
          'object, with a type and a description.',
        { param: 'tools' },
      )
    throw new ApiError('invalid_request', `The model's chat template refuses these messages: ${why}`, {
      param: 'messages',
    })
  }
}

function withoutSchemas(plan: ToolPlan): ToolPlan {
  const { shown } = plan
  return {
    ...plan,
    shown: shown.map((tool) => ({
      ...tool,
      function: { ...tool.function, parameters: { type: 'object', properties: {} } },
    })),
  }
}

function renders(attempt: () => unknown): boolean {
  try {
    attempt()
    return true
  } catch {
    return false
  }
}

/** The id of the first call whose arguments are no JSON object. */
function callWithoutObject(messages: readonly TemplateMessage[]): string | null {
  const isObject = (text: unknown) => {
    try {
      const value: unknown = JSON.parse(String(text))
      return typeof value === 'object' && value !== null && !Array.isArray(value)
    } catch {
      return false
    }
  }
  const calls = messages.flatMap(({ tool_calls = [] }) => tool_calls)
  return calls.find((call) => !isObject(call.function.arguments))?.id ?? null
}

/**
 * Whether the answer may begin with thoughts. Templates may open them in the prompt, or close them at once where
 * thinking is off.
 */
function thinkingAfter(template: ChatTemplate, prompt: PromptText): Thinking {
  const { thoughts, closed_as_turns } = template.thoughts
  if (!thoughts) return 'never'
  const end = stripMarkers(prompt).trimEnd()
  if (end.endsWith(thoughts.open)) return 'started'
  return end.endsWith(thoughts.close) && !closed_as_turns ? 'never' : 'optional'
}

function readResponseFormat(format: ChatRequest['response_format']): JsonFormat | null {
  if (!format || format.type === 'text') return null
  if (format.type === 'json_object') return { kind: 'json_object' }
  const { schema } = format.json_schema
  if (!schema)
    throw new ApiError('invalid_request', 'Send the schema that the answer shall have.', {
      param: 'response_format.json_schema.schema',
    })
  requireEnforceable(schema, 'response_format.json_schema.schema')
  return { kind: 'json_schema', schema }
}
