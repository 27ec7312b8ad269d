// Models that have only a chat template, and requests, for the tests of chat.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import type { ChatRequest } from '../../../contract/chat.ts'
import type { ChatModel } from '../../../engine/chat/template.ts'
import { root } from '../../../lib/root.ts'

const control = (texts: string) =>
  texts.split(' ').map((text, index) => ({ token: index, text, control: true, lstrip: false, rstrip: false }))

const vocab: ChatModel['vocab'] = {
  size: 256,
  bos: null,
  eos: null,
  bos_text: '<s>',
  eos_text: '</s>',
  wants_bos: false,
  isEndOfGeneration: () => false,
  text: () => '',
  bytes: (token) => Buffer.from([token]),
  kind: 'other',
  special_tokens: [
    ...control(
      '<s> </s> <|im_start|> <|im_end|> <|endoftext|> <|start_header_id|> <|end_header_id|> <|eot_id|> ' +
        '[INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS]',
    ),
    ...control('[/TOOL_RESULTS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] <reponame>'),
  ],
  longest_token_bytes: 1,
  adds_space_prefix: false,
  fim: null,
  affixes: { before: [], after: [] },
  hasBytePair: () => false,
  tokenize: (text) => [...Buffer.from(text)],
}

export type TemplateName =
  | 'qwen2.5'
  | 'qwen3'
  | 'mistral-nemo'
  | 'smollm2'
  | 'llama-like'
  | 'begun-thoughts'
  | 'no-system'

export function modelOf(name: TemplateName): ChatModel {
  return {
    chat_template: readFileSync(path.join(root, 'tests/fixtures/templates', `${name}.jinja`), 'utf8'),
    vocab,
    parse_control_tokens: false,
  }
}

export const ask = (fields: Record<string, unknown> = {}): ChatRequest =>
  ({ model: 'm', messages: [{ role: 'user', content: 'Weather in Paris?' }], ...fields }) as ChatRequest

export const place = {
  type: 'object',
  properties: { place: { type: 'string' } },
  required: ['place'],
  additionalProperties: false,
}
export const weather = {
  type: 'function',
  function: { name: 'get_weather', description: 'The weather of a place', parameters: place },
}
export const now = { type: 'function', function: { name: 'now' } }

export const call = (id: string, where: string) => ({
  id,
  type: 'function',
  function: { name: 'get_weather', arguments: `{"place":"${where}"}` },
})
/** A question, two parallel calls and their results. */
export const history = [
  { role: 'user', content: 'Weather in Paris and Rome?' },
  { role: 'assistant', content: null, tool_calls: [call('call_1', 'Paris'), call('call_2', 'Rome')] },
  { role: 'tool', tool_call_id: 'call_1', content: 'Sun' },
  { role: 'tool', tool_call_id: 'call_2', content: 'Rain' },
]
