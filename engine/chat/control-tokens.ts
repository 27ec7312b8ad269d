// Control tokens treated as text: some vocabularies have <think> or <tool_call> as control tokens, which have no text.
import type { GrammarVocab } from '../grammar/grammars.ts'
import { type ChatModel, readTemplate } from './template.ts'

export interface Controls {
  /** Text of each such token. */
  texts: ReadonlyMap<number, Buffer>
  /** The vocabulary with these tokens as text. One object per model. */
  grammar_vocab: GrammarVocab
}

const cache = new WeakMap<object, Controls>()

/** The control tokens that the model's template uses as markers. */
export function controlsOf(model: ChatModel): Controls {
  const cached = cache.get(model)
  if (cached) return cached
  const { vocab } = model
  const texts = new Map<number, Buffer>()
  for (const text of readTemplate(model).control_texts) {
    const token = vocab.special_tokens.find((special) => special.control && special.text === text)
    if (token) texts.set(token.token, Buffer.from(text))
  }
  const controls: Controls = {
    texts,
    grammar_vocab: {
      size: vocab.size,
      isEndOfGeneration: vocab.isEndOfGeneration,
      bytes: (token) => texts.get(token) ?? vocab.bytes(token),
    },
  }
  cache.set(model, controls)
  return controls
}
