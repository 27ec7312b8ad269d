// Vision-language models through the service: added from a checkpoint, deployed, called with pictures, and refused
// where a picture or the projector is not what it must be.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  appendFileSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { projectorProblem, sightOf } from '../../server/features/hub/methods.ts'
import { full } from '../support/full.ts'
import { dataUrl, disk, png } from '../support/pictures.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { endless, tiny, tinyModelsDir } from '../support/tiny.ts'
import { noVision, tinyEye, visionFamilies, visionModelsDir } from '../support/tiny-vision.ts'

const image = (url: string) => ({ type: 'image_url' as const, image_url: { url } })
const text = (written: string) => ({ type: 'text' as const, text: written })
const sha256 = (file: Buffer) => createHash('sha256').update(file).digest('hex')
const [red, blue] = [disk(128, 96, [255, 0, 0]), disk(128, 96, [0, 0, 255])]

describe('a vision model of the service', { skip: noVision }, () => {
  let app: TestApp
  let openai: OpenAI
  const models = mkdtempSync(path.join(tmpdir(), 'tunery-models-'))
  const folder = path.join(models, tinyEye)
  const fields = { model: 'eye', temperature: 0, max_tokens: 8, ...endless }
  const ask = (content: OpenAI.ChatCompletionContentPart[], model = 'eye') =>
    openai.chat.completions.create({ ...fields, model, messages: [{ role: 'user', content }] })
  const refused = (asked: Promise<unknown>, param: string | null, says: RegExp, code = 'invalid_request') =>
    assert.rejects(asked, (error: InstanceType<typeof OpenAI.APIError>) => {
      assert.deepEqual([error.status, error.code, error.param], [400, code, param], error.message)
      assert.match(error.message, says)
      return true
    })

  const ok = async (method: string, route: string, body?: unknown) => {
    const answer = await app.api(method, route, body)
    assert.ok(answer.status < 300, JSON.stringify(answer.body))
    return answer.body
  }

  before(async () => {
    cpSync(visionModelsDir('smolvlm'), models, { recursive: true })
    cpSync(path.join(tinyModelsDir(), tiny), path.join(models, tiny), { recursive: true })
    app = await startApp({ TUNERY_MODELS_DIR: models })
    openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 0 })
    await ok('POST', '/deployments/', { name: 'eye', model: tinyEye })
  })
  after(async () => {
    await app?.stop()
    rmSync(models, { recursive: true })
  })

  test('the hub says that it reads pictures, and that this installation serves them', async () => {
    const model = await ok('GET', `/hub/models/${tinyEye}`)
    assert.deepEqual(
      [model.category, model.pictures, model.context_length],
      ['multimodal', { served: true, trained: true, notes: [] }, 2048],
    )
    assert.ok(model.methods.includes('lora'))
    const { models } = await ok('GET', '/hub/')
    const seeing = models.filter(({ category }: { category: string }) => category === 'multimodal')
    assert.ok(seeing.length > 5, 'the catalogue names more')
    const { notes } = sightOf('pixtral')!
    assert.match(notes.join(' '), /not tested with this family.* rows without pictures only/)
    for (const { id, pictures } of seeing) {
      assert.equal(pictures.served, true, id)
      assert.equal(pictures.trained, pictures.notes.length === 0, id)
    }
    for (const trained of [true, false])
      assert.ok(
        seeing.some(({ pictures }: { pictures: { trained: boolean } }) => pictures.trained === trained),
        `a family with trained: ${trained}`,
      )
    assert.equal((await ok('GET', `/hub/models/${tiny}`)).pictures, null)
  })

  test('a picture is answered whole, streamed and as a response, and metered with its tokens', async () => {
    const content = [image(dataUrl(red)), text('What is it?')]
    const bare = await ask([text('What is it?')])
    const { data: whole, response } = await openai.chat.completions
      .create({ ...fields, messages: [{ role: 'user', content }] })
      .withResponse()
    assert.match(response.headers.get('x-weights')!, /; projector=sha256:[0-9a-f]{16}$/)
    const tokens = bare.usage!.prompt_tokens + 33
    assert.equal(whole.usage!.prompt_tokens, tokens)
    assert.notEqual((await ask([image(dataUrl(blue)), text('What is it?')])).choices[0]!.message.content, '')
    const stream = await openai.chat.completions.create({
      ...fields,
      messages: [{ role: 'user', content }],
      stream: true,
      stream_options: { include_usage: true },
    })
    let streamed = ''
    let prompt_tokens = 0
    for await (const chunk of stream) {
      streamed += chunk.choices[0]?.delta.content ?? ''
      prompt_tokens = chunk.usage?.prompt_tokens ?? prompt_tokens
    }
    assert.deepEqual([streamed, prompt_tokens], [whole.choices[0]!.message.content, tokens])
    const answered = await openai.responses.create({
      model: 'eye',
      temperature: 0,
      max_output_tokens: 8,
      input: [
        {
          role: 'user',
          content: [
            { type: 'input_image', image_url: dataUrl(red), detail: 'auto' },
            { type: 'input_text', text: 'What is it?' },
          ],
        },
      ],
    })
    assert.equal(answered.usage!.input_tokens, tokens)
    const again = await openai.responses.create({
      model: 'eye',
      max_output_tokens: 1,
      previous_response_id: answered.id,
      input: 'And now?',
    })
    assert.ok(again.usage!.input_tokens > tokens, 'the picture is in the next turn')
    const batch = await ok('POST', '/chat/completions/batch', {
      ...fields,
      requests: [{ messages: [{ role: 'user', content }] }],
    })
    assert.equal(batch.usage.prompt_tokens, tokens)
    const { total } = await ok('GET', '/usage')
    assert.ok(total.prompt_tokens >= 4 * tokens)
  })

  test('a picture that cannot be shown costs a 400 that says what to do', async () => {
    const field = 'messages.0.content.0.image_url.url'
    const bomb = png(1, 1, () => [0, 0, 0])
    bomb.writeUInt32BE(50_000, 16)
    bomb.writeUInt32BE(50_000, 20)
    const svg = `data:image/svg+xml;base64,${Buffer.from('<svg/>').toString('base64')}`
    for (const [url, says] of [
      ['https://example.com/a.png', /data URL/],
      [svg, /data URL/],
      [`data:image/png;base64,${Buffer.from('<svg/>').toString('base64')}`, /not a JPEG, PNG, WEBP or GIF/],
      [dataUrl(bomb), /50000 × 50000 pixels/],
      [dataUrl(Buffer.concat([red, Buffer.alloc(10_000_000)])), /10 MB is the most/],
      [dataUrl(red.subarray(0, red.length / 2)), /cannot be decoded/],
    ] as const)
      await refused(ask([image(url), text('What?')]), field, says)
    await refused(ask(Array.from({ length: 11 }, () => image(dataUrl(red)))), 'messages', /takes 10 pictures.*11/)
    await refused(ask([image(dataUrl(red)), text('?')], tiny), field, /text only/, 'parameter_not_supported')
    const input_image = {
      type: 'input_image' as const,
      image_url: 'https://example.com/a.png',
      detail: 'auto' as const,
    }
    await refused(
      openai.responses.create({ model: 'eye', input: [{ role: 'user', content: [input_image] }] }),
      'input',
      /data URL/,
    )
    const long = ask([text('a'.repeat(9 * 1024 * 1024))])
    await assert.rejects(long, { status: 413, code: 'body_too_large' })
  })

  const trainsAndExports = async (tinyEye: string, projectorToo: boolean) => {
    const folder = path.join(models, tinyEye)
    const colours = { red: [255, 0, 0], blue: [0, 0, 255], green: [0, 160, 0], black: [0, 0, 0] } as const
    const rows = Object.entries(colours).flatMap(([name, colour]) =>
      [0, 1, 2, 3].map((shift) =>
        JSON.stringify({
          messages: [
            { role: 'user', content: [image(dataUrl(disk(64 - shift, 64, colour))), text('Which color?')] },
            { role: 'assistant', content: name },
          ],
        }),
      ),
    )
    const dataset = (await app.upload(`${rows.join('\n')}\n`)).body
    const ofTheTower = { lora_config: { target_modules: ['q_proj', 'out_proj'] } }
    const refused = await app.api('POST', '/fine-tuning/jobs', {
      model_id: tinyEye,
      dataset_id: dataset.id,
      config: ofTheTower,
    })
    assert.equal(refused.status, 400, 'the part that sees is not trained')
    const projectorOf = (model_id: string, ...others: string[]) =>
      app.api('POST', '/fine-tuning/jobs', {
        model_id,
        dataset_id: dataset.id,
        config: { lora_config: { target_modules: ['projector', ...others] } },
      })
    assert.match((await projectorOf(tiny, 'all-linear')).body.error.message, /projector.*reads text only/)
    assert.match((await projectorOf(tinyEye)).body.error.message, /names the projector alone/)
    const { id } = await ok('POST', '/fine-tuning/jobs', {
      model_id: tinyEye,
      dataset_id: dataset.id,
      config: {
        lora_config: { r: 16, ...(projectorToo && { target_modules: ['all-linear', 'projector'] }) },
        training_config: { epochs: 12, batch_size: 4, learning_rate: 0.02 },
        evaluation_config: { validation_split: 0.25 },
      },
    })
    const job = await app.untilEnded(id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const model = await ok('GET', `/fine-tuning/models/${job.model}`)
    assert.equal(model.comparison.agrees, true, JSON.stringify(model.comparison))
    const probe = readFileSync(path.join(app.dataDir, 'models', job.model!, 'probe.json'), 'utf8')
    assert.ok(JSON.parse(probe).rows.every(({ tokens }: { tokens: number[] }) => tokens.includes(-1)))
    const [trained, base] = [job.model!, tinyEye]
    const recorded = JSON.parse(readFileSync(path.join(folder, 'model.json'), 'utf8'))
    const trainedProjector = path.join(app.dataDir, 'models', trained, 'mmproj.gguf')
    const projector_sha256 = projectorToo ? sha256(readFileSync(trainedProjector)) : recorded.projector_sha256
    assert.equal(existsSync(trainedProjector), projectorToo)
    assert.equal(model.projector_sha256, projectorToo ? projector_sha256 : null)
    assert.equal(projector_sha256 !== recorded.projector_sha256, projectorToo)
    const answer = async (of: string) => {
      const content = [image(dataUrl(disk(62, 64, colours.red))), text('Which color?')]
      const asked = openai.chat.completions.create({ ...fields, model: of, messages: [{ role: 'user', content }] })
      const { data, response } = await asked.withResponse()
      return { tokens: data.usage!.prompt_tokens, weights: response.headers.get('x-weights')! }
    }
    const [byTrained, byBase] = [await answer(trained), await answer(base)]
    assert.equal(byTrained.tokens, byBase.tokens)
    assert.ok(byTrained.weights.includes(`; projector=sha256:${projector_sha256.slice(0, 16)};`), byTrained.weights)
    assert.ok(byBase.weights.endsWith(`; projector=sha256:${recorded.projector_sha256.slice(0, 16)}`), byBase.weights)

    const gguf = await app.exported({ model: trained, format: 'gguf', quantization: 'F16' })
    assert.equal(gguf.status, 'ready', JSON.stringify(gguf.error))
    assert.equal(gguf.check!.agrees, true)
    const [file, projector, modelfile] = gguf.files.map(({ name }) => name)
    assert.match(`${file} ${projector} ${modelfile}`, /^\S+-F16\.gguf mmproj-\S+\.gguf Modelfile$/)
    assert.equal(gguf.files[1]!.sha256, projector_sha256)
    if (process.env.TEST_FULL) {
      for (const merge of [true, false]) {
        const folder = await app.exported({ model: trained, format: 'huggingface', merge })
        assert.equal(folder.status, 'ready', JSON.stringify(folder.error))
        const archive = path.join(app.dataDir, 'exports', folder.id, folder.files[0]!.name)
        assert.match(execFileSync('tar', ['tf', archive], { encoding: 'utf8' }), /preprocessor_config\.json/)
      }
      const bundle = path.join(models, `${gguf.id}-bundle`)
      await promisify(execFile)(path.join(root, 'tunery'), ['bundle', gguf.id, '-o', bundle], {
        env: { ...process.env, TUNERY_URL: app.url, TUNERY_KEY: app.key },
      })
      const { projector } = JSON.parse(readFileSync(path.join(bundle, 'bundle.json'), 'utf8'))
      assert.equal(projector.sha256, projector_sha256)
      const alone = await app.exported({ model: trained, format: 'gguf', merge: false })
      assert.equal(alone.status, 'ready', JSON.stringify(alone.error))
      const names = alone.files.map(({ name }) => name).join(' ')
      assert.match(names, projectorToo ? /^\S+-adapter-F16\.gguf mmproj-\S+\.gguf Modelfile$/ : /^\S+ Modelfile$/)
    }
    const onnx = await app.api('POST', '/exports', { model: trained, format: 'onnx' })
    assert.deepEqual([onnx.status, onnx.body.error.details.field], [400, 'format'])
    assert.match(onnx.body.error.message, /reads pictures/)

    const shown = projectorToo ? trainedProjector : path.join(folder, 'mmproj.gguf')
    const kept = `${shown}.kept`
    renameSync(shown, kept)
    copyFileSync(kept, shown)
    appendFileSync(shown, 'x')
    const foreign = await app.exported({ model: trained, format: 'gguf', quantization: 'F16' })
    renameSync(kept, shown)
    assert.deepEqual([foreign.status, foreign.error!.code], ['failed', 'base_missing'])
    assert.match(foreign.error!.message, /projector.*another one than in training/)
  }
  test('rows with pictures train a model that is checked by them and exported with its projector', full, () =>
    trainsAndExports(tinyEye, false),
  )
  test('a projector that is trained too is that of its model alone, and exported with it', full, () =>
    trainsAndExports(tinyEye, true),
  )
  for (const family of visionFamilies.filter((visionFamily) => visionFamily !== 'smolvlm'))
    test(`so do those of the family ${family}`, full, async () => {
      const other = `test/tiny-${family}`
      cpSync(path.join(visionModelsDir(family), tinyEye), path.join(models, other), { recursive: true })
      await trainsAndExports(other, false)
      if (projectorProblem(other, family) === null) await trainsAndExports(other, true)
    })

  test('a projector that was exchanged, also for one of the same shape, answers nothing', async () => {
    const other = `${tinyEye}-2`
    cpSync(folder, path.join(models, other), { recursive: true })
    appendFileSync(path.join(models, other, 'mmproj.gguf'), 'x')
    const failed = (says: RegExp) =>
      assert.rejects(ask([text('Hi')], other), (error: InstanceType<typeof OpenAI.APIError>) => {
        assert.deepEqual([error.status, error.code], [500, 'engine_failed'])
        assert.match(error.message, says)
        return true
      })
    await failed(/mmproj\.gguf.*missing, damaged or that of another model/)
    rmSync(path.join(models, other, 'mmproj.gguf'))
    await failed(/mmproj\.gguf.*missing/)
    cpSync(path.join(folder, 'mmproj.gguf'), path.join(models, other, 'mmproj.gguf'))
    assert.equal((await ask([image(dataUrl(red)), text('Hi')], other)).object, 'chat.completion')
  })
})
