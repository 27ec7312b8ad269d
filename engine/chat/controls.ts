// Control tokens whose text matters: some vocabularies have the marks of thoughts and calls as such, which are no text otherwise.
import type { GrammarVocab } from '../grammar/grammars.ts'
import type { Model } from '../llama/model.ts'
import { type ChatModel, readTemplate } from './template.ts'

export type Controls = {
  /** The text of each such token. */
  texts: ReadonlyMap<number, Buffer>
  /** The vocabulary with these tokens as text; the same object for the same model. */
  grammar_vocab: GrammarVocab
}

const known = new WeakMap<object, Controls>()

/** Those of the model's own template. */
export async function controlsOf(model: ChatModel & Pick<Model, 'vocab'>): Promise<Controls> {
  const before = known.get(model)
  if (before) return before
  const { vocab } = model
  const texts = new Map<number, Buffer>()
  for (const text of readTemplate(model).control_texts) {
    const [token, ...more] = await vocab.tokenize(text, true)
    if (token !== undefined && more.length === 0 && vocab.bytes(token).length === 0) texts.set(token, Buffer.from(text))
  }
  const controls: Controls = {
    texts,
    grammar_vocab: { size: vocab.size, isEndOfGeneration: vocab.isEndOfGeneration, bytes: (token) => texts.get(token) ?? vocab.bytes(token) },
  }
  known.set(model, controls)
  return controls
}
