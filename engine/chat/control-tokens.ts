// Control tokens whose text matters: some vocabularies have the marks of thoughts and calls as such, which are no text
// otherwise.
import type { GrammarVocab } from '../grammar/grammars.ts'
import { type ChatModel, readTemplate } from './template.ts'

export type Controls = {
  /** The text of each such token. */
  texts: ReadonlyMap<number, Buffer>
  /** The vocabulary with these tokens as text; the same object for the same model. */
  grammar_vocab: GrammarVocab
}

const known = new WeakMap<object, Controls>()

/** Those of the model's own template. */
export function controlsOf(model: ChatModel): Controls {
  const before = known.get(model)
  if (before) return before
  const { vocab } = model
  const texts = new Map<number, Buffer>()
  for (const text of readTemplate(model).control_texts) {
    const found = vocab.special_tokens.find((special) => special.control && special.text === text)
    if (found) texts.set(found.token, Buffer.from(text))
  }
  const controls: Controls = {
    texts,
    grammar_vocab: {
      size: vocab.size,
      isEndOfGeneration: vocab.isEndOfGeneration,
      bytes: (token) => texts.get(token) ?? vocab.bytes(token),
    },
  }
  known.set(model, controls)
  return controls
}
