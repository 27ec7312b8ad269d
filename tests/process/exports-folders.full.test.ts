// Exports as users get them: checked in their target runtime, packed, downloaded, and run by the guides.
// tests/peers has the guides whose programs are large.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { parse } from '@evertdespiegeleer/go-template'
import { Template } from '@huggingface/jinja'
import { root } from '../../lib/root.ts'
import { openGuide } from '../support/guide.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const bin = path.join(root, '.local/python/bin')
const base = path.join(tinyModelsDir(), tiny)
let app: TestApp
let model: string
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-folders-'))
before(async () => {
  app = await startApp()
  model = await app.colourModel()
  await app.api('POST', '/deployments', { name: 'tickets', model })
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

const cases = [
  [
    { format: 'huggingface', archive: 'zip' },
    /^transformers \d/,
    0.001,
    ['config.json', 'model.safetensors', 'tokenizer.json', 'chat_template.jinja', 'README.md'],
  ],
  [{ format: 'onnx', quantization: 'int8' }, /^onnxruntime \d/, 0.15, ['config.json', 'tokenizer.json', 'onnx']],
] as const

for (const [request, runtime, most, holds] of cases)
  test(`${JSON.stringify(request)}: one archive of the folder, which answers like the trainer`, async () => {
    const exported = await app.exported({ model, ...request })
    assert.equal(exported.status, 'ready', JSON.stringify(exported.error))
    assert.match(exported.check!.runtime, runtime)
    assert.ok(
      exported.check!.agrees && exported.check!.log_probability_difference <= most,
      JSON.stringify(exported.check),
    )
    const [file, ...more] = exported.files
    assert.deepEqual(more, [])
    const response = await fetch(`${app.url}/exports/${exported.id}/download`, {
      headers: { authorization: `Bearer ${app.key}` },
    })
    const bytes = new Uint8Array(await response.arrayBuffer())
    assert.equal(createHash('sha256').update(bytes).digest('hex'), file!.sha256)
    const archive = path.join(folder, file!.name)
    writeFileSync(archive, bytes)
    const out = mkdtempSync(path.join(folder, 'out-'))
    execFileSync(path.join(bin, 'python'), [
      '-c',
      'import shutil, sys; shutil.unpack_archive(*sys.argv[1:3])',
      archive,
      out,
    ])
    const [top] = readdirSync(out)
    const names = readdirSync(path.join(out, top!))
    for (const name of holds) assert.ok(names.includes(name), `${name} is among ${names}`)
  })

const follow = (name: string, more: Partial<Parameters<typeof openGuide>[1]> = {}) => {
  const replaced: [string, string][] = [
    ['.local/models/HuggingFaceTB/SmolLM2-135M-Instruct', base],
    ...(more.replaced ?? []),
  ]
  return openGuide(name, { url: app.url, key: app.key, programs: [bin], ...more, replaced })
}
const question = 'I forgot my password for Sync. No rush.'

test('the transformers guide: the merged folder and the adapter on its base answer like the trainer', async () => {
  // The reference answers from the check of the first export.
  const { rows } = JSON.parse(readFileSync(path.join(app.dataDir, 'models', model, 'answers.json'), 'utf8'))
  const [{ messages, answer }] = rows
  assert.equal(messages.length, 1)
  const guide = follow('run-huggingface.md', {
    section: 'transformers',
    replaced: [
      [question, messages[0].content],
      [' --system "Triage the ticket."', ''],
    ],
  })
  try {
    const outputs: string[] = []
    for await (const { command, stdout } of guide.steps()) if (command.startsWith('python')) outputs.push(stdout.trim())
    assert.deepEqual(outputs, [answer.trim(), answer.trim()])
    assert.ok(answer.trim().length > 1)
    const names = readdirSync(path.join(guide.folder, 'tickets-adapter'))
    for (const name of ['adapter_config.json', 'adapter_model.safetensors', 'README.md'])
      assert.ok(names.includes(name), name)
  } finally {
    await guide.close()
  }
})

test('the llama.cpp guide: another reader finds the merged weights, the template and the end token', async () => {
  const guide = follow('run-gguf.md', { section: 'llama.cpp', without: /^(llama-|curl )/ })
  try {
    let dump = ''
    for await (const { command, stdout } of guide.steps()) if (command.startsWith('gguf-dump')) dump = stdout
    assert.match(dump, /general\.architecture = 'llama'/)
    const merged = await app.exported({ model, format: 'huggingface' })
    const response = await fetch(`${app.url}/exports/${merged.id}/download`, {
      headers: { authorization: `Bearer ${app.key}` },
    })
    writeFileSync(path.join(guide.folder, 'merged.tar'), new Uint8Array(await response.arrayBuffer()))
    execFileSync('tar', ['-xf', 'merged.tar', '--strip-components=1'], { cwd: guide.folder })
    const reader = path.join(root, 'tests/support/read_exports.py')
    const facts = JSON.parse(
      execFileSync(path.join(bin, 'python'), [reader, 'tickets.gguf', guide.folder], {
        cwd: guide.folder,
        encoding: 'utf8',
      }),
    )
    // Half a quantization step of 8 bits, and the rounding of a block's scale to 16 bits.
    assert.ok(facts.apart > 0 && facts.apart < 0.005, `weights are ${facts.apart} of their block's largest apart`)
    assert.deepEqual([facts.left, facts.types], [[], ['F32', 'Q8_0']])
    const { eos_token_id } = JSON.parse(readFileSync(path.join(guide.folder, 'generation_config.json'), 'utf8'))
    assert.ok([eos_token_id].flat().includes(facts['tokenizer.ggml.eos_token_id']))
    assert.equal(facts['tokenizer.ggml.tokens'], 49152)
    assert.equal(facts['tokenizer.chat_template'], readFileSync(path.join(guide.folder, 'chat_template.jinja'), 'utf8'))
  } finally {
    await guide.close()
  }
})

test("the Ollama guide: Modelfiles name files in their own folder, their template is the model's own", async () => {
  const guide = follow('run-gguf.md', { section: 'Ollama', without: /^(ollama|curl) / })
  try {
    for await (const _ of guide.steps());
    const read = (folder: string) => {
      const text = readFileSync(path.join(guide.folder, folder, 'Modelfile'), 'utf8')
      const instructions = [...text.matchAll(/^(?:#.*|([A-Z]+) (?:"""([\s\S]*?)"""|(.*)))$/gm)]
      assert.equal(
        instructions.map(([whole]) => whole).join('\n'),
        text.trimEnd(),
        'every line is an instruction or a comment',
      )
      return instructions
        .filter(([, name]) => name)
        .map(([, name, quoted, plain]) => [name!, quoted ?? plain!] as const)
    }
    const [merged, adapter] = [read('tickets'), read('tickets-adapter')]
    const names = (instructions: typeof merged) => instructions.map(([name]) => name)
    assert.deepEqual(names(merged), ['FROM', 'TEMPLATE', 'PARAMETER', 'PARAMETER', 'SYSTEM'])
    assert.deepEqual(names(adapter), ['FROM', 'ADAPTER', 'TEMPLATE', 'PARAMETER', 'PARAMETER'])
    for (const [folder, instructions] of Object.entries({ tickets: merged, 'tickets-adapter': adapter }))
      for (const [name, value] of instructions)
        if (name === 'FROM' || name === 'ADAPTER')
          assert.ok(existsSync(path.join(guide.folder, folder, value)), `${folder}: ${name} ${value}`)
    assert.deepEqual(
      merged.filter(([name]) => name === 'PARAMETER').map(([, value]) => value),
      ['stop "<|im_end|>"', 'num_ctx 2048'],
    )

    const written = merged.find(([name]) => name === 'TEMPLATE')![1]
    const template = new Template(readFileSync(path.join(base, 'hf/chat_template.jinja'), 'utf8'))
    const message = (role: string, content: string) => ({ role, content })
    for (const messages of [
      [message('user', 'Hello "you" {{ .Role }}')],
      [message('system', 'Triage the ticket.'), message('user', question)],
      [message('user', 'one\n'), message('assistant', 'two'), message('user', ' three')],
      [
        message('system', 's'),
        message('user', 'one'),
        message('assistant', '<b>'),
        message('user', 'three'),
        message('assistant', 'four'),
        message('user', 'five'),
      ],
    ]) {
      const values = { Messages: messages.map(({ role, content }) => ({ Role: role, Content: content })) }
      assert.equal(
        await parse(written, values),
        template.render({ messages, add_generation_prompt: true, bos_token: '<|im_start|>', eos_token: '<|im_end|>' }),
      )
    }
  } finally {
    await guide.close()
  }
})
