// Trainers whose result has another form than the service reads, as after an update of the checkout below it: the run
// fails with the reason, and nothing else does.
import assert from 'node:assert/strict'
import { createWriteStream, mkdtempSync, openAsBlob, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { finished } from 'node:stream/promises'
import { after, test } from 'node:test'
import { ZipFile } from 'yazl'
import { root } from '../../lib/root.ts'
import { predictGpuMemory } from '../../server/features/jobs/ray/resources.ts'
import { colourRows } from '../support/client.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-malformed-'))
/** Python runs it at each start: programs of the trainer report this result and end well. */
const program = `import json, os, sys
data = os.environ.get("MALFORMED_RESULT")
modules = ["estimate", "import_adapter", "predict_memory", "train"]
if data and any("trainer.cli." + name in sys.orig_argv for name in modules):
    print(json.dumps({"type": "result", "message": "done", "data": json.loads(data)}), flush=True)
    os._exit(0)
`
after(() => rmSync(folder, { recursive: true }))

async function adapterZip(): Promise<Blob> {
  const zip = new ZipFile()
  const adapter = path.join(app.dataDir, 'models', await app.colourModel(), 'adapter')
  for (const name of ['adapter_config.json', 'adapter_model.safetensors']) zip.addFile(path.join(adapter, name), name)
  zip.end()
  const file = path.join(folder, 'adapter.zip')
  await finished(zip.outputStream.pipe(createWriteStream(file)))
  return openAsBlob(file)
}

test('a malformed result fails an estimate, an import and a job with its reason; the service answers', async (t) => {
  writeFileSync(path.join(folder, 'sitecustomize.py'), program)
  process.env.PYTHONPATH = folder
  // Other files may run in this process.
  t.after(() => {
    delete process.env.PYTHONPATH
    delete process.env.MALFORMED_RESULT
  })
  const dataset_id = (await app.upload(colourRows(16))).body.id
  const zip = await adapterZip()
  const job = { model_id: tiny, dataset_id, config: { training_config: { epochs: 1 } } }
  for (const malformed of ['{}', '{"tokens": "many", "kind": "adapter"}']) {
    process.env.MALFORMED_RESULT = malformed
    const estimated = await app.api('POST', '/fine-tuning/jobs/estimate', job)
    assert.deepEqual([estimated.status, estimated.body.error.code], [500, 'internal_error'])
    assert.match(estimated.body.error.message, /result .* cannot be read \('tokens': /)
    const form = new FormData()
    form.set('file', zip, 'adapter.zip')
    const imported = await app.api('POST', '/fine-tuning/models', form)
    assert.deepEqual([imported.status, imported.body.error.code], [500, 'internal_error'])
    const python = path.join(root, '.local/python/bin/python')
    await assert.rejects(predictGpuMemory({}, python, AbortSignal.timeout(60_000)), /cannot be read \('least_mb'/)
  }
  const { error } = await app.untilEnded((await app.api('POST', '/fine-tuning/jobs', job)).body.id)
  assert.equal(error?.code, 'trainer_crashed')
  assert.match(error!.message, /result .* cannot be read \('\w+': .*, 3 times .* restart the service/)
  assert.equal((await app.api('GET', '/user/profile')).status, 200)
})
