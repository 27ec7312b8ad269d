// Answers to pictures are those of transformers on the same checkpoint.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'
import { dataUrl, disk, png } from '../../support/pictures.ts'
import { noVision, tinyVision, type VisionFamily, visionFamilies } from '../../support/tiny-vision.ts'
import { root, startEngine } from './engine-process.ts'

const python = join(root, '.local/python/bin/python')
const noPillow =
  spawnSync(python, ['-c', 'import PIL']).status === 0
    ? false
    : 'transformers reads pictures with Pillow, which is missing'

const red = disk(128, 96, [255, 0, 0])
const noise = png(128, 128, (x, y) => [(x * 7 + y * 13) % 256, (x * y) % 256, (x * 3) % 256])
// Sizes that the processor changes: shrunk or stretched to whole patches, at half a patch exactly, enlarged.
const resized = [
  disk(100, 75, [10, 200, 30]),
  disk(120, 72, [100, 3, 250]),
  disk(150, 60, [0, 0, 0]),
  disk(40, 40, [9, 9, 200]),
]

type Part = { type: 'text'; text: string } | Buffer
const conversations: Part[][] = [
  [{ type: 'text', text: 'What is it?' }],
  [red, { type: 'text', text: 'What is it?' }],
  [noise, { type: 'text', text: 'What is it?' }],
  [{ type: 'text', text: 'Compare ' }, red, noise, { type: 'text', text: ', both.' }],
  // In several steps, and longer than Gemma's window.
  [{ type: 'text', text: 'Compare '.repeat(90) }, red, noise, { type: 'text', text: 'What is it? '.repeat(20) }],
  ...resized.map((file): Part[] => [file, { type: 'text', text: 'What is it?' }]),
]

/**
 * Most that one of the 20 highest log-probabilities may differ. The engine's KV cache and attention have 16 bits, which
 * alone cost text 0.0001 (SmolVLM's and Qwen3-VL's shapes), 0.0004 (Qwen2.5-VL's) and 0.002 (Gemma 3's). Two pictures
 * differ by 0.02 to 0.3; so does Qwen3-VL's without the vectors of its first layers (0.08 to 0.1), and Gemma 3's with
 * causal attention in pictures (0.2 to 0.3) or without its window (0.26, where two pictures exceed it). A projector in
 * 16 bits is computed in bfloat16, where the processor does.
 */
const bounds: Record<VisionFamily, number> = { smolvlm: 1e-3, qwen2_5_vl: 3e-3, qwen3_vl: 3e-3, gemma3: 8e-3 }
const projectors = ['mmproj-model.gguf', 'mmproj-model-f16.gguf']

for (const family of visionFamilies)
  test(`the log-probabilities after pictures are those of transformers: ${family}`, {
    skip: noVision || noPillow,
  }, async () => {
    const folder = tinyVision(family)
    const requests = conversations.map((parts) => ({
      messages: [{ role: 'user', content: parts.map((part) => (Buffer.isBuffer(part) ? { type: 'image' } : part)) }],
      images: parts.filter((part) => Buffer.isBuffer(part)).map((file) => (file as Buffer).toString('base64')),
    }))
    const { status, stdout, stderr } = spawnSync(python, ['-m', 'trainer.tests.vision_reference', join(folder, 'hf')], {
      cwd: root,
      input: JSON.stringify(requests),
      encoding: 'utf8',
    })
    assert.equal(status, 0, stderr)
    const references = JSON.parse(stdout) as { tokens: number; logprobs: number[] }[]
    for (const projector of projectors)
      await compare(join(folder, 'model.gguf'), join(folder, projector), references, bounds[family])
  })

/** Asks an engine for the log-probabilities after all conversations. */
async function compare(
  model: string,
  projector: string,
  references: { tokens: number; logprobs: number[] }[],
  bound: number,
) {
  const engine = await startEngine(['--model', `vision=${model}`, '--projector', projector])
  const differences: number[] = []
  try {
    for (const [index, parts] of conversations.entries()) {
      const content = parts.map((part) =>
        Buffer.isBuffer(part) ? { type: 'image_url', image_url: { url: dataUrl(part) } } : part,
      )
      const { status, json } = await engine.ask('POST', '/v1/chat/completions', {
        model: 'vision',
        messages: [{ role: 'user', content }],
        temperature: 0,
        max_tokens: 1,
        logprobs: true,
        top_logprobs: 20,
      })
      assert.equal(status, 200, JSON.stringify(json))
      const { tokens, logprobs } = references[index]!
      assert.equal(json.usage.prompt_tokens, tokens)
      const ours = json.choices[0].logprobs.content[0].top_logprobs as { logprob: number }[]
      differences.push(Math.max(...ours.map(({ logprob }, rank) => Math.abs(logprob - logprobs[rank]!))))
    }
  } finally {
    await engine.stop()
  }
  assert.ok(Math.max(...differences) < bound, `${projector} differs by ${differences.join(', ')}`)
}
