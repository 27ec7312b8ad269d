// The token that ends answers is learned from the template, where the file names another.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { endAsTemplate } from '../../../engine/chat/template.ts'
import { missing, modelWith, sourceOf } from './template-calls.ts'

/** What ends generations of a model with these special tokens, whose file says that they end with `own`. */
function endsOf(template: string, special: string[], own: string[]): string[] {
  const model = modelWith(template)
  const special_tokens = special.map((text, token) => ({ token, text, control: true, lstrip: false, rstrip: false }))
  const vocab = { ...model.vocab, special_tokens, isEndOfGeneration: (token: number) => own.includes(special[token]!) }
  endAsTemplate({ ...model, vocab })
  return special.filter((_, token) => vocab.isEndOfGeneration(token))
}

test('a model ends where its template ends answers, beside where its file does', { skip: missing }, () => {
  const cases: [string, string[]][] = [
    ['Qwen-Qwen3-0.6B', ['<|im_end|>', '<|endoftext|>']],
    // The token that begins the next message.
    ['GLM-4.6', ['<|user|>', '<|endoftext|>']],
    ['poolside-Laguna-XS.2', ['</assistant>', '<|endoftext|>']],
    ['google-gemma-2-2b-it', ['<end_of_turn>', '<|endoftext|>']],
    ['openai-gpt-oss-120b', ['<|return|>', '<|endoftext|>']],
  ]
  const special = ['<|im_start|>', '<|assistant|>', '<|end|>', '<|start|>', '<start_of_turn>', '<assistant>', '<user>']
  for (const [name, ends] of cases)
    assert.deepEqual(endsOf(sourceOf(name), [...ends, ...special], ['<|endoftext|>']), ends, name)
})

test('a token that ends an answer by the file keeps others before it as they are', { skip: missing }, () => {
  const special = ['<|close|>', '<|open|>', '<|end_of_msg|>', '<|im_end|>']
  const template =
    '{% for m in messages %}<|open|>{{ m.role }}<|open|>{{ m.content }}<|close|><|end_of_msg|>{% endfor %}'
  assert.deepEqual(endsOf(template, special, ['<|end_of_msg|>']), ['<|end_of_msg|>'])
  assert.deepEqual(endsOf(template, special, ['<|im_end|>']), ['<|close|>', '<|im_end|>'])
})

test('a template that cannot be used changes nothing', () => {
  for (const template of ['{% for %}', '{{ raise_exception("no") }}', 'text alone'])
    assert.deepEqual(endsOf(template, ['<|im_end|>', '</s>'], ['</s>']), ['</s>'], template)
})
