// A row with tools and thoughts renders in training as the same conversation does when a model is served, with every
// template.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { ApiError } from '../../contract/errors.ts'
import { prepareConversation } from '../../engine/chat/conversation.ts'
import { readTemplate } from '../../engine/chat/template.ts'
import { stripMarkers } from '../../engine/tokenizer/tokenizer.ts'
import { root } from '../../lib/root.ts'
import { ask } from '../unit/engine/chat-models.ts'
import { missing, modelWith, required, sourceOf, templateNames, tools } from '../unit/engine/template-calls.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-templates-'))
after(() => rmSync(folder, { recursive: true }))
const tokenizer = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf')

const call = (id: string, name: string, given: object) => ({
  id,
  type: 'function',
  function: { name, arguments: JSON.stringify(given) },
})
const user = (content: string) => ({ role: 'user', content })
const system = { role: 'system', content: 'Be brief.' }
const noted = call('call_number_1', 'write_note', { text: 'It’s "so".\nAnd so.', title: 'x' })
const flags = call('call_number_2', 'set_flags', { nothing: null, off: false, on: true, unit: 'celsius' })
const nested = call('call_number_3', 'nested', { list: [1, 2.5], tree: { deep: { flag: true }, inner: "it's" } })
/** Doubles of any size, whole floats, and integers beyond the doubles, in every way to write them. */
const numbers = (() => {
  let seed = 1
  const bits = new DataView(new ArrayBuffer(8))
  const word = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0)
  const doubles = Array.from({ length: 100 }, () => {
    bits.setUint32(0, word())
    bits.setUint32(4, word())
    return bits.getFloat64(0)
  }).filter(Number.isFinite)
  const edges = [
    1e-4,
    0.0000999,
    1e-5,
    1e-6,
    1e-7,
    5e-324,
    1e15,
    1e16,
    1e21,
    1e22,
    2 ** 53,
    Number.MAX_VALUE,
    0.1,
    1 / 3,
  ]
  const written = [...doubles, ...edges].flatMap((each) => [String(each), each.toExponential(), String(-each)])
  return [...written, '1.0', '-0.0', '-0', '0', '12', '9007199254740993', '1e999', '1234567890123456789012345', '2.50']
})()
const numeric = {
  ...nested,
  function: { name: 'nested', arguments: `{"list": [${numbers}], "tree": {"deep": {}, "inner": ""}}` },
}
const result = (tool_call_id: string, content: string) => ({ role: 'tool', tool_call_id, content })
const thinking = 'First I look.\nThen I say.'
const conversations: object[][] = [
  [user('Hi'), { role: 'assistant', content: '', tool_calls: [noted] }, result('call_number_1', 'Done')],
  [
    system,
    user('Hi'),
    { role: 'assistant', content: '', reasoning_content: thinking, tool_calls: [noted, flags] },
    // Sent in another order than the calls.
    result('call_number_2', 'Set'),
    result('call_number_1', 'Done'),
    { role: 'assistant', content: 'All is done.' },
    user('And now?'),
  ],
  [
    user('Hi'),
    { role: 'assistant', content: 'I will look.', reasoning_content: thinking, tool_calls: [nested] },
    result('call_number_3', '{"ok": true}'),
  ],
  [user('Hi'), { role: 'assistant', content: '', tool_calls: [numeric] }, result('call_number_3', 'Done')],
  [
    system,
    user('Hi'),
    { role: 'assistant', content: 'Hello.', reasoning_content: thinking },
    user('How are you?'),
    { role: 'assistant', content: 'Well.' },
    user('Good.'),
  ],
]

/** A tool, with what is given of it. */
const tool = (given: object) => [{ type: 'function', function: { name: 'f', description: 'A tool.', ...given } }]
/** Properties as programs write them for values that may be absent, of several types or of a type elsewhere. */
const shapes: Record<string, unknown> = {
  reference: { $ref: '#/$defs/point' },
  several: { anyOf: [{ type: 'integer' }, { type: 'null' }], default: null, title: 'A' },
  types: { type: ['integer', 'null'], description: 'A' },
  values: { enum: ['x', 1, null, true] },
  constant: { const: 'x' },
  anything: true,
  nothing_said: {},
  list: { type: 'array' },
  list_of_several: { type: 'array', items: { anyOf: [{ type: 'string' }, { type: 'number' }] } },
  tuple: { type: 'array', prefixItems: [{ type: 'string' }] },
  map: { type: 'object', additionalProperties: { type: 'integer' } },
  no_description: { type: 'string', description: null },
}
const rows: { messages: object[]; tools: object[] }[] = [
  ...conversations.map((messages) => ({ messages, tools })),
  ...Object.entries(shapes).map(([name, shape]) => {
    const $defs = { point: { type: 'object', properties: { x: { type: 'number' } } } }
    const parameters = { type: 'object', properties: { [name]: shape }, required: [name], $defs }
    return { messages: [user('Hi')], tools: tool({ parameters }) }
  }),
  ...[{}, { parameters: {} }, { parameters: { type: 'object', additionalProperties: true } }].map((given) => ({
    messages: [user('Hi')],
    tools: tool(given),
  })),
]

