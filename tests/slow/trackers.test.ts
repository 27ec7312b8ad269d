// MLflow and Weights & Biases, as set-up brings them: `npm run test:trackers`.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../server/config.ts'
import { colourRows, until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const readers: Record<string, string> = {
  mlflow: `
import json, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
[run] = mlflow.search_runs(experiment_names=["tunery"], output_format="list")
client = mlflow.MlflowClient()
print(json.dumps({"run": run.info.run_name, "params": run.data.params, "steps": [m.step for m in client.get_metric_history(run.info.run_id, "loss")]}))
`,
  wandb: `
import json, sys
from pathlib import Path
from wandb.sdk.internal.datastore import DataStore
from wandb.proto import wandb_internal_pb2 as pb
[file] = Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")
store = DataStore(); store.open_for_scan(str(file))
told = {"params": {}, "steps": []}
while (data := store.scan_data()) is not None:
    record = pb.Record(); record.ParseFromString(data)
    if record.HasField("run"): told["run"] = record.run.run_id
    for item in [*record.run.config.update, *record.config.update]: told["params"][item.key] = json.loads(item.value_json)
    items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
    if "loss" in items: told["steps"].append(items["_step"])
print(json.dumps(told))
`,
}

for (const kind of ['mlflow', 'wandb'])
  test(`${kind} finds the curve of a job`, async () => {
    execFileSync('node', ['scripts/setup.mjs'], { cwd: root, env: { ...process.env, TUNERY_TRACKING: kind }, stdio: 'inherit' })
    const folder = mkdtempSync(path.join(os.tmpdir(), `tunery-${kind}-`))
    const target = kind === 'mlflow' ? `sqlite:///${folder}/mlflow.db` : ''
    Object.assign(process.env, { WANDB_MODE: 'offline', WANDB_DIR: folder })
    const app = await startApp({ TUNERY_TRACKING: kind, ...(target && { TUNERY_TRACKING_URL: target }) })
    try {
      const dataset_id = (await app.upload(colourRows(8))).body.id
      const config = { training_config: { epochs: 3, batch_size: 4 } }
      const job = await app.untilEnded((await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id)
      assert.equal(job.status, 'completed', JSON.stringify(job.error))
      const found = await until('the curve is written', () => {
        try {
          const text = execFileSync(path.join(root, '.local/tracking', kind, 'bin/python'), ['-c', readers[kind]!, target || folder], {
            encoding: 'utf8',
            stdio: ['ignore', 'pipe', 'ignore'],
          })
          const told = JSON.parse(text)
          return told.steps.at(-1) === 6 && told
        } catch {
          return false
        }
      })
      assert.equal(found.run, job.id)
      assert.equal(String(found.params.epochs), '3')
    } finally {
      await app.stop()
    }
  })
