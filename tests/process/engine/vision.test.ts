// Chat with pictures, on tiny vision models: SmolVLM's pictures in tiles, Qwen's with positions in two dimensions; with
// the long tests also Qwen3-VL's, whose vectors go into several layers, and Gemma's, whose vectors attend to each
// other.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { full } from '../../support/full.ts'
import { dataUrl, disk } from '../../support/pictures.ts'
import { noVision, tinyVision, type VisionFamily } from '../../support/tiny-vision.ts'
import { type Answer, type Engine, readEvents, root, startEngine, textOf, until } from './engine-process.ts'

type Content = string | object[]
const image = (file: Buffer) => ({ type: 'image_url', image_url: { url: dataUrl(file) } })
const text = (written: string) => ({ type: 'text', text: written })
const [red, blue] = [disk(128, 96, [255, 0, 0]), disk(128, 96, [0, 0, 255])]

interface Family {
  family: VisionFamily
  architecture: string
  /** Tokens of a picture of 128 by 96 pixels, with what stands around it. */
  vectors: number
  picture_tokens: number
  placeholder: string
  foreign: VisionFamily
  is_long?: boolean
}
const qwen = { vectors: 48, picture_tokens: 50, placeholder: '<|vision_start|><|image_pad|><|vision_end|>' }
const families: Family[] = [
  // 4 tiles and an overview, 4 vectors each; 13 marks and line breaks.
  {
    family: 'smolvlm',
    architecture: 'llama',
    vectors: 20,
    picture_tokens: 33,
    placeholder: '<image>',
    foreign: 'qwen2_5_vl',
  },
  // 8 by 6 vectors, and 2 marks.
  { family: 'qwen2_5_vl', architecture: 'qwen2vl', ...qwen, foreign: 'smolvlm' },
  { family: 'qwen3_vl', architecture: 'qwen3vl', ...qwen, foreign: 'qwen2_5_vl', is_long: true },
  // 2 marks, and an empty line on each side.
  {
    family: 'gemma3',
    architecture: 'gemma3',
    vectors: 16,
    picture_tokens: 20,
    placeholder: '<start_of_image>',
    foreign: 'smolvlm',
    is_long: true,
  },
]

