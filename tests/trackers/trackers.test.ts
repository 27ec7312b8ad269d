// Tracking with the real clients that the set-up installs: MLflow with a local server, Weights & Biases offline. Run
// with `npm run test:trackers`.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { freePort } from '../../bench/support/free-port.ts'
import { root } from '../../lib/root.ts'
import { colourRows, until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const setUp = (kind: string) =>
  execFileSync('node', ['scripts/setup.mjs'], {
    cwd: root,
    env: { ...process.env, TUNERY_TRACKING: kind },
    stdio: 'inherit',
  })
const total_steps = 6

/** Trains a job of six steps with a tracker, then waits until `check` returns true. */
async function train(settings: Record<string, string>, check: (job: string) => boolean | Promise<boolean>) {
  const app = await startApp(settings)
  try {
    const dataset_id = (await app.upload(colourRows(8))).body.id
    const config = { training_config: { epochs: 3, batch_size: 4 } }
    const job = await app.untilEnded(
      (await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })).body.id,
    )
    assert.equal(job.status, 'completed', JSON.stringify(job.error))
    await until('the curve is written', () => check(job.id))
  } finally {
    await app.stop()
  }
}

test('the MLflow server has the loss curve of a job, in a run with its name and settings', async () => {
  setUp('mlflow')
  const peer = path.join(root, '.local/peers/mlflow')
  if (!existsSync(path.join(peer, 'bin/mlflow'))) {
    execFileSync('python3', ['-m', 'venv', peer])
    const pin = /mlflow-skinny(==\S+)/.exec(
      readFileSync(path.join(root, 'trainer/requirements-tracking.txt'), 'utf8'),
    )![1]
    execFileSync(path.join(peer, 'bin/python'), ['-m', 'pip', 'install', '-q', `mlflow${pin}`], { stdio: 'inherit' })
  }
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-mlflow-'))
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  const args = [
    'server',
    '--port',
    String(port),
    '--backend-store-uri',
    `sqlite:///${folder}/mlflow.db`,
    '--artifacts-destination',
    folder,
    '--workers',
    '1',
  ]
  const server = spawn(path.join(peer, 'bin/mlflow'), args, { cwd: folder, stdio: 'ignore', detached: true })
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
  const read = async (answer: Promise<Response>): Promise<any> => (await answer).json()
  const post = (route: string, body: object) =>
    read(
      fetch(`${url}/api/2.0/mlflow/${route}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      }),
    )
  try {
    await until('the server to listen', () =>
      fetch(`${url}/health`).then(
        (answer) => answer.ok,
        () => false,
      ),
    )
    await train({ TUNERY_TRACKING: 'mlflow', TUNERY_TRACKING_URL: url }, async (job) => {
      const { experiment } = await read(fetch(`${url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=tunery`))
      const { runs } = await post('runs/search', { experiment_ids: [experiment?.experiment_id ?? '0'] })
      const run = runs?.[0]
      if (run?.info.run_name !== job || run.info.status !== 'FINISHED') return false
      assert.deepEqual(
        run.data.params.find((param: { key: string }) => param.key === 'epochs'),
        { key: 'epochs', value: '3' },
      )
      const { metrics } = await read(
        fetch(`${url}/api/2.0/mlflow/metrics/get-history?run_id=${run.info.run_id}&metric_key=loss`),
      )
      return metrics.at(-1).step === total_steps
    })
  } finally {
    process.kill(-server.pid!, 'SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  }
})

test('Weights & Biases writes the loss curve of a job', async () => {
  setUp('wandb')
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-wandb-'))
  Object.assign(process.env, { WANDB_MODE: 'offline', WANDB_DIR: folder })
  const count = (text: string, word: string) => text.split(word).length - 1
  await train({ TUNERY_TRACKING: 'wandb' }, (job) => {
    const file = path.join(folder, 'wandb/latest-run', `run-${job}.wandb`)
    const text = existsSync(file) ? readFileSync(file, 'latin1') : ''
    return (
      count(text, 'learning_rate') > 1 &&
      count(text, 'grad_norm') > 0 &&
      text.includes('batch_size') &&
      text.includes(tiny)
    )
  })
  rmSync(folder, { recursive: true, force: true })
})
