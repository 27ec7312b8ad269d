// A chat template said in Ollama's language: exactly what the model's own writes, or nothing.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { parse } from '@evertdespiegeleer/go-template'
import { Template } from '@huggingface/jinja'
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

test('Go’s own template engine, which Ollama has, writes with it what the model’s template writes', async () => {
  const turn = (role: string, content: string) => ({ role, content })
  for (const name of ['qwen3.jinja', 'llama-like.jinja', 'smollm2.jinja', 'begun-thoughts.jinja'])
    for (const messages of [
      [turn('user', 'What is {{ .Role }}?')],
      [turn('system', 'Be brief.'), turn('user', '  Hello <b>  ')],
      [turn('user', 'One'), turn('assistant', 'Two "2"'), turn('user', 'Three')],
      [turn('system', 'a\nb'), turn('user', 'One'), turn('assistant', 'Two'), turn('user', 'Three'), turn('assistant', 'Four'), turn('user', 'Five')],
    ]) {
      const written = await parse(inOllama(fixture(name))!, { Messages: messages.map(({ role, content }) => ({ Role: role, Content: content })) })
      const wanted = new Template(fixture(name)).render({ messages, add_generation_prompt: true, bos_token: '<s>', eos_token: '</s>' })
      assert.equal(written, wanted, name)
    }
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
