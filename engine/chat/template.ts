// The model's own chat template (Jinja): parsed once, rendered with bounded input, since a template can multiply its
// input.
import { Template } from '@huggingface/jinja'
import { ApiError } from '../../contract/errors.ts'
import type { Model } from '../llama/model.ts'
import type { PromptText } from '../tokenizer/tokenizer.ts'
import { readSight, type TemplateSight } from './pictures.ts'
import { detectToolFormat, type ToolFormat } from './tool-formats.ts'
import { renderUserText, type Variables } from './user-text.ts'

export type ChatModel = Pick<Model, 'chat_template' | 'vocab' | 'parse_control_tokens'>

export interface ChatTemplate {
  tool_format: ToolFormat
  /** Whether the model reasons between <think> and </think> before it answers. */
  thinks: boolean
  /** Whether the template renders `reasoning_content` of earlier messages. */
  accepts_reasoning: boolean
  /**
   * Markers of answers (<think>, <tool_call>) that are control tokens in some vocabularies. Grammar and parser need
   * them as text.
   */
  control_texts: string[]
  sight: TemplateSight
  /** Throws what the template raises, and what `renderUserText` throws. */
  render(variables: Variables): PromptText
}

const cache = new WeakMap<object, ChatTemplate>()

/** The parsed template of `model`. Throws ApiError model_not_callable if it has none or it can't be parsed. */
export function readTemplate(model: ChatModel): ChatTemplate {
  const cached = cache.get(model)
  if (cached) return cached
  const source = model.chat_template
  if (source === null)
    throw new ApiError('model_not_callable', 'This model has no chat template, so it cannot be asked with messages.', {
      param: 'model',
    })
  const template = parse(source)
  const { bos_text, eos_text } = model.vocab
  const tool_format = detectToolFormat(source)
  const thinks = source.includes('<think>')
  const control_texts = [...(thinks ? ['<think>', '</think>'] : []), ...tool_format.control_texts]
  const render = (variables: Variables) =>
    template.render({ ...variables, add_generation_prompt: true, bos_token: bos_text, eos_token: eos_text })
  const sight = readSight(model.vocab, (content) => render({ messages: [{ role: 'user', content }] }))
  const chatTemplate: ChatTemplate = {
    tool_format,
    thinks,
    control_texts,
    sight,
    accepts_reasoning: source.includes('reasoning_content'),
    render(variables) {
      const { text, controls } = renderUserText(model.vocab, render, variables, {
        answer_texts: control_texts,
        parse_control_tokens: model.parse_control_tokens,
      })
      return { text: sight.complete(text), controls }
    },
  }
  cache.set(model, chatTemplate)
  return chatTemplate
}

// Variables that the service sets, and names that Jinja defines.
const reservedNames = new Set(
  (
    'messages tools add_generation_prompt bos_token eos_token namespace range raise_exception strftime_now ' +
    'true false none True False None'
  ).split(' '),
)
// Numbers are bounded too: a template passes them to `range` and to indentation, where large ones take memory.
const kwargsBounds = { depth: 16, values: 2000, characters: 65_536, number: 1_000_000 }

/**
 * Validates the request's chat_template_kwargs. Throws ApiError invalid_request if a name is reserved or the values are
 * too large.
 */
export function readKwargs(kwargs: Record<string, unknown> | null | undefined): Record<string, unknown> {
  if (!kwargs) return {}
  const param = 'chat_template_kwargs'
  for (const name of Object.keys(kwargs)) {
    if (!/^[A-Za-z_][A-Za-z0-9_]{0,63}$/.test(name) || reservedNames.has(name))
      throw new ApiError('invalid_request', `chat_template_kwargs may not set '${name.slice(0, 80)}'.`, {
        param: `${param}.${name.slice(0, 80)}`,
      })
  }
  if (!isWithinBounds(kwargs, kwargsBounds))
    throw new ApiError(
      'invalid_request',
      `chat_template_kwargs may hold ${kwargsBounds.values} values and ${kwargsBounds.characters} characters, ` +
        `nested ${kwargsBounds.depth} deep, and no number beyond ${kwargsBounds.number}.`,
      { param },
    )
  return kwargs
}

interface Bounds {
  depth: number
  values: number
  characters: number
  number?: number
}

/** Whether JSON data is small enough to render: templates write it indented, once per level. */
export function isWithinBounds(data: unknown, { depth, values, characters, number = Infinity }: Bounds): boolean {
  let valuesLeft = values
  let charactersLeft = characters
  const visit = (value: unknown, depthLeft: number): boolean => {
    if (--valuesLeft < 0 || depthLeft < 0) return false
    if (typeof value === 'string') charactersLeft -= value.length
    if (typeof value === 'number' && Math.abs(value) > number) return false
    if (typeof value === 'object' && value !== null) {
      for (const [key, field] of Object.entries(value)) {
        charactersLeft -= key.length
        if (!visit(field, depthLeft - 1)) return false
      }
    }
    return charactersLeft >= 0
  }
  return visit(data, depth)
}

function parse(source: string): Template {
  try {
    return new Template(source)
  } catch (error) {
    throw new ApiError('model_not_callable', `This model's chat template can't be read: ${(error as Error).message}`, {
      param: 'model',
    })
  }
}
