// The model's own chat template (Jinja): parsed once, rendered with bounded input, since a template can multiply its
// input.

import { ApiError } from '../../contract/errors.ts'
import type { Model } from '../llama/model.ts'
import type { PromptText } from '../tokenizer/tokenizer.ts'
import { Template } from './jinja.ts'
import type { Probe } from './learn-calls.ts'
import { learnEnd } from './learn-end.ts'
import { type LearnedThoughts, learnThoughts } from './learn-thoughts.ts'
import { readSight, type TemplateSight } from './pictures.ts'
import { EndlessTemplate } from './render-bounds.ts'
import { learnThinking, type ThinkingVariables } from './thinking.ts'
import { type ToolFormat, toolFormatOf } from './tool-formats.ts'
import { renderUserText, type Variables } from './user-text.ts'

export type ChatModel = Pick<Model, 'chat_template' | 'vocab' | 'parse_control_tokens'>

export interface ChatTemplate {
  tool_format: ToolFormat
  /** Whether and how the model reasons before it answers. */
  thoughts: LearnedThoughts
  /**
   * Markers of answers (<think>, <tool_call>) that are control tokens in some vocabularies. Grammar and parser need
   * them as text.
   */
  control_texts: string[]
  /** Those that stay control tokens where an assistant's message spells them. */
  answer_texts: string[]
  sight: TemplateSight
  /** What it reads about thinking; learned at the first call. */
  thinking(): ThinkingVariables
  /** Throws what the template raises, and what `renderUserText` throws. */
  render(variables: Variables): PromptText
}

const cache = new WeakMap<object, ChatTemplate | EndlessTemplate>()

/**
 * The parsed template of `model`. Throws ApiError model_not_callable if it has none or it can't be parsed, and
 * EndlessTemplate.
 */
export function readTemplate(model: ChatModel): ChatTemplate {
  let known = cache.get(model)
  if (!known) {
    try {
      known = learnTemplate(model)
    } catch (error) {
      if (!(error instanceof EndlessTemplate)) throw error
      known = error
    }
    cache.set(model, known)
  }
  if (known instanceof EndlessTemplate) throw known
  return known
}

/** Makes the token with which the model's template ends answers end its generations, beside those of its file. */
export function endAsTemplate({ chat_template, vocab }: ChatModel): void {
  if (chat_template === null) return
  try {
    const tokens = { bos_token: vocab.bos_text, eos_token: vocab.eos_text }
    const special = new Map(vocab.special_tokens.map(({ text, token }) => [text, token]))
    const { isEndOfGeneration } = vocab
    const isEnd = (text: string) => isEndOfGeneration(special.get(text)!)
    const template = parse(chat_template)
    const probes = [false, true].map((parts_only) => probeOf(template, parts_only, tokens))
    const [end] = probes.flatMap((probe) => learnEnd(probe, [...special.keys()], isEnd) ?? [])
    const token = end === undefined ? undefined : special.get(end)
    if (token !== undefined) vocab.isEndOfGeneration = (each) => each === token || isEndOfGeneration(each)
  } catch (error) {
    // Requests that need the template say what is wrong with it.
    if (!(error instanceof EndlessTemplate || error instanceof ApiError)) throw error
  }
}

function learnTemplate(model: ChatModel): ChatTemplate {
  const source = model.chat_template
  if (source === null)
    throw new ApiError('model_not_callable', 'This model has no chat template, so it cannot be asked with messages.', {
      param: 'model',
    })
  const template = parse(source)
  const { bos_text, eos_text } = model.vocab
  const render = (variables: Variables) =>
    template.render({ ...variables, add_generation_prompt: true, bos_token: bos_text, eos_token: eos_text })
  const sight = readSight(model.vocab, (content) => render({ messages: [{ role: 'user', content }] }))
  const probe = probeOf(template, sight.parts_only, { bos_token: bos_text, eos_token: eos_text })
  const { special_tokens } = model.vocab
  const endTexts = [
    eos_text,
    ...special_tokens.filter(({ token }) => model.vocab.isEndOfGeneration(token)).map(({ text }) => text),
  ]
  const tool_format = toolFormatOf(source, probe, endTexts)
  const thoughts = learnThoughts(source, probe, endTexts, tool_format)
  const written = [tool_format.shape, thoughts.thoughts].map((each) => JSON.stringify(each)).join()
  const control_texts = [
    ...(thoughts.thoughts ? [thoughts.thoughts.open, thoughts.thoughts.close] : []),
    ...tool_format.control_texts,
    ...special_tokens
      .filter(({ control, text }) => control && text.length > 1 && written.includes(JSON.stringify(text).slice(1, -1)))
      .map(({ text }) => text)
      .filter((text) => !endTexts.includes(text)),
  ]
  // Markers of every turn stay text where an answer's author spells them.
  const plain = probe(plainTurns) ?? ''
  const answer_texts = control_texts.filter(
    (text) => !plain.includes(text) || [thoughts.thoughts?.open, thoughts.thoughts?.close].includes(text),
  )
  let thinking: ThinkingVariables | null = null
  return {
    tool_format,
    thoughts,
    control_texts,
    answer_texts,
    sight,
    thinking: () => (thinking ??= learnThinking(source, probe)),
    render(variables) {
      const { text, controls } = renderUserText(model.vocab, render, variables, {
        answer_texts,
        parse_control_tokens: model.parse_control_tokens,
      })
      return { text: sight.complete(text), controls }
    },
  }
}

const plainTurns = [
  { role: 'user', content: 'Zq asks.' },
  { role: 'assistant', content: 'Zq answers.' },
]

/** Renders what the learners put into a template. */
function probeOf(
  template: Pick<Template, 'render'>,
  parts_only: boolean,
  tokens: { bos_token: string; eos_token: string },
): Probe {
  const inParts = (message: object & { content?: unknown }) =>
    typeof message.content === 'string' ? { ...message, content: [{ type: 'text', text: message.content }] } : message
  return (messages, variables = {}) => {
    try {
      return template.render({ ...tokens, ...variables, messages: parts_only ? messages.map(inParts) : messages })
    } catch (error) {
      if (error instanceof EndlessTemplate) throw error
      // Templates refuse what they do not take with errors of many types.
      return null
    }
  }
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