/** Some templates ask for thoughts only where a request does. */
const answer = { messages: [user('Hi'), { role: 'assistant', content: 'Hello.', reasoning_content: thinking }] }

/** Templates that transformers cannot render as they are served: it refuses to change lists, and escapes for HTML. */
const unlike = [
  'Kimi-K2-Instruct',
  'Kimi-K2-Thinking',
  'Kimi-K3',
  'llama-cpp-deepseek-r1',
  'meetkai-functionary-medium-v3.1',
]

/** Tokens that end a turn in some vocabulary. */
const ends = new Set(
  (
    '</s> <|im_end|> <|eot|> <|eom|> <|call|> <|calls|> <|return|> <|tool_response> <|END_OF_TURN_TOKEN|> <|end|> ' +
    '<end_of_turn> <|endoftext|> <|eom_id|> <|eot_id|> <turn|> <|end_of_text|> [e~['
  ).split(' '),
)
const controlsIn = (source: string): string[] => [
  ...new Set(
    source.match(/<[|｜][^<>|｜'"{} ]+[|｜]>|<\/?[a-z_]+:?[a-z]*>|<\|[a-z_]+>|<[a-z_]+\|>|\[\/?[A-Z_]{3,}\]/g) ?? [],
  ),
]

test('rows with tools and thoughts render in training as in serving', { skip: missing }, () => {
  const few = ['qwen3', 'mistral-nemo', 'llama-like', 'begun-thoughts', 'no-system', 'LFM2-8B-A1B', ...required]
  const names = (process.env.TEST_FULL ? templateNames : few).filter((name) => !unlike.includes(name))
  const templates = names.map((name) => ({ source: sourceOf(name), controls: controlsIn(sourceOf(name)) }))
  const request = path.join(folder, 'request.json')
  writeFileSync(request, JSON.stringify({ tokenizer, templates, rows, answer }))
  const printed = execFileSync(
    path.join(root, '.local/python/bin/python'),
    ['-m', 'tests.support.render_rows', request],
    { cwd: root, encoding: 'utf8', maxBuffer: 1e8, stdio: ['ignore', 'pipe', 'ignore'] },
  )
  const trained: {
    prompts: (string | null)[]
    answer_texts: string[]
    asked: { prompt: string; for_thoughts: boolean } | null
  }[] = JSON.parse(printed)
  for (const [index, name] of names.entries()) {
    const model = modelWith(templates[index]!.source)
    Object.assign(model.vocab, { bos_text: '<|im_start|>', eos_text: '<|im_end|>' })
    const served = rows.map((row) => {
      try {
        return stripMarkers(prepareConversation(model, ask(row)).prompt)
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        return null
      }
    })
    for (const [row, prompt] of served.entries())
      assert.equal(prompt, trained[index]!.prompts[row], `${name}, row ${JSON.stringify(rows[row])}`)
    const { asked } = trained[index]!
    if (asked) {
      const chat_template_kwargs = asked.for_thoughts ? { enable_thinking: true } : {}
      const prompt = prepareConversation(model, ask({ messages: [user('Hi')], chat_template_kwargs })).prompt
      assert.equal(stripMarkers(prompt), asked.prompt, `${name}: what is asked before an answer with thoughts`)
    }
    const { controls } = templates[index]!
    const spelled = (texts: readonly string[]) => controls.filter((text) => texts.includes(text))
    // A vocabulary whose control tokens are the template's markers.
    const special_tokens = controls.map((text, at) => ({
      token: 300 + at,
      text,
      control: true,
      lstrip: false,
      rstrip: false,
    }))
    const isEndOfGeneration = (token: number) => ends.has(controls[token - 300] ?? '')
    const marked = { ...model, vocab: { ...model.vocab, special_tokens, isEndOfGeneration } }
    assert.deepEqual(
      spelled(trained[index]!.answer_texts),
      spelled(readTemplate(marked).answer_texts),
      `${name}: the control tokens that an assistant may spell`,
    )
  }
})
