// The model's own chat template: read once, run with the caller's data, which is bounded since it is the template that
// multiplies it.
import { Template } from '@huggingface/jinja'
import { ApiError } from '../../contract/errors.ts'
import type { Model } from '../llama/model.ts'
import type { PromptText } from '../tokenizer/tokenizer.ts'
import { detectToolFormat, type ToolFormat } from './tool-formats.ts'
import { renderUserText, type Variables } from './user-text.ts'

export type ChatModel = Pick<Model, 'chat_template' | 'vocab' | 'parse_control_tokens'>

export type ChatTemplate = {
  tool_format: ToolFormat
  /** Whether the model thinks between <think> and </think> before it answers. */
  thinks: boolean
  /** Whether earlier thoughts are wanted back in messages. */
  takes_reasoning: boolean
  /**
   * Texts of answers' forms that some vocabularies have as control tokens: where they do, grammar and parser need them
   * as text.
   */
  control_texts: string[]
  /** Throws whatever the template raises, and as `renderUserText` does. */
  render(variables: Variables): PromptText
}

const known = new WeakMap<object, ChatTemplate>()

/** The template of `model`. Throws ApiError model_not_callable where it has none that can be read. */
export function readTemplate(model: ChatModel): ChatTemplate {
  const before = known.get(model)
  if (before) return before
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
  const read: ChatTemplate = {
    tool_format,
    thinks,
    control_texts,
    takes_reasoning: source.includes('reasoning_content'),
    render: (variables) =>
      renderUserText(model.vocab, render, variables, {
        answer_texts: control_texts,
        parse_control_tokens: model.parse_control_tokens,
      }),
  }
  known.set(model, read)
  return read
}

// Set by the service itself, or names that the template language has already.
const reserved = new Set(
  'messages tools add_generation_prompt bos_token eos_token namespace range raise_exception strftime_now true false none True False None'.split(
    ' ',
  ),
)
// A template counts with `range` and indents by numbers: a large one would be memory.
const kwargsBounds = { depth: 16, values: 2000, characters: 65_536, number: 1_000_000 }

/** The caller's further variables of the template. Throws ApiError where one is not free to set, or too large. */
export function readKwargs(kwargs: Record<string, unknown> | null | undefined): Record<string, unknown> {
  if (!kwargs) return {}
  const param = 'chat_template_kwargs'
  for (const name of Object.keys(kwargs)) {
    if (!/^[A-Za-z_][A-Za-z0-9_]{0,63}$/.test(name) || reserved.has(name))
      throw new ApiError('invalid_request', `chat_template_kwargs may not set '${name.slice(0, 80)}'.`, {
        param: `${param}.${name.slice(0, 80)}`,
      })
  }
  if (!isWithin(kwargs, kwargsBounds))
    throw new ApiError(
      'invalid_request',
      `chat_template_kwargs may hold ${kwargsBounds.values} values and ${kwargsBounds.characters} characters, nested ${kwargsBounds.depth} deep, and no number beyond ${kwargsBounds.number}.`,
      { param },
    )
  return kwargs
}

type Bounds = { depth: number; values: number; characters: number; number?: number }

/**
 * Whether JSON data stays within bounds that keep what a template writes of it (indented, a copy a level) in
 * proportion.
 */
export function isWithin(data: unknown, { depth, values, characters, number = Infinity }: Bounds): boolean {
  let valuesLeft = values
  let charactersLeft = characters
  const visit = (value: unknown, depthLeft: number): boolean => {
    if (--valuesLeft < 0 || depthLeft < 0) return false
    if (typeof value === 'string') charactersLeft -= value.length
    if (typeof value === 'number' && Math.abs(value) > number) return false
    if (typeof value === 'object' && value !== null) {
      for (const [key, each] of Object.entries(value)) {
        charactersLeft -= key.length
        if (!visit(each, depthLeft - 1)) return false
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
