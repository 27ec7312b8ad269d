// Marks of thoughts, learned from the templates of published models: thoughts that a model writes between them are
// parsed from its answer, whole and streamed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { prepareConversation } from '../../../engine/chat/conversation.ts'
import { readTemplate } from '../../../engine/chat/template.ts'
import { stripMarkers } from '../../../engine/tokenizer/tokenizer.ts'
import { ask } from './chat-models.ts'
import { missing, modelNamed } from './template-calls.ts'

/** What models write: the field in which templates read thoughts, the texts around them, and around the answer. */
const written: Record<string, { field: string; open: string; close: string; answer?: [string, string] }> = {
  'Qwen-Qwen3-0.6B': { field: 'reasoning_content', open: '<think>', close: '</think>' },
  'Qwen3.5-4B': { field: 'reasoning_content', open: '<think>', close: '</think>' },
  'GLM-4.6': { field: 'reasoning_content', open: '<think>', close: '</think>' },
  'MiniMax-M2': { field: 'reasoning_content', open: '<think>', close: '</think>' },
  'LFM2.5-8B-A1B': { field: 'thinking', open: '<think>', close: '</think>' },
  'ByteDance-Seed-OSS': { field: 'reasoning_content', open: '<seed:think>', close: '</seed:think>' },
  'mistralai-Ministral-3-14B-Reasoning-2512': { field: 'content', open: '[THINK]', close: '[/THINK]' },
  'openai-gpt-oss-120b': {
    field: 'thinking',
    open: '<|channel|>analysis<|message|>',
    close: '<|end|><|start|>assistant',
    answer: ['<|channel|>final<|message|>', ''],
  },
  'google-gemma-4-31B-it': { field: 'reasoning_content', open: '<|channel>thought', close: '<channel|>' },
}

for (const [name, marks] of Object.entries(written))
  test(`the marks of thoughts are learned: ${name}`, { skip: missing }, () => {
    const model = modelNamed(name)
    const { field, thoughts } = readTemplate(model).thoughts
    const [open, close] = marks.answer ?? ['', '']
    assert.equal(field, marks.field)
    assert.deepEqual(thoughts && { open: thoughts.open, close: thoughts.close, answer: thoughts.answer }, {
      open: marks.open,
      close: marks.close,
      answer: { open, close },
    })
    // Whether thoughts are on by default or not.
    const conversation = prepareConversation(model, ask({ chat_template_kwargs: { enable_thinking: true } }))
    const begun = stripMarkers(conversation.prompt).trimEnd().endsWith(marks.open)
    const thought = `${begun ? '' : marks.open}\nIt is <b>late</b>.\n${marks.close}`
    const text = `${thought}${thoughts!.gap}${open}Go [home].${close}`
    for (const length of [text.length, 1, 2, 3, 7]) {
      const parser = conversation.createParser()
      const parsed = { content: '', reasoning: '' }
      const pieces = Array.from({ length: Math.ceil(text.length / length) }, (_, index) =>
        text.slice(index * length, (index + 1) * length),
      )
      for (const part of [...pieces.flatMap((piece) => parser.push(piece)), ...parser.finish(false)])
        if (part.kind !== 'tool_call') parsed[part.kind] += part.text
      assert.deepEqual(parsed, { content: 'Go [home].', reasoning: 'It is <b>late</b>.' }, `in pieces of ${length}`)
    }
  })
