// A bundle of a model that reads pictures: it carries the projector and the source of the library for pictures, which
// its image and the commands without Docker compile, and answers as this checkout's engine does.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import OpenAI from 'openai'
import { root } from '../../lib/root.ts'
import { copyStage, environmentOf, jsonOf, stagesOf } from '../support/dockerfile-copies.ts'
import { dataUrl, disk } from '../support/pictures.ts'
import { type Standalone, standalone, startEngineOnPort } from '../support/standalone.ts'
import { endless } from '../support/tiny.ts'
import { noVision, tinyEye, visionModelsDir } from '../support/tiny-vision.ts'

// Set by scripts/test.ts for trainers; a bundle refuses settings that it does not have.
delete process.env.TUNERY_TRAINING_PRIORITY

const sources = path.join(root, '.local/llama/mtmd/source/LICENSE')
const why = noVision || (!existsSync(sources) && 'set-up of an earlier version: npm run setup -- --with vision')

describe('a bundle of a model that reads pictures', { skip: why }, () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bundle-'))
  const bundle = path.join(folder, 'eye-bundle')
  const app = path.join(folder, 'app')
  const servers: Standalone[] = []
  let files: { gguf: string; projector: string }

  before(() => {
    const model = path.join(visionModelsDir('smolvlm'), tinyEye)
    files = { gguf: path.join(model, 'model.gguf'), projector: path.join(model, 'mmproj.gguf') }
    const args = ['eye', '--gguf', files.gguf, '--projector', files.projector, '--chart', '-o', bundle]
    const { status, stdout, stderr } = spawnSync(path.join(root, 'tunery'), ['bundle', ...args], { encoding: 'utf8' })
    assert.equal(status, 0, stderr)
    assert.match(stdout, /npm ci .* && node vision\/build\.mjs && node start\.mjs/)
  })
  after(async () => {
    for (const server of servers) {
      server.kill('SIGKILL')
      await server.exited
    }
    rmSync(folder, { recursive: true })
  })

  const ask = async ({ url }: Standalone, colour: readonly [number, number, number]) => {
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
    const { choices, usage } = await openai.chat.completions.create({
      model: 'eye',
      temperature: 0,
      max_tokens: 8,
      logprobs: true,
      ...endless,
      messages: [
        {
          role: 'user',
          content: [
            { type: 'image_url', image_url: { url: dataUrl(disk(128, 96, colour)) } },
            { type: 'text', text: 'What is it?' },
          ],
        },
      ],
    })
    return { tokens: choices[0]!.logprobs!.content!.map(({ token, logprob }) => [token, logprob]), usage }
  }

  test('its image compiles the library, and shows the model pictures', async () => {
    const { model, projector } = JSON.parse(readFileSync(path.join(bundle, 'bundle.json'), 'utf8'))
    assert.deepEqual([model.name, projector.file], ['eye', 'model/mmproj.gguf'])
    const readme = readFileSync(path.join(bundle, 'README.md'), 'utf8')
    assert.match(readme, /ignore-scripts\nnode vision\/build\.mjs\nnode start\.mjs/)
    assert.match(readme, /reads pictures/)
    assert.match(readFileSync(path.join(bundle, 'chart/values.yaml'), 'utf8'), /name: "eye"/)

    const stages = stagesOf(path.join(bundle, 'Dockerfile'))
    const [packages, vision] = [path.join(folder, 'packages'), path.join(folder, 'vision')]
    copyStage(stages.packages!, packages, bundle)
    execFileSync('npm', ['ci', '--omit=dev', '--ignore-scripts'], { cwd: packages, stdio: 'pipe' })
    copyStage(stages.vision!, vision, bundle, { packages })
    assert.match(stages.vision!.text, /^RUN node vision\/build\.mjs$/m)
    // A start without it says what to do.
    const image = stages.last!
    copyStage(image, app, bundle, { vision })
    const early = spawnSync(process.execPath, ['start.mjs'], { cwd: app, encoding: 'utf8' })
    assert.deepEqual([early.status, /Run 'node vision\/build\.mjs'/.test(early.stderr)], [1, true], early.stderr)

    execFileSync(process.execPath, ['vision/build.mjs'], { cwd: vision, stdio: 'pipe' })
    copyStage(image, app, bundle, { vision })
    const server = await standalone(process.execPath, jsonOf(image, 'CMD').slice(1), {
      cwd: app,
      env: { ...environmentOf(image, [], ''), TUNERY_THREADS: '1', TUNERY_PORT: '0', TUNERY_HOST: '127.0.0.1' },
    })
    servers.push(server)
    const ours = await startEngineOnPort(['--model', `eye=${files.gguf}`, '--projector', files.projector])
    servers.push(ours)
    const [red, blue] = [await ask(server, [255, 0, 0]), await ask(server, [0, 0, 255])]
    assert.ok(red.usage!.prompt_tokens > 33)
    assert.notDeepEqual(red.tokens, blue.tokens)
    assert.deepEqual(
      [red.tokens, blue.tokens],
      [(await ask(ours, [255, 0, 0])).tokens, (await ask(ours, [0, 0, 255])).tokens],
    )
  })

  test('a bundle of a model that reads text has nothing of it', () => {
    const text = path.join(folder, 'text-bundle')
    const tunery = (...args: string[]) =>
      spawnSync(path.join(root, 'tunery'), ['bundle', ...args], { encoding: 'utf8' })
    assert.equal(tunery('eye', '--gguf', files.gguf, '-o', text).status, 0)
    assert.ok(!existsSync(path.join(text, 'vision')))
    for (const file of ['Dockerfile', 'README.md'])
      assert.doesNotMatch(readFileSync(path.join(text, file), 'utf8'), /vision|VISION/, file)
    assert.deepEqual(Object.keys(stagesOf(path.join(text, 'Dockerfile'))), [
      'node',
      'base-none',
      'base-cuda',
      'packages',
      'last',
    ])
    const wrong = tunery('eye', '--projector', files.projector, '-o', path.join(folder, 'never'))
    assert.deepEqual([wrong.status, /--projector is for --gguf/.test(wrong.stderr)], [2, true], wrong.stderr)
  })
})
