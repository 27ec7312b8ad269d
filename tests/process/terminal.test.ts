// The service in a terminal: Ctrl-C and hangup reach every foreground process, but only the server decides what ends.
import assert from 'node:assert/strict'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { after, test } from 'node:test'
import { allowed } from '../support/allowed-time.ts'
import { client, colourRows, until } from '../support/client.ts'
import { full } from '../support/full.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { openTerminal } from '../support/terminal.ts'
import { endless, tiny } from '../support/tiny.ts'

// No periodic checkpoints: only the stop writes one.
const folder = dataFolder('terminal', { TUNERY_CHECKPOINT_SECONDS: '86400', TUNERY_LOG_LEVEL: 'info' })
after(() => folder.remove())
let key: string | undefined

async function start(command: string, ...args: string[]) {
  const file = path.join(folder.dataDir, 'server.json')
  rmSync(file, { force: true })
  const terminal = openTerminal(folder.env, command, ...args)
  await until(`the server to listen; the terminal shows: ${terminal.shown()}`, () => existsSync(file))
  const { url, pid } = JSON.parse(readFileSync(file, 'utf8')) as { url: string; pid: number }
  key ??= folder.key()
  after(() => alive(pid) && process.kill(pid, 'SIGKILL'))
  const api = client(url, key)
  const chat = {
    model: tiny,
    messages: [{ role: 'user', content: 'Tell me more.' }],
    stream: true,
    max_tokens: 800,
    ...endless,
  }
  return {
    terminal,
    pid,
    api,
    /** Starts a streamed answer. With `read: false` it is not read, so it does not end. */
    async answer(options?: { read: boolean }) {
      const streamed = stream(`${url}/chat/completions`, key!, chat, options)
      if (options?.read !== false) await streamed.untilBytes(300)
      return streamed
    },
    programs: () => [...children(pid, 'trainer.cli.train'), ...children(pid, 'engine/main.ts')],
  }
}

const directly = ['scripts/node', 'server/main.ts'] as const
let job: string
let saved: number

test('one Ctrl-C under npm start: prints what it waits for, streams complete, the running job is saved', async () => {
  const { terminal, api, answer, programs } = await start('npm', 'start')
  const dataset = (await api.upload(colourRows(400))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  job = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body.id
  await api.untilEvent(job, ({ type, data }) => type === 'metrics' && Number(data!.step) > 2)
  const streams = await Promise.all([answer(), answer(), answer()])
  const running = programs()
  assert.equal(running.length, 2, 'a trainer and an engine are at work')

  terminal.press('C-c')
  for (const stream of streams) {
    const { done, events } = await stream.result
    assert.ok(done, 'each stream ends with [DONE]')
    assert.equal(events.findLast(({ choices }) => choices[0]?.finish_reason)?.choices[0].finish_reason, 'length')
  }
  const answered = performance.now()
  assert.equal(await terminal.ended, 0, terminal.shown())
  assert.ok(performance.now() - answered < allowed(15_000), 'it stops once the answers have ended and the job is saved')
  const lines = terminal.shown().match(/Stopping.*/g)
  assert.deepEqual(
    lines?.map((line) => line.trim()),
    [
      'Stopping: waiting for 3 requests to end, 20 s at most, and for the checkpoint of 1 training. ' +
        'Press Ctrl-C again to stop at once.',
    ],
  )
  assert.deepEqual(running.filter(alive), [], 'no program stays')
})

test(
  'closing the terminal stops the service too: the job resumes from its checkpoint and is saved again',
  full,
  async () => {
    const { terminal, pid, api } = await start(...directly)
    const resumed = await api.untilEvent(job, ({ data }) => data?.resumed_from_step !== undefined)
    saved = Number(resumed.data!.resumed_from_step)
    assert.ok(saved > 0, 'it does not restart from the beginning')
    await api.untilEvent(job, ({ type, data }) => type === 'metrics' && Number(data!.step) > saved + 2)
    terminal.close()
    await until('the server to end', () => !alive(pid))
  },
)

test('a second Ctrl-C stops at once: status 130, and no child process stays', full, async () => {
  const { terminal, api, answer, programs } = await start(...directly)
  const resumed = await api.untilEvent(job, ({ data }) => Number(data?.resumed_from_step) > saved)
  assert.ok(resumed, 'closing the terminal saved the job')
  const left = programs()
  assert.equal(left.length, 2)
  const unread = await answer({ read: false })
  await until(
    'the engine to load the model',
    async () => (await api.api('GET', `/models/${tiny}`)).body.status === 'loaded',
  )
  terminal.press('C-c')
  await until('the line', () => terminal.shown().includes('Stopping'))
  assert.match(terminal.shown(), /Stopping: waiting for 1 request to end/)
  let status: number | undefined
  void terminal.ended.then((ended) => (status = ended))
  await until('the end', () => {
    if (status === undefined) terminal.press('C-c')
    return status !== undefined
  })
  assert.equal(status, 130)
  assert.deepEqual(left.filter(alive), [])
  unread.hangUp()
})
