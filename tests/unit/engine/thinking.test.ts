// Effort and its other names: what a request sets reaches a template under the names that it reads.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ChatRequest } from '../../../contract/chat.ts'
import { prepareConversation } from '../../../engine/chat/conversation.ts'
import type { ChatModel } from '../../../engine/chat/template.ts'
import { stripMarkers } from '../../../engine/tokenizer/tokenizer.ts'
import { ask } from './chat-models.ts'
import { missing, modelNamed, modelWith } from './template-calls.ts'

const prompt = (model: ChatModel, fields: Record<string, unknown>) =>
  stripMarkers(prepareConversation(model, ask(fields)).prompt)
const effort = (model: ChatModel, reasoning_effort: string) => prompt(model, { reasoning_effort })
const kwargs = (model: ChatModel, chat_template_kwargs: object) => prompt(model, { chat_template_kwargs })

test('a model that thinks or not stops at the lowest efforts, by any name of the switch', () => {
  const model = modelNamed('qwen3')
  const off = kwargs(model, { enable_thinking: false })
  const on = prompt(model, {})
  assert.ok(off.endsWith('<think>\n\n</think>\n\n') && !on.endsWith('</think>\n\n'))
  for (const value of ['none', 'minimal']) assert.equal(effort(model, value), off)
  for (const value of ['low', 'medium', 'high', 'xhigh', 'max']) assert.equal(effort(model, value), on)
  for (const names of [{ thinking: false }, { thinking_mode: 'disabled' }, { thinking_budget: 0 }])
    assert.equal(kwargs(model, names), off, JSON.stringify(names))
  assert.equal(kwargs(model, { reasoning_effort: 'none' }), off)
  const both = { reasoning_effort: 'high', chat_template_kwargs: { thinking: false } }
  assert.equal(prompt(model, both), off, 'the variable goes before the effort')
})

test('efforts become the nearest that a template knows', { skip: missing }, () => {
  const read = (name: string, pattern: RegExp) => (value: string) =>
    pattern.exec(effort(modelNamed(name), value))?.[1] ?? null
  const efforts = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']
  const nearest = ['low', 'low', 'low', 'medium', 'high', 'high', 'high']
  assert.deepEqual(efforts.map(read('openai-gpt-oss-120b', /^Reasoning: (\S+)$/m)), nearest)
  assert.deepEqual(efforts.map(read('muse-glimmer', /Reasoning strength: (\w+)/)), nearest)
  assert.deepEqual(efforts.map(read('tencent-Hy3', /reasoning_effort:([a-z_]+)/)), [
    'no_think',
    'no_think',
    'low',
    'low',
    'high',
    'high',
    'high',
  ])
  const seed = read('ByteDance-Seed-OSS', /thinking budget, which is (\d+)/)
  assert.deepEqual(['minimal', 'low', 'medium', 'high'].map(seed), ['512', '1024', '4096', null])
  const deepest = read('deepseek-ai-DeepSeek-V4', /Reasoning Effort: (Absolute maximum)/)
  assert.deepEqual(efforts.map(deepest).slice(4), [null, 'Absolute maximum', 'Absolute maximum'])
  // What this template refuses as its own variable is for its author to say.
  assert.throws(
    () => kwargs(modelNamed('tencent-Hy3'), { reasoning_effort: 'medium' }),
    /should be no_think\/low\/high/,
  )
})

test('flags of low and medium effort are efforts', () => {
  const flags = '{% if low_effort %} low{% elif medium_effort %} medium{% else %} full{% endif %}'
  const model = modelWith(`{% for message in messages %}{{ message.content }}{% endfor %}${flags}`)
  const last = (value: string) => effort(model, value).split(' ').at(-1)
  assert.deepEqual(['none', 'low', 'medium', 'high', 'max'].map(last), ['low', 'low', 'medium', 'full', 'full'])
  assert.ok(kwargs(model, { thinking_budget: 1000 }).endsWith(' low'))
})

test('earlier thoughts stay or go by every name', { skip: missing }, () => {
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello.', reasoning_content: 'A greeting.' },
    { role: 'user', content: 'And now?' },
  ]
  const names = [
    { preserve_thinking: true },
    { keep_past_thinking: true },
    { clear_thinking: false },
    { truncate_history_thinking: false },
    { drop_thinking: false },
  ]
  for (const name of [
    'GLM-4.7-Flash',
    'NVIDIA-Nemotron-3-Nano-30B-A3B-BF16',
    'LFM2.5-8B-A1B',
    'deepseek-ai-DeepSeek-V4',
  ])
    for (const given of names) {
      const [[key, value]] = Object.entries(given) as [[string, boolean]]
      const shown = (kept: boolean) =>
        prompt(modelNamed(name), {
          messages,
          chat_template_kwargs: { [key]: kept ? value : !value, enable_thinking: true },
        }).includes('A greeting.')
      assert.deepEqual([shown(true), shown(false)], [true, false], `${name}, ${key}`)
    }
})

test('an effort that is none is refused; a model that does not think takes any', () => {
  assert.ok(!ChatRequest.safeParse(ask({ reasoning_effort: 'huge' })).success)
  assert.equal(effort(modelNamed('smollm2'), 'high'), prompt(modelNamed('smollm2'), {}))
})

test('a template that knows efforts alone takes thinking turned off for the least of them', { skip: missing }, () => {
  for (const name of ['openai-gpt-oss-120b', 'ByteDance-Seed-OSS', 'upstage-Solar-Open-100B', 'muse-glimmer']) {
    const model = modelNamed(name)
    const least = effort(model, 'none')
    assert.notEqual(least, prompt(model, {}), name)
    for (const off of [{ enable_thinking: false }, { thinking: false }, { thinking_mode: 'disabled' }])
      assert.equal(kwargs(model, off), least, `${name}, ${JSON.stringify(off)}`)
  }
})
