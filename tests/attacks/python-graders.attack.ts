// Python graders of strangers against a running service: none reaches its files, its network, its processes or another
// account's grader, and none keeps others from being graded.
import assert from 'node:assert/strict'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { client, until } from '../support/client.ts'
import { evaluationEnded } from '../support/evaluations.ts'
import { startCanary } from '../support/receiver.ts'
import { alive, children, dataFolder } from '../support/server.ts'
import { startApp, type TestApp } from '../support/service.ts'

let app: TestApp
let canary: Awaited<ReturnType<typeof startCanary>>
before(async () => {
  app = await startApp()
  canary = await startCanary()
})
after(async () => {
  await app.stop()
  canary.stop()
})

const grader = (body: string) => ({ type: 'python', name: 'code', source: `def grade(sample, item):\n    ${body}\n` })
const rows = Array.from({ length: 10 }, (_, n) => ({ item: { n }, sample: { output_text: `${n}` } }))

async function start({ api }: Pick<TestApp, 'api'>, body: string): Promise<string> {
  const definition = await api('POST', '/evals', {
    data_source_config: { type: 'custom', item_schema: {}, include_sample_schema: true },
    testing_criteria: [grader(body)],
  })
  assert.equal(definition.status, 201, JSON.stringify(definition.body))
  const data_source = { type: 'jsonl', source: { type: 'file_content', content: rows } }
  return (await api('POST', `/evals/${definition.body.id}/runs`, { data_source })).body.id
}

/** Processes of the sandboxes of a service. */
const sandboxes = (service: number) => children(service, 'graders/python/child.ts')

test('hostile graders fail by themselves, while the grader of another account is served', {
  timeout: 600_000,
}, async () => {
  const secret = path.join(app.dataDir, 'secret.key')
  const hostile = [
    `return len(open("${secret}", "rb").read())`,
    'import os; os.fork()',
    'import os; os.kill(os.getppid(), 9)',
    `import socket; socket.create_connection(("127.0.0.1", ${canary.port}), 5); return 1`,
    `import urllib.request; urllib.request.urlopen("http://127.0.0.1:${canary.port}/", timeout=5); return 1`,
    'x = []\n    while True: x.append(bytearray(10_000_000))',
    'return len("x" * 10_000_000_000)',
    'import sys; sys.stdout.write(\'{"id": 2, "score": 1e9}\\n\' * 100); sys.stdout.flush(); raise ValueError("x")',
    'import js; js.process.kill(js.process.ppid, "SIGKILL")',
    'import pyodide_js; pyodide_js._module.FS.mount(pyodide_js._module.NODEFS, {"root": "/"}, "/mnt"); return 1',
    'import ctypes; ctypes.string_at(0xffffff00, 64); raise ValueError("x")',
  ]
  const attacks: string[] = []
  for (const body of hostile) attacks.push(await start(app.other, body))
  const fair = await evaluationEnded(
    app,
    await start(app, 'return 1 if int(sample["output_text"]) == item["n"] else 0'),
  )
  assert.deepEqual([fair.status, fair.result!.model.score!.mean], ['completed', 1], JSON.stringify(fair.error))
  for (const [index, id] of attacks.entries()) {
    const { status, error } = await evaluationEnded(app.other, id)
    assert.deepEqual([status, error?.code], ['failed', 'graders_failed'], hostile[index])
  }
  assert.equal(canary.connections(), 0)
  assert.ok(sandboxes(process.pid).length <= 2, 'no more processes than the setting allows')
})

test('endless loops of one account do not keep another from being graded', { timeout: 600_000 }, async () => {
  const loops = [await start(app.other, 'while True: pass'), await start(app.other, 'while 1: pass')]
  const fair = await evaluationEnded(app, await start(app, 'return 1'))
  assert.equal(fair.status, 'completed')
  const active = await Promise.all(loops.map((id) => app.other.api('GET', `/evaluations/${id}`)))
  assert.ok(
    active.every(({ body }) => body.status !== 'completed'),
    'the loops were not over',
  )
  for (const id of loops) await app.other.api('POST', `/evaluations/${id}/cancel`, {})
})

test('a service that is killed leaves no sandbox, however busy', { timeout: 600_000 }, async () => {
  const folder = dataFolder('python-graders')
  const server = await folder.start()
  try {
    const it = client(server.url, folder.key())
    await start(it, 'try:\n        while True: pass\n    except BaseException:\n        while True: pass')
    await until('a sandbox to run', () => sandboxes(server.process.pid!).length > 0)
    const pids = sandboxes(server.process.pid!)
    await server.end('SIGKILL')
    await until('no sandbox to be left', () => !pids.some(alive))
  } finally {
    await folder.remove()
  }
})
