// A job that learns from graders ends with the same steps and the same weights, whatever interrupts it.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { allowed } from '../support/allowed-time.ts'
import { type Client, client, until } from '../support/client.ts'
import {
  figuresOf,
  learn,
  localGraders,
  prompts,
  type Step,
  startGrader,
  withoutTimes,
} from '../support/reinforcement.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { metricsOver } from '../support/socket-metrics.ts'

const folder = dataFolder('reinforcement', localGraders)
let app: TestApp
let letters: Awaited<ReturnType<typeof startGrader>>
let whole: { steps: Step[]; sha256: string }
before(async () => {
  letters = await startGrader()
  app = await startApp(localGraders)
  const id = await start(app)
  whole = await completed(app, id)
})
/** Trainers that were stopped by SIGSTOP: they do not end by themselves where a test fails. */
const stopped: number[] = []
after(async () => {
  for (const pid of stopped.filter(alive)) process.kill(pid, 'SIGKILL')
  await app.stop()
  letters.stop()
  folder.remove()
})

/** Answers of a step, and of an evaluation. */
const answers = { step: 16, evaluation: 4 }
/** Answers that are graded before a step; there is an evaluation at step 0 and every two steps. */
const before_step = (step: number) => answers.step * (step - 1) + answers.evaluation * (1 + Math.floor((step - 1) / 2))
const all = before_step(7)

/** Four prompts in six steps of two, two updates each, and a held-out one. */
const start = (it: Client) =>
  learn(
    it,
    prompts(5),
    { grader: letters.grader, group_size: 8, max_tokens: 2, updates_per_step: 2, evaluation_samples: 4 },
    { epochs: 3, batch_size: 2 },
    { evaluation_config: { validation_split: 0.2, every_steps: 2 } },
  )

async function completed(it: Client, id: string) {
  const steps = withoutTimes(await figuresOf(it, id))
  const job = await it.job(id)
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const { lineage } = (await it.api('GET', `/fine-tuning/models/${job.model}`)).body
  const { sha256 } = lineage.steps.at(-1)
  assert.match(sha256, /^[0-9a-f]{64}$/)
  return { steps, sha256 }
}

const trainerOf = (parent: number, id: string) =>
  until('the trainer', () => children(parent, `trainer.cli.commands .*${id}`)[0])
function suspend(pid: number): void {
  stopped.push(pid)
  process.kill(pid, 'SIGSTOP')
}
const change = async (id: string, how: 'pause' | 'resume' | 'cancel') =>
  assert.equal((await app.api('POST', `/fine-tuning/jobs/${id}/${how}`)).status, 200)
const paused = (id: string) => until('the job to be paused', async () => (await app.job(id)).status === 'paused')
/** Waits until the trainer, which is stopped, has been sent the answers of a step. */
const sent = (id: string, step: number) =>
  until('the graded answers', () => existsSync(path.join(app.dataDir, 'runs', id, 'rollouts', `step-${step}.json`)))

test('a trainer killed in a rollout and in an update, and pauses in both, change no step', async () => {
  const began = letters.asked()
  let half = letters.hold(began + before_step(3) + 8)
  const id = await start(app)

  await half
  const first = await trainerOf(process.pid, id)
  process.kill(first, 'SIGKILL')
  half = letters.hold(began + before_step(4) + 8)

  await half
  const second = await trainerOf(process.pid, id)
  assert.notEqual(second, first)
  suspend(second)
  half = letters.hold(began + before_step(5) + 8)
  await sent(id, 4)
  process.kill(second, 'SIGKILL')

  await half
  await change(id, 'pause')
  await paused(id)
  const again = letters.asked() - began - before_step(5)
  half = letters.hold(letters.asked() + answers.step + 8)
  await change(id, 'resume')

  await half
  const last = await trainerOf(process.pid, id)
  suspend(last)
  letters.hold()
  await sent(id, 6)
  await change(id, 'pause')
  process.kill(last, 'SIGCONT')
  await paused(id)
  await change(id, 'resume')

  const { steps, sha256 } = await completed(app, id)
  assert.deepEqual(steps, whole.steps)
  assert.equal(sha256, whole.sha256)
  assert.equal(letters.asked() - began, all + again, 'what was graded and stored is not graded again')
})

test('a job that is cancelled in a rollout or in an update ends at once, and leaves nothing', async () => {
  const { socket } = await app.services.startEngine()
  const adapters = async () => /^tunery_engine_adapters (\d+)/m.exec(await metricsOver(socket))![1]
  const before = await adapters()
  for (const moment of ['rollout', 'update']) {
    const half = letters.hold(letters.asked() + before_step(2) + 8)
    const id = await start(app)
    await half
    const pid = await trainerOf(process.pid, id)
    if (moment === 'update') {
      suspend(pid)
      letters.hold()
      await sent(id, 2)
    }
    const began = performance.now()
    await change(id, 'cancel')
    await until('the trainer to end', () => !alive(pid))
    await until('its files to be removed', () => !existsSync(path.join(app.dataDir, 'runs', id)))
    const took = performance.now() - began
    assert.ok(took < allowed(8000), `${moment}: ${took} ms`)
    letters.hold()
    await until('the engine to drop its adapter', async () => (await adapters()) === before)
    assert.equal((await app.job(id)).status, 'cancelled')
  }
})

test('a server that is killed in a rollout continues to the same result', async () => {
  const first = await folder.start()
  const key = folder.key()
  const half = letters.hold(letters.asked() + before_step(3) + 8)
  const id = await start(client(first.url, key))
  await half
  const left = [await trainerOf(first.pid, id), ...children(first.pid, 'engine/main.ts')]
  await first.end('SIGKILL')
  letters.hold()
  await until('trainer and engine to end', () => !left.some(alive))
  const second = await folder.start()
  assert.deepEqual(await completed(client(second.url, key), id), whole)
  await second.end('SIGTERM')
})
