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
const result = (tool_call_id: string, content: string) => ({ role: 'tool', tool_call_id, content })
const thinking = 'First I look.\nThen I say.'
const rows: object[][] = [
  [user('Hi'), { role: 'assistant', content: '', tool_calls: [noted] }, result('call_number_1', 'Done')],
  [
    system,
    user('Hi'),
    { role: 'assistant', content: '', reasoning_content: thinking, tool_calls: [noted, flags] },
    result('call_number_1', 'Done'),
    result('call_number_2', 'Set'),
    { role: 'assistant', content: 'All is done.' },
    user('And now?'),
  ],
  [
    user('Hi'),
    { role: 'assistant', content: 'I will look.', reasoning_content: thinking, tool_calls: [nested] },
    result('call_number_3', '{"ok": true}'),
  ],
  [
    system,
    user('Hi'),
    { role: 'assistant', content: 'Hello.', reasoning_content: thinking },
    user('How are you?'),
    { role: 'assistant', content: 'Well.' },
    user('Good.'),
  ],
]

/** Templates that transformers cannot render as they are served: it refuses to change lists, and escapes for HTML. */
const unlike = [
  'Kimi-K2-Instruct',
  'Kimi-K2-Thinking',
  'Kimi-K3',
  'llama-cpp-deepseek-r1',
  'meetkai-functionary-medium-v3.1',
]

test('rows with tools and thoughts render in training as in serving', { skip: missing }, () => {
  const few = ['qwen3', 'mistral-nemo', 'llama-like', 'begun-thoughts', 'no-system', 'LFM2-8B-A1B', ...required]
  const names = (process.env.TEST_FULL ? templateNames : few).filter((name) => !unlike.includes(name))
  const templates = names.map(sourceOf)
  const request = path.join(folder, 'request.json')
  writeFileSync(request, JSON.stringify({ tokenizer, templates, rows: rows.map((messages) => ({ messages, tools })) }))
  const printed = execFileSync(
    path.join(root, '.local/python/bin/python'),
    ['-m', 'tests.support.render_rows', request],
    { cwd: root, encoding: 'utf8', maxBuffer: 1e8, stdio: ['ignore', 'pipe', 'ignore'] },
  )
  const trained: (string | null)[][] = JSON.parse(printed)
  for (const [index, name] of names.entries()) {
    const model = modelWith(templates[index]!)
    Object.assign(model.vocab, { bos_text: '<|im_start|>', eos_text: '<|im_end|>' })
    const served = rows.map((messages) => {
      try {
        return stripMarkers(prepareConversation(model, ask({ messages, tools })).prompt)
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        return null
      }
    })
    for (const [row, prompt] of served.entries()) assert.equal(trained[index]![row], prompt, `${name}, row ${row}`)
  }
})
