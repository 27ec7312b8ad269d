// Loss curves are sent to the configured tracker, and a failing tracker fails no job.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { colourRows, until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const read = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
curve = lambda name: [[event.step, found_value(event)] for event in found.Tensors(name)]
print(json.dumps({name: curve(name) for name in found.Tags()["tensors"]}))
`.replace('found_value(event)', 'float(__import__("tensorboard").util.tensor_util.make_ndarray(event.tensor_proto))')

async function train(settings: Record<string, string>, evaluate: (dataDir: string, job: string) => Promise<void>) {
  const app = await startApp(settings)
  try {
    const dataset_id = (await app.upload(colourRows(8))).body.id
    const config = { training_config: { epochs: 3, batch_size: 4 }, evaluation_config: { validation_split: 0.25 } }
    const job = await app.untilEnded(
      (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id,
    )
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    await evaluate(app.dataDir, job.id)
  } finally {
    await app.stop()
  }
}

test('TensorBoard reads the loss curves of a job', () =>
  train({ TUNERY_TRACKING: 'tensorboard' }, async (dataDir, job) => {
    const python = path.join(root, '.local/tracking/tensorboard/bin/python')
    const folder = path.join(dataDir, 'tensorboard/tunery', job)
    const curves = await until('the curves are written', () => {
      const recorded = JSON.parse(
        execFileSync(python, ['-c', read, folder], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }),
      )
      return recorded.validation_loss?.length === 3 && recorded
    })
    assert.equal(curves.loss.at(-1)[0], 6, 'the last step')
    assert.ok(curves.loss.every(([, loss]: [number, number]) => loss > 0))
    assert.ok(curves.learning_rate.length > 0 && curves.tokens_per_second.length > 0)
  }))

test('a run that another attempt continues has each step once, and continues with what the tracker lacks', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-track-'))
  const python = path.join(root, '.local/tracking/tensorboard/bin/python')
  const track = (lines: object[]) =>
    execFileSync(python, [path.join(root, 'trainer/cli/track.py'), 'tensorboard', folder, 'p', 'job_x', '{}'], {
      input: lines.map((line) => `${JSON.stringify(line)}\n`).join(''),
    })
  const step = (number: number, metrics: object) => ({ step: number, metrics })
  const loss = (number: number) => step(number, { loss: number / 10 })
  try {
    track([{ params: {} }, loss(1), loss(2), step(2, { validation_loss: 5 }), loss(3)])
    // It resumes after step 1, and evaluates at step 3, which the first attempt had no time for.
    track([{ params: {} }, loss(2), step(2, { validation_loss: 5 }), loss(3), step(3, { validation_loss: 4 }), loss(4)])
    const curves = JSON.parse(
      execFileSync(python, ['-c', read, path.join(folder, 'p/job_x')], {
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'ignore'],
      }),
    )
    const steps = (name: string) => curves[name].map(([number]: [number, number]) => number)
    assert.deepEqual(
      [steps('loss'), steps('validation_loss')],
      [
        [1, 2, 3, 4],
        [2, 3],
      ],
    )
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

test('a tracker that is not installed or not reachable fails no job', () =>
  train({ TUNERY_TRACKING: 'mlflow', TUNERY_TRACKING_URL: 'http://127.0.0.1:9' }, async () => {}))
