// A chat template said in Ollama's language: exactly what the model's own writes, or nothing.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../server/config.ts'
import { ollamaTemplate } from '../server/exports/ollama-template.ts'

const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures/templates', name), 'utf8')
const inOllama = (jinja: string) => ollamaTemplate(jinja, { bos_token: '<s>', eos_token: '</s>' })

test('templates that write each message the same way become one that does, the words that they add themselves included', () => {
  assert.equal(
    inOllama(fixture('qwen3.jinja')),
    '{{ range $i, $_ := .Messages }}{{ if eq .Role "system" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}{{ if eq (len (slice $.Messages $i)) 1 }}<|im_end|>\n<|im_start|>assistant\n{{ else }}<|im_end|>\n<|im_start|>assistant\n{{ end }}{{ else if eq .Role "assistant" }}{{ .Content }}<|im_end|>\n{{ end }}{{ end }}',
  )
  const llama = inOllama(fixture('llama-like.jinja'))!
  assert.ok(llama.startsWith('{{ range $i, $_ := .Messages }}{{ if and (eq $i 0) (ne .Role "system") }}<s>{{ end }}'), 'no token is cut in two')
  assert.match(inOllama(fixture('smollm2.jinja'))!, /You are a helpful AI assistant named SmolLM/)
  assert.match(
    inOllama(fixture('begun-thoughts.jinja'))!,
    /<think>\n\{\{ else \}\}<\|assistant\|>\{\{ end \}\}/,
    'thoughts are begun for the last answer alone',
  )
})

test('braces of a template stay braces, and what cannot be said exactly is not said', () => {
  assert.match(
    inOllama("{% for m in messages %}{{ '{{' + m.role + '}}' + m.content + '\n' }}{% endfor %}{{ '{{assistant}}' }}")!,
    /\{\{ "\{\{" \}\}user\}\}\{\{ \.Content \}\}/,
  )
  for (const jinja of [
    // The place in the conversation, the number of messages, the content itself.
    '{% for m in messages %}{{ loop.index }}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>',
    '{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<{{ messages | length }}>',
    '{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}\n{% endfor %}<assistant>',
    '{% for m in messages %}<{{ m.role }}>{{ \'"""\' }}{{ m.content }}\n{% endfor %}<assistant>',
    "{{ raise_exception('no') }}",
    '{% for',
  ])
    assert.equal(inOllama(jinja), undefined, jinja)
  assert.equal(inOllama(fixture('no-system.jinja')), undefined)
})
