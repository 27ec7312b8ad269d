// Projectors that were trained: what is made from their models, what is served merged, and what a swapped file does.
import assert from 'node:assert/strict'
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
import { until } from '../support/client.ts'
import { dataUrl, disk } from '../support/pictures.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { endless } from '../support/tiny.ts'
import { noVision, tinyEye, visionModelsDir } from '../support/tiny-vision.ts'

const colours = { red: [255, 0, 0], blue: [0, 0, 255], green: [0, 160, 0] } as const
const asked = (colour: readonly [number, number, number], shift = 0) => [
  { type: 'image_url', image_url: { url: dataUrl(disk(64 - shift, 64, [...colour])) } },
  { type: 'text', text: 'Which color?' },
]

describe('a projector that was trained', { skip: noVision }, () => {
  let app: TestApp
  let dataset_id: string
  const models = mkdtempSync(path.join(tmpdir(), 'tunery-models-'))
  const projectorOf = (model: string) => path.join(app.dataDir, 'models', model, 'mmproj.gguf')
  const hashOf = (file: string) => createHash('sha256').update(readFileSync(file)).digest('hex')

  before(async () => {
    cpSync(visionModelsDir('smolvlm'), models, { recursive: true })
    app = await startApp({ TUNERY_MODELS_DIR: models, TUNERY_MERGE_AFTER_TOKENS: '300' })
    const rows = Object.entries(colours).flatMap(([name, colour]) =>
      [0, 1, 2].map((shift) => {
        const messages = [
          { role: 'user', content: asked(colour, shift) },
          { role: 'assistant', content: name },
        ]
        return JSON.stringify({ messages })
      }),
    )
    dataset_id = (await app.upload(`${rows.join('\n')}\n`)).body.id
  })
  after(async () => {
    await app?.stop()
    rmSync(models, { recursive: true })
  })

  const create = (model_id: string, config: object) =>
    app.api('POST', '/fine-tuning/jobs', {
      model_id,
      dataset_id,
      config: { training_config: { epochs: 4, batch_size: 4, learning_rate: 0.003 }, ...config },
    })
  async function trained(model_id: string, config: object) {
    const created = await create(model_id, config)
    assert.equal(created.status, 201, JSON.stringify(created.body))
    const job = await app.untilEnded(created.body.id)
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    const { body } = await app.api('GET', `/fine-tuning/models/${job.model}`)
    assert.equal(body.comparison.agrees, true, JSON.stringify(body.comparison))
    return { id: job.model!, config: created.body.resolved_config }
  }
  async function answer(model: string) {
    const response = await fetch(`${app.url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        model,
        messages: [{ role: 'user', content: asked(colours.blue) }],
        max_tokens: 32,
        temperature: 0,
        ...endless,
      }),
    })
    const body = (await response.json()) as { error?: { message: string; code: string } }
    return { status: response.status, error: body.error, weights: response.headers.get('x-weights') ?? '' }
  }
  const seenWith = async (model: string, file: string) => {
    const { weights, error } = await answer(model)
    assert.ok(weights.includes(`; projector=sha256:${hashOf(file).slice(0, 16)}`), `${weights} ${error?.message}`)
  }
  const withProjector = { target_modules: ['all-linear', 'projector'] }

  test(
    'with an adapter is kept by what continues it, is inherited by whole weights, and stays when it is served ' +
      'merged',
    async () => {
      const first = await trained(tinyEye, { lora_config: withProjector })
      const next = await trained(first.id, {})
      assert.deepEqual(next.config.projector, { value: true, source: 'model' })
      assert.notEqual(hashOf(projectorOf(next.id)), hashOf(projectorOf(first.id)))
      const refused = await create(first.id, { lora_config: { target_modules: ['all-linear'] } })
      assert.match(refused.body.error.message, /"projector"/)

      const whole = await trained(first.id, { method: 'full', training_config: { epochs: 1, learning_rate: 0.0003 } })
      assert.equal(hashOf(projectorOf(whole.id)), hashOf(projectorOf(first.id)))
      await seenWith(whole.id, projectorOf(first.id))
      const onWhole = await trained(whole.id, {})
      assert.ok(!existsSync(projectorOf(onWhole.id)))
      await seenWith(onWhole.id, projectorOf(whole.id))
      const exported = await app.exported({ model: onWhole.id, format: 'gguf', quantization: 'F16' })
      assert.equal(exported.status, 'ready', JSON.stringify(exported.error))
      assert.equal(exported.files[1]!.sha256, hashOf(projectorOf(whole.id)))

      await until('it is served merged', async () => {
        const { weights } = await answer(next.id)
        return weights.includes('merged=1')
      })
      await seenWith(next.id, projectorOf(next.id))
      await seenWith(tinyEye, path.join(models, tinyEye, 'mmproj.gguf'))
    },
  )

  test('with all weights is exported in them, and a swapped or missing file answers nothing', async () => {
    const full = await trained(tinyEye, { method: 'full', lora_config: withProjector })
    const file = projectorOf(full.id)
    assert.notEqual(hashOf(file), hashOf(path.join(models, tinyEye, 'mmproj.gguf')))
    renameSync(file, `${file}.kept`)
    const refused = async (says: RegExp) => {
      const { status, error } = await answer(full.id)
      assert.deepEqual([status, error?.code], [500, 'engine_failed'])
      assert.match(error!.message, says)
    }
    await refused(/mmproj\.gguf.*missing.*trained again/)
    copyFileSync(`${file}.kept`, file)
    appendFileSync(file, 'x')
    await refused(/mmproj\.gguf.*missing, damaged or that of another model/)
    renameSync(`${file}.kept`, file)
    await seenWith(full.id, file)
    for (const format of ['huggingface', 'gguf']) {
      const exported = await app.exported({ model: full.id, format })
      assert.equal(exported.status, 'ready', JSON.stringify(exported.error))
      if (format === 'gguf') assert.equal(exported.files[1]!.sha256, hashOf(file))
    }
  })
})
