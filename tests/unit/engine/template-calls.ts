// Templates of published models (from the source of llama.cpp, which set-up unpacks) and of the fixtures, with a
// vocabulary of bytes, and calls of every shape of arguments.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { Template } from '../../../engine/chat/jinja.ts'
import { type ChatModel, readTemplate } from '../../../engine/chat/template.ts'
import { commonPrefix } from '../../../engine/grammar/call-shape.ts'
import { loadXGrammar } from '../../../engine/grammar/xgrammar.ts'
import { root } from '../../../lib/root.ts'
import { modelOf } from './chat-models.ts'

const published = path.join(root, '.local/llama/source/models/templates')
const folders = [published, path.join(root, 'tests/fixtures/templates')]
/** Why there are none of published models; false if there are. */
export const missing = existsSync(published) ? false : 'npm run setup unpacks the templates'

/** Tokens that end a turn in some vocabulary. */
const endTexts = (
  '</s> <|im_end|> <|eot|> <|eom|> <|call|> <|calls|> <|return|> <|tool_response> <|END_OF_TURN_TOKEN|> <SPECIAL_12> ' +
  '<|message_sep|> <｜hy_eos:opensource｜> <｜end▁of▁sentence｜> [e~['
).split(' ')
const endToken = 256

export const templateNames: readonly string[] = folders
  .filter((folder) => existsSync(folder))
  .flatMap((folder) => readdirSync(folder))
  .filter((file) => file.endsWith('.jinja'))
  .map((file) => file.slice(0, -'.jinja'.length))

export function modelWith(template: string): ChatModel {
  const { vocab } = modelOf('smollm2')
  const special_tokens = endTexts.map((text, index) => ({
    token: 300 + index,
    text,
    control: true,
    lstrip: false,
    rstrip: false,
  }))
  const isEndOfGeneration = (token: number) => token >= 300
  return {
    chat_template: template,
    parse_control_tokens: false,
    vocab: { ...vocab, special_tokens, isEndOfGeneration },
  }
}

/** Templates whose form of calls must be learned, by the model that they are of. */
export const required: readonly string[] = [
  'ByteDance-Seed-OSS',
  'GLM-4.6',
  'GLM-4.7-Flash',
  'Kimi-K2-Instruct',
  'LFM2.5-8B-A1B',
  'MiniMax-M2',
  'Mistral-Small-3.2-24B-Instruct-2506',
  'NVIDIA-Nemotron-3-Nano-30B-A3B-BF16',
  'Qwen3-Coder',
  'Qwen3.5-4B',
  'deepseek-ai-DeepSeek-V3.1',
  'deepseek-ai-DeepSeek-V3.2',
  'deepseek-ai-DeepSeek-V4',
  'google-gemma-4-31B-it',
  'llama4-like',
  'mistralai-Ministral-3-14B-Reasoning-2512',
  'muse-glimmer',
  'openai-gpt-oss-120b',
]

const models = new Map<string, ChatModel>()
/** A model with the template of that name, the same one each time: what is learned is kept with it. */
export function modelNamed(name: string): ChatModel {
  const model = models.get(name) ?? modelWith(sourceOf(name))
  models.set(name, model)
  return model
}

export function sourceOf(name: string): string {
  const file = folders.map((folder) => path.join(folder, `${name}.jinja`)).find((each) => existsSync(each))
  return readFileSync(file!, 'utf8')
}

const object = (properties: Record<string, unknown>) => ({
  type: 'object',
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
})
const deep = object({ flag: { type: 'boolean' } })
const schemas = {
  write_note: object({ text: { type: 'string' }, title: { type: 'string' } }),
  count_things: object({ number: { type: 'integer' }, ratio: { type: 'number' } }),
  set_flags: object({
    nothing: { type: 'null' },
    off: { type: 'boolean' },
    on: { type: 'boolean' },
    unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
  }),
  nested: object({
    list: { type: 'array', items: { type: 'integer' } },
    tree: object({ deep, inner: { type: 'string' } }),
  }),
  now: object({}),
}
export const tools = Object.entries(schemas).map(([name, parameters]) => ({
  type: 'function',
  function: { name, description: 'A tool.', parameters },
}))

export type Call = readonly [name: keyof typeof schemas, given: Record<string, unknown>]
const text = `She said "it's 5 o'clock".\n\nUse <tool_call>, </think>, {"name": "x"} or [TOOL_CALLS]. </parameter> é😀`
export const calls: readonly Call[] = [
  ['write_note', { text, title: 'x' }],
  ['count_things', { number: -42, ratio: 2.5 }],
  ['set_flags', { nothing: null, off: false, on: true, unit: 'celsius' }],
  ['nested', { list: [1, 2, 3], tree: { deep: { flag: true }, inner: 'a "b"' } }],
  ['now', {}],
]

/** The answer with these calls as the template writes it, without what ends a turn; null if it writes none. */
export function answerWith(model: ChatModel, given: readonly Call[]): string | null {
  const template = new Template(model.chat_template!)
  const { tool_format } = readTemplate(model)
  const tool_calls = given.map(([name, values], index) => ({
    id: `abcdefgh${index}`,
    type: 'function',
    function: { name, arguments: tool_format.arguments === 'object' ? values : JSON.stringify(values) },
  }))
  const render = (messages: object[], add_generation_prompt: boolean) =>
    template.render({ messages, tools, add_generation_prompt, bos_token: '<s>', eos_token: '</s>' })
  const user = { role: 'user', content: 'Hi' }
  const whole = render([user, { role: 'assistant', content: '', tool_calls }], false)
  const prompt = render([user], true)
  const { shape } = tool_format
  const first = shape?.first.slice(0, shape.first.search(/[\uFDD0-\uFDD3]/)) ?? ''
  const start = whole.indexOf(first, commonPrefix(whole, prompt).length - first.length)
  if (start < 0) return null
  const answer = whole.slice(start)
  const ends = endTexts.map((end) => answer.indexOf(end)).filter((at) => at > 0)
  const plain = render([user, { role: 'assistant', content: 'Zq' }], false)
  const turnEnd = plain.slice(plain.lastIndexOf('Zq') + 2)
  const cut = ends.length > 0 ? answer.slice(0, Math.min(...ends)) : answer
  return turnEnd !== '' && cut.endsWith(turnEnd) ? cut.slice(0, -turnEnd.length) : cut
}

export interface Checker {
  /** Whether a grammar takes the whole text and lets it end. */
  accepts(text: string): Promise<boolean>
}

/** Compiles a structural tag for a vocabulary of bytes. */
export async function createCheckers(): Promise<(tag: object) => Promise<Checker>> {
  const { xgrammar } = loadXGrammar(2 ** 30)
  let others = 256
  // Bytes as GPT-2's vocabulary spells them.
  const spelled = Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad)
    return String.fromCharCode(isPrintable ? byte : others++)
  })
  const tokens = [...spelled, '<end>']
  const info = await xgrammar.TokenizerInfo.createTokenizerInfo(tokens, 'byte_level', false, 257, [endToken])
  const compiler = await xgrammar.GrammarCompiler.createGrammarCompiler(info, false)
  return async (tag) => {
    const compiled = await compiler.compileGrammar(await xgrammar.Grammar.fromStructuralTag(tag))
    return {
      async accepts(written) {
        const matcher = await xgrammar.GrammarMatcher.createGrammarMatcher(compiled)
        const isAccepted = [...Buffer.from(written), endToken].every((token) => matcher.acceptToken(token))
        matcher.dispose()
        return isAccepted
      },
    }
  }
}
