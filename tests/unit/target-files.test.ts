import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createTargetFiles } from '../../server/features/scaling/ray/target-files.ts'
import { hashTree } from '../../server/platform/storage/durable-files.ts'

const scratch = mkdtempSync(path.join(os.tmpdir(), 'tunery-target-'))
after(() => rmSync(scratch, { recursive: true }))

const folder = path.join(scratch, 'models/mdl_1/adapter')
const weights = path.join(folder, 'adapter_model.safetensors')
const hub = path.join(scratch, 'hub')
for (const target of [folder, path.join(hub, 'hf')]) mkdirSync(target, { recursive: true })
writeFileSync(path.join(hub, 'hf/model.safetensors'), 'base')
writeFileSync(path.join(folder, 'adapter_config.json'), '{"r": 8}')
writeFileSync(weights, 'trained')
const target = {
  base: { id: 'org/base', gguf: path.join(hub, 'model.gguf') },
  adapter: { id: 'mdl_1', gguf: path.join(folder, '../adapter.gguf') },
}
const files = (folder_sha256: string | null) =>
  createTargetFiles({
    models: { expected: async (id) => (id === 'mdl_1' ? { sha256: '', folder_sha256 } : undefined) },
    artifacts: { ensureLocal: async (file) => file },
    models_dir: hub,
  })

test('vLLM gets the files that a model was made with, or none', async () => {
  const { sha256 } = await hashTree(folder)
  const served = await files(sha256).forVllm(target)
  assert.deepEqual(
    served.files.map((file) => [file.path, file.cache]),
    [
      ['base/model.safetensors', true],
      ['adapter/adapter_config.json', false],
      ['adapter/adapter_model.safetensors', false],
    ],
  )
  assert.equal(served.lora_rank, 8)
  writeFileSync(weights, 'trained otherwise')
  await assert.rejects(files(sha256).forVllm(target), /'mdl_1' for vLLM are not those that the model was made with/)
  // A model of an earlier version: the probabilities of its answers tell.
  assert.equal((await files(null).forVllm(target)).files.length, 3)
  writeFileSync(weights, 'trained')
  writeFileSync(path.join(folder, 'chat_template.jinja'), '')
  await assert.rejects(files(sha256).forVllm(target), /Restore them from a backup/)
  rmSync(path.join(folder, 'chat_template.jinja'))
  assert.equal((await files(sha256).forVllm(target)).weights[1]!.sha256, sha256)
})