for (const { family, architecture, vectors, picture_tokens, placeholder, foreign, is_long } of families)
  describe(`a vision model of the family ${family}`, { skip: noVision || (is_long && full.skip) }, () => {
    const folder = mkdtempSync(join(tmpdir(), 'tunery-vision-'))
    let engine: Engine
    let model: string
    let projector: string
    // The tiny model ends no answer by itself.
    const endless = { logit_bias: Object.fromEntries(Array.from({ length: 17 }, (_, token) => [token, -100])) }
    const request = (content: Content, fields: object = {}) => ({
      model: 'vision',
      messages: [{ role: 'user', content }],
      temperature: 0,
      max_tokens: 8,
      ...endless,
      ...fields,
    })
    const chat = (content: Content, fields: object = {}) =>
      engine.ask('POST', '/v1/chat/completions', request(content, fields))
    const answered = async (content: Content, fields: object = {}) => {
      const { status, json } = await chat(content, fields)
      assert.equal(status, 200, JSON.stringify(json))
      return json
    }
    const contentOf = (json: Answer['json']): string => json.choices[0].message.content
    const logprobsOf = (json: Answer['json']): number[] =>
      json.choices[0].logprobs.content[0].top_logprobs.map(({ logprob }: { logprob: number }) => logprob)
    const cachedOf = (json: Answer['json']): number => json.usage.prompt_tokens_details.cached_tokens
    const encoded = () => engine.metric('pictures_total\\{source="encoded"\\}').then((count) => count || 0)

    before(async () => {
      const files = tinyVision(family)
      model = join(files, 'model.gguf')
      projector = join(files, 'mmproj-model.gguf')
      engine = await startEngine(['--model', `vision=${model}`, '--projector', projector])
    })
    after(async () => {
      await engine?.stop()
      rmSync(folder, { recursive: true })
    })

    test('a picture counts as its tokens, and is answered whole and streamed alike', async () => {
      const content = [image(red), text('What is it?')]
      const bare = await answered('What is it?', { max_tokens: 1 })
      const whole = await answered(content)
      assert.equal(whole.usage.prompt_tokens, bare.usage.prompt_tokens + picture_tokens)
      const stream = await readEvents(
        engine.stream(
          '/v1/chat/completions',
          request(content, { stream: true, stream_options: { include_usage: true } }),
        ),
      )
      assert.equal(textOf(stream), contentOf(whole))
      assert.equal(stream.data.at(-1).usage.prompt_tokens, whole.usage.prompt_tokens)
    })

    test('several pictures between texts are each shown in their place', async () => {
      const ask = (...files: Buffer[]) =>
        answered([text('First '), image(files[0]!), text(' then '), image(files[1]!), text('?')], {
          logprobs: true,
          top_logprobs: 5,
          seed: 1,
        })
      const [redBlue, blueRed] = [await ask(red, blue), await ask(blue, red)]
      assert.equal(redBlue.usage.prompt_tokens, blueRed.usage.prompt_tokens)
      assert.notDeepEqual(logprobsOf(redBlue), logprobsOf(blueRed))
    })

    test('a second question about a picture neither encodes nor computes it again', async () => {
      const picture = disk(128, 96, [10, 200, 30])
      await answered([image(picture), text('What is it?')])
      const encodedBefore = await encoded()
      const second = await answered([image(picture), text('Which color has it?')])
      assert.equal(await encoded(), encodedBefore)
      assert.ok(cachedOf(second) >= picture_tokens, `${cachedOf(second)} tokens were cached`)
    })

    test('pictures of one size never share a cache entry', async () => {
      const [one, other] = [disk(128, 96, [250, 250, 0]), disk(128, 96, [250, 249, 0])]
      const fields = { logprobs: true, top_logprobs: 5 }
      await answered([image(one), text('What is it?')], fields)
      const second = await answered([image(other), text('What is it?')], fields)
      assert.ok(cachedOf(second) < picture_tokens, `${cachedOf(second)} tokens were cached`)
      // A seed computes the whole prompt, whatever is cached.
      const fresh = await answered([image(other), text('What is it?')], { ...fields, seed: 1 })
      for (const [rank, logprob] of logprobsOf(second).entries())
        assert.ok(Math.abs(logprob - logprobsOf(fresh)[rank]!) < 1e-3)
    })

    test('an answer that outgrows its slot moves with its pictures', async () => {
      const content = [image(red), text('Tell a story.')]
      const short = contentOf(await answered(content, { max_tokens: 100 }))
      const long = await answered(content, { max_tokens: 600 })
      assert.equal(long.usage.completion_tokens, 600)
      assert.ok(contentOf(long).startsWith(short))
    })

    test('a written placeholder is text, and shows no picture', async () => {
      await answered(`What is ${placeholder}?`)
      const withPicture = await answered([image(red), text(`What is ${placeholder}?`)])
      assert.ok(withPicture.usage.prompt_tokens > picture_tokens)
    })

    test('the tokens of a conversation with pictures are scored as chat computes them', async () => {
      const score = (picture: Buffer, tokens: number[]) =>
        engine.ask('POST', '/internal/score', {
          model: 'vision',
          rows: [
            {
              prompt: [{ role: 'user', content: [image(picture), text('What is it?')] }],
              tokens,
              targets: [tokens.length - 1],
            },
          ],
        })
      const filled = (count: number) => [...Array.from({ length: count }, () => -1), 5, 6]
      const { prompt } = (await score(red, filled(vectors))).json.rows[0]
      assert.equal(prompt.filter((token: number) => token === -1).length, vectors)
      const { content } = (await answered([image(red), text('What is it?')], { logprobs: true, top_logprobs: 20 }))
        .choices[0].logprobs
      const { vocab } = JSON.parse(readFileSync(join(tinyVision(family), 'hf/tokenizer.json'), 'utf8')).model
      const word = content[0].top_logprobs.find(({ token }: { token: string }) => /^[a-zA-Z]+$/.test(token))
      const scored = await score(red, [...prompt, vocab[word.token]])
      assert.ok(Math.abs(scored.json.rows[0].logprobs[0] - word.logprob) < 1e-3)
      const other = await score(blue, [...prompt, vocab[word.token]])
      assert.ok(Math.abs(other.json.rows[0].logprobs[0] - word.logprob) > 1e-3)
      const { status, json } = await score(red, filled(vectors - 1))
      assert.equal(status, 400)
      assert.match(json.error.message, new RegExp(`makes ${vectors} vectors`))
    })

    test('text streams continue beside pictures, and all answers are those that each gets alone', async () => {
      const texts = ['One', 'Two', 'Three'].map((word) => [text(`${word}?`)])
      const pictures = [
        [image(red), text('What?')],
        [image(blue), text('What?')],
      ]
      const all = [...texts, ...pictures]
      const fields = { max_tokens: 40, seed: 1 }
      const alone: string[] = []
      for (const content of all) alone.push(contentOf(await answered(content, fields)))
      const together = await Promise.all(all.map((content) => answered(content, fields)))
      assert.deepEqual(together.map(contentOf), alone)
    })

    test('a caller who leaves while a picture is read harms nobody', async () => {
      // Several leave at different moments: before the request is read, while the picture is encoded, while it answers.
      for (let turns = 0; turns < 5; turns++) {
        const large = disk(600, 400, [turns, 2, 3])
        const content = [image(large), text('What?')]
        const stream = engine.stream('/v1/chat/completions', request(content, { stream: true, max_tokens: 200 }))
        for (let turn = 0; turn < turns; turn++) await engine.ask('GET', '/health')
        stream.disconnect()
      }
      await answered([image(red), text('What?')])
      await until(async () => (await engine.metric('sequences_running')) === 0, 'no sequence runs')
      assert.equal(engine.process.exitCode, null)
    })

    test('an adapter on the base reads pictures too', async () => {
      const adapter = join(folder, 'adapter.gguf')
      execFileSync(join(root, '.local/python/bin/python'), [
        join(import.meta.dirname, 'make-adapter.py'),
        join(root, '.local/llama/source/gguf-py'),
        adapter,
        '1',
        '64',
        '2',
        architecture,
      ])
      const load = { lora_name: 'tuned', lora_path: adapter, base_model_name: 'vision' }
      assert.equal((await engine.ask('POST', '/v1/load_lora_adapter', load)).status, 200)
      const fields = { logprobs: true, top_logprobs: 5 }
      const base = await answered([image(red), text('What?')], fields)
      const tuned = await answered([image(red), text('What?')], { ...fields, model: 'tuned' })
      assert.equal(tuned.usage.prompt_tokens, base.usage.prompt_tokens)
      assert.notDeepEqual(logprobsOf(tuned), logprobsOf(base))
    })

    test('an adapter with its own projector sees with it, and shares no picture with the base', async () => {
      const projectorFile = join(folder, 'mmproj.gguf')
      copyFileSync(projector, projectorFile)
      const negate = `
import sys; sys.path.insert(0, sys.argv[1])
from gguf import GGUFReader
tensors = [each for each in GGUFReader(sys.argv[2], "r+").tensors if each.name.startswith("mm.") and \
each.name.endswith("weight")]
last = tensors[-1].data
last *= -1`
      const gguf = join(root, '.local/llama/source/gguf-py')
      execFileSync(join(root, '.local/python/bin/python'), ['-c', negate, gguf, projectorFile])
      const projector_sha256 = createHash('sha256').update(readFileSync(projectorFile)).digest('hex')
      const load = (fields: object) =>
        engine.ask('POST', '/v1/load_lora_adapter', {
          lora_name: 'sighted',
          lora_path: join(folder, 'adapter.gguf'),
          base_model_name: 'vision',
          ...fields,
        })
      const swapped = await load({ projector, projector_sha256 })
      assert.deepEqual([swapped.status, swapped.json.error.param], [400, 'projector'])
      assert.equal((await load({ projector: projectorFile, projector_sha256 })).status, 200)
      assert.equal((await load({ projector: projectorFile, projector_sha256 })).status, 200)
      assert.equal((await load({})).json.error.code, 'name_taken')
      const fields = { logprobs: true, top_logprobs: 5 }
      const content = [image(disk(128, 96, [7, 80, 90])), text('What?')]
      // With a seed nothing is drafted or cached, so that the same numbers come from the same batches.
      const base = await answered(content, { ...fields, seed: 1 })
      const tuned = await answered(content, { ...fields, model: 'tuned' })
      const encodedBefore = await encoded()
      const sighted = await answered(content, { ...fields, model: 'sighted' })
      assert.equal(await encoded(), encodedBefore + 1, 'its picture is encoded by its own projector')
      assert.equal(sighted.usage.prompt_tokens, base.usage.prompt_tokens)
      assert.notDeepEqual(logprobsOf(sighted), logprobsOf(tuned))
      const again = await answered(content, { ...fields, model: 'sighted' })
      assert.equal(await encoded(), encodedBefore + 1)
      assert.ok(cachedOf(again) >= picture_tokens)
      assert.deepEqual(logprobsOf(await answered(content, { ...fields, seed: 1 })), logprobsOf(base))
      const { headers } = await chat(content, { model: 'sighted' })
      assert.match(
        String(headers['x-weights']),
        new RegExp(`projector=sha256:${projector_sha256.slice(0, 16)}; adapter`),
      )
      assert.equal((await engine.ask('POST', '/v1/unload_lora_adapter', { lora_name: 'sighted' })).status, 200)
      await answered(content, { model: 'tuned' })
    })

    test('a base that changes to its eight-bit form keeps its projector, and its adapters theirs', full, async () => {
      const file = join(folder, 'large.gguf')
      copyFileSync(model, file)
      // A copy is made of files from 32 MB on: bytes after the tensors count.
      truncateSync(file, 33e6)
      const projectorFile = join(folder, 'mmproj.gguf')
      const load = (path: string, body: object) => engine.ask('POST', path, body)
      assert.equal((await load('/internal/load_model', { name: 'large', path: file, projector })).status, 200)
      const content = [image(red), text('What?')]
      const long = engine.stream(
        '/v1/chat/completions',
        request(content, { model: 'large', stream: true, max_tokens: 500, ignore_eos: true }),
      )
      assert.ok(!String((await long.headers).headers['x-weights']).includes('eight_bits'))
      const lora = { lora_name: 'sighted', lora_path: join(folder, 'adapter.gguf'), base_model_name: 'large' }
      assert.equal((await load('/v1/load_lora_adapter', { ...lora, projector: projectorFile })).status, 200)
      const before = await answered(content, { model: 'large' })

      const weights = async (name: string) => String((await chat(content, { model: name })).headers['x-weights'])
      await until(
        async () => (await weights('large')).includes('; eight_bits=1'),
        'the eight-bit form answers',
        120_000,
      )
      const shown = (path: string) =>
        `projector=sha256:${createHash('sha256').update(readFileSync(path)).digest('hex').slice(0, 16)}`
      assert.ok((await weights('large')).includes(shown(projector)))
      const tuned = await weights('sighted')
      assert.ok(tuned.includes(shown(projectorFile)) && tuned.includes('; eight_bits=1'), tuned)
      assert.equal((await answered(content, { model: 'large' })).usage.prompt_tokens, before.usage.prompt_tokens)
      const events = await readEvents(long)
      assert.ok(events.done && textOf(events).length > 0, 'the answer that had begun was cut off')
      assert.equal((await engine.ask('POST', '/v1/unload_lora_adapter', { lora_name: 'sighted' })).status, 200)
      assert.equal((await engine.ask('POST', '/internal/unload_model', { name: 'large' })).status, 200)
      await answered(content)
    })

    test('a picture that cannot be shown is refused, with what to do', async () => {
      const refused = async (content: Content) => {
        const { status, json } = await chat(content)
        return [status, json.error.code, json.error.param, json.error.message] as const
      }
      const url = (value: string) => [{ type: 'image_url', image_url: { url: value } }]
      const field = 'messages.0.content.0.image_url.url'
      for (const [content, says] of [
        [url('https://example.com/a.png'), /data URL/],
        [url('data:image/svg+xml;base64,AAAA'), /data URL/],
        [url('data:image/png;base64,'), /no bytes/],
        [url('data:image/png;base64,AAAA'), /not a JPEG, PNG, WEBP or GIF/],
        [url(dataUrl(red.subarray(0, red.length / 2))), /cannot be decoded/],
      ] as const) {
        const [status, code, param, message] = await refused(content)
        assert.deepEqual([status, code, param], [400, 'invalid_request', field])
        assert.match(message, says)
      }
      assert.match((await refused(Array.from({ length: 11 }, () => image(red))))[3], /takes 10 pictures.*has 11/)
    })

    test('pictures that do not fit the context are refused before they are encoded', async () => {
      const encodedBefore = await encoded()
      const large = disk(family === 'smolvlm' ? 64 : 512, 512, [3, 3, 3])
      const content = [...Array.from({ length: 10 }, () => image(large)), text('word '.repeat(2000))]
      const { status, json } = await chat(content)
      assert.deepEqual([status, json.error.code], [400, 'context_length_exceeded'])
      assert.match(json.error.message, /has \d+ tokens, \d+ of them for its pictures; this model takes 2048/)
      assert.equal(await encoded(), encodedBefore)
    })

    test('without its projector the model says what is missing; one of another model is refused', async () => {
      const loaded = (name: string, fields: object) =>
        engine.ask('POST', '/internal/load_model', { name, path: model, ...fields })
      assert.equal((await loaded('blind', {})).status, 200)
      const { status, json } = await chat([image(red), text('What?')], { model: 'blind' })
      assert.deepEqual([status, json.error.code], [400, 'parameter_not_supported'])
      assert.match(json.error.message, /projector.*mmproj/)
      const foreignFile = join(tinyVision(foreign), 'mmproj-model.gguf')
      const refused = await loaded('foreign', { projector: foreignFile })
      assert.deepEqual([refused.status, refused.json.error.param], [400, 'projector'])
      assert.match(refused.json.error.message, /belongs to another model/)
      const other = await loaded('other', { projector, projector_sha256: '0'.repeat(64) })
      assert.match(other.json.error.message, /is not the file that belongs to the model/)
      const wrong = await loaded('wrong', { projector: model })
      assert.match(wrong.json.error.message, /can't be loaded/)
      const missing = await loaded('missing', { projector: join(folder, 'none.gguf') })
      assert.match(missing.json.error.message, /does not exist/)
      // The refused ones are not loaded, and the loaded one still sees.
      assert.equal((await chat('Hi', { model: 'foreign' })).status, 404)
      await answered([image(red), text('What?')])
    })

    test('without the library for pictures the model reads text, and says what is missing', async () => {
      const lib = join(folder, 'lib')
      const source = join(root, '.local/llama/lib')
      mkdirSync(lib, { recursive: true })
      for (const file of readdirSync(source))
        if (!file.includes('mtmd')) symlinkSync(join(source, file), join(lib, file))
      const blind = await startEngine(['--lib', lib])
      try {
        const load = { name: 'vision', path: model, projector }
        assert.equal((await blind.ask('POST', '/internal/load_model', load)).status, 200)
        const asked = (content: Content) => blind.ask('POST', '/v1/chat/completions', request(content))
        assert.equal((await asked('Hi')).status, 200)
        const { status, json } = await asked([image(red), text('What?')])
        assert.deepEqual([status, json.error.code], [400, 'parameter_not_supported'])
        assert.match(json.error.message, /npm run setup -- --with vision/)
      } finally {
        await blind.stop()
      }
      await assert.rejects(startEngine(['--lib', lib, '--model', `vision=${model}`, '--projector', projector]), /setup/)
    })

    test('it unloads and loads again', async () => {
      const name = 'again'
      for (let round = 0; round < 2; round++) {
        const load = { name, path: model, projector }
        assert.equal((await engine.ask('POST', '/internal/load_model', load)).status, 200)
        await answered([image(blue), text('What?')], { model: name })
        assert.equal((await engine.ask('POST', '/internal/unload_model', { name })).status, 200)
      }
    })
  })
