// A service in a terminal: Ctrl-C goes to every process of the foreground, the end of the terminal too; each obeys the
// service alone.
import assert from 'node:assert/strict'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { after, test } from 'node:test'
import { client, colourRows, until } from '../support/client.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { stream } from '../support/streams.ts'
import { openTerminal } from '../support/terminal.ts'
import { endless, tiny } from '../support/tiny.ts'

// Nothing but the stop writes a checkpoint.
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
    /** An answer that has begun; one that nobody reads does not end. */
    async answer(options?: { read: boolean }) {
      const streamed = stream(`${url}/chat/completions`, key!, chat, options)
      if (options?.read !== false) await streamed.until(300)
      return streamed
    },
    programs: () => [...children(pid, 'trainer.cli.train'), ...children(pid, 'engine/main.ts')],
  }
}

const directly = ['scripts/node', 'server/main.ts'] as const
let job: string
let saved: number

test('Ctrl-C once under npm start, with streams open and a job training: a line says what is awaited, the streams end whole, the job is saved', async () => {
  const { terminal, api, answer, programs } = await start('npm', 'start')
  const dataset = (await api.upload(colourRows(400))).body.id
  const config = { training_config: { epochs: 50, batch_size: 1 } }
  job = (await api.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset, config })).body.id
  await api.untilEvent(job, ({ type, data }) => type === 'metrics' && Number(data!.step) > 2)
  const streams = await Promise.all([answer(), answer(), answer()])
  const left = programs()
  assert.equal(left.length, 2, 'a trainer and an engine are at work')

  terminal.press('C-c')
  for (const each of streams) {
    const { done, events } = await each.whole
    assert.ok(done, 'each stream ends with [DONE]')
    assert.equal(events.findLast(({ choices }) => choices[0]?.finish_reason)?.choices[0].finish_reason, 'length')
  }
  const answered = performance.now()
  assert.equal(await terminal.ended, 0, terminal.shown())
  assert.ok(
    performance.now() - answered < 15_000,
    'nothing is waited for once the answers have ended and the job is saved',
  )
  const lines = terminal.shown().match(/Stopping.*/g)
  assert.deepEqual(
    lines?.map((line) => line.trim()),
    [
      'Stopping: waiting for 3 requests to end, 20 s at most, and for the checkpoint of 1 training. Press Ctrl-C again to stop at once.',
    ],
  )
  assert.deepEqual(left.filter(alive), [], 'no program stays')
})

test('the end of the terminal is a stop too: the job goes on from what the first one saved, and is saved again', async () => {
  const { terminal, pid, api } = await start(...directly)
  const resumed = await api.untilEvent(job, ({ data }) => data?.resumed_from_step !== undefined)
  saved = Number(resumed.data!.resumed_from_step)
  assert.ok(saved > 0, 'it is not begun again')
  await api.untilEvent(job, ({ type, data }) => type === 'metrics' && Number(data!.step) > saved + 2)
  terminal.close()
  await until('the server to end', () => !alive(pid))
})

test('Ctrl-C twice is at once: status 130, and no program stays', async () => {
  const { terminal, api, answer, programs } = await start(...directly)
  const resumed = await api.untilEvent(job, ({ data }) => Number(data?.resumed_from_step) > saved)
  assert.ok(resumed, 'the end of the terminal saved the job')
  const left = programs()
  assert.equal(left.length, 2)
  const unread = await answer({ read: false })
  await until('the engine to be asked', async () => (await api.api('GET', `/models/${tiny}`)).body.status === 'loaded')
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
  unread.leave()
})
