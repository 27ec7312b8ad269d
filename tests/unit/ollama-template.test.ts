// Chat templates converted to Ollama's language: exactly equivalent, or none.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { parse } from '@evertdespiegeleer/go-template'
import { Template } from '@huggingface/jinja'
import { root } from '../../lib/root.ts'
import { modelfile } from '../../server/features/exports/modelfile.ts'
import { ollamaTemplate } from '../../server/features/exports/ollama-template.ts'
import type { ExportRow } from '../../server/features/exports/store.ts'
import type { ExportSource } from '../../server/features/models/export-source.ts'

const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures/templates', name), 'utf8')
const inOllama = (jinja: string) => ollamaTemplate(jinja, { bos_token: '<s>', eos_token: '</s>' })

test('templates that render each message the same way are converted, including the text that they add', () => {
  assert.equal(
    inOllama(fixture('qwen3.jinja')),
    '{{ range $i, $_ := .Messages }}{{ if eq .Role "system" }}<|im_start|>system\n{{ .Content ' +
      '}}<|im_end|>\n{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}{{ if eq (len (slice ' +
      '$.Messages $i)) 1 }}<|im_end|>\n<|im_start|>assistant\n{{ else }}<|im_end|>\n{{ end }}{{ else if eq ' +
      '.Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n{{ end }}{{ end }}',
  )
  const llama = inOllama(fixture('llama-like.jinja'))!
  assert.ok(llama.startsWith('{{ range $i, $_ := .Messages }}{{ if eq $i 0 }}<s>{{ end }}'), 'no token is cut in two')
  assert.match(inOllama(fixture('smollm2.jinja'))!, /You are a helpful AI assistant named SmolLM/)
  assert.match(
    inOllama(fixture('begun-thoughts.jinja'))!,
    /<\|assistant\|><think>\n\{\{ end \}\}\{\{ else if eq .Role "assistant" \}\}<\|assistant\|>\{\{ .Content \}\}/,
    'thoughts are begun for the last answer alone',
  )
})

test("Go's template engine, which Ollama uses, renders the same text as the model's template", async () => {
  const message = (role: string, content: string) => ({ role, content })
  for (const name of ['qwen3.jinja', 'llama-like.jinja', 'smollm2.jinja', 'begun-thoughts.jinja'])
    for (const messages of [
      [message('user', 'What is {{ .Role }}?')],
      [message('system', 'Be brief.'), message('user', '  Hello <b>  ')],
      [message('user', 'One'), message('assistant', 'Two "2"'), message('user', 'Three')],
      [message('user', 'One'), message('assistant', 'Two'), message('system', 'Be brief.'), message('user', 'Three')],
      [message('user', 'One'), message('user', 'Two')],
      [
        message('system', 'a\nb'),
        message('user', 'One'),
        message('assistant', 'Two'),
        message('user', 'Three'),
        message('assistant', 'Four'),
        message('user', 'Five'),
      ],
    ]) {
      const written = await parse(inOllama(fixture(name))!, {
        Messages: messages.map(({ role, content }) => ({ Role: role, Content: content })),
      })
      const expected = new Template(fixture(name)).render({
        messages,
        add_generation_prompt: true,
        bos_token: '<s>',
        eos_token: '</s>',
      })
      assert.equal(written, expected, name)
    }
})

test('braces in a template are escaped, and templates that cannot be expressed exactly are not converted', () => {
  assert.match(
    inOllama("{% for m in messages %}{{ '{{' + m.role + '}}' + m.content + '\n' }}{% endfor %}{{ '{{assistant}}' }}")!,
    /\{\{ "\{\{" \}\}user\}\}\{\{ \.Content \}\}/,
  )
  // A brace at the end of a piece would join with the following braces.
  assert.match(
    inOllama("{% for m in messages %}{{ m.role + ': {' + m.content + '}\n' }}{% endfor %}{{ 'assistant: {' }}")!,
    /user: \{\{ "\{" \}\}\{\{ \.Content \}\}\{\{/,
  )
  for (const jinja of [
    // Templates that use the position, the number of messages, or the content itself.
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

test('the end token becomes a stop parameter, and cannot inject its own line', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-modelfile-'))
  const linesFor = async (eos_token: string) => {
    writeFileSync(path.join(folder, 'tokenizer_config.json'), JSON.stringify({ eos_token }))
    const model = { folder, base: { id: 'a/b', path: folder, context_length: 512 } } as ExportSource
    return (await modelfile({ gguf: 'm.gguf', projector: undefined }, { merge: 1 } as ExportRow, model))
      .split('\n')
      .slice(2)
  }
  assert.deepEqual(await linesFor('<｜end▁of▁sentence｜>'), [
    'PARAMETER stop "<｜end▁of▁sentence｜>"',
    'PARAMETER num_ctx 512',
    '',
  ])
  for (const eos_token of ['</s>\nFROM other', '</s>"\nFROM other', '</s>\r', '</s>\\', ''])
    assert.deepEqual(await linesFor(eos_token), ['PARAMETER num_ctx 512', ''])
  rmSync(folder, { recursive: true })
})
