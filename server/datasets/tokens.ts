import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { Template } from '@huggingface/jinja'
import { Tokenizer } from '@huggingface/tokenizers'
import { rowsOf } from './lines.ts'

/** Counts the tokens of a conversation as the trainer will see it: the model's own template, then its own tokenizer. */
export type CountTokens = (messages: { role: string; content: string }[]) => number

const loaded = new Map<string, Promise<CountTokens>>()

/** The counter of the base whose checkpoint lies in `hf`; its files are read once. */
export function tokenCounter(hf: string): Promise<CountTokens> {
  let counter = loaded.get(hf)
  if (!counter) {
    counter = load(hf)
    counter.catch(() => loaded.delete(hf))
    loaded.set(hf, counter)
  }
  return counter
}

// The library's own step of this name knows the decimal digits only; transformers and the engine take every kind of number apart.
const anyNumber = { type: 'Split', pattern: { Regex: '\\p{N}' }, behavior: 'Isolated', invert: false }

async function load(hf: string): Promise<CountTokens> {
  const read = (file: string) => readFile(path.join(hf, file), 'utf8')
  const config = JSON.parse(await read('tokenizer_config.json'))
  const source = await read('chat_template.jinja').catch(() => config.chat_template as string)
  const definition = JSON.parse(await read('tokenizer.json'), (_key, value) => (value?.type === 'Digits' && value.individual_digits ? anyNumber : value))
  const tokenizer = new Tokenizer(definition, config)
  const template = new Template(source)
  const special = { bos_token: text(config.bos_token), eos_token: text(config.eos_token) }
  return (messages) => tokenizer.encode(template.render({ messages, ...special }), { add_special_tokens: false }).ids.length
}

const text = (token: unknown) => (typeof token === 'string' ? token : ((token as { content?: string } | null)?.content ?? ''))

const sampled = 500

/** The mean number of tokens of a row, over at most 500 rows spread evenly; `rows` is how many the file has. Yields to other requests. */
export async function averageTokens(file: string, rows: number, count: CountTokens): Promise<number> {
  const every = Math.max(1, Math.ceil(rows / sampled))
  let row = 0
  let tokens = 0
  let counted = 0
  for await (const json of rowsOf(file)) {
    if (row++ % every !== 0) continue
    tokens += count(JSON.parse(json).messages)
    counted++
    if (counted % 20 === 0) await new Promise(setImmediate)
  }
  return counted === 0 ? 0 : tokens / counted
}
