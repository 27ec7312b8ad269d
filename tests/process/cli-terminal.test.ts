// `./tunery` on a terminal: a training that is left and taken up again, a conversation, a hidden key.
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { cliEnv } from '../support/cli.ts'
import { colourRows, until } from '../support/client.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { openTerminal, type Terminal } from '../support/terminal.ts'
import { tiny } from '../support/tiny.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-cli-terminal-'))
let app: TestApp
before(async () => {
  app = await startApp()
})
after(async () => {
  await app.stop()
  rmSync(folder, { recursive: true })
})

/** A terminal that shows the command; it is closed at the end of the tests. */
function open(words: string[], env: Record<string, string> = { TUNERY_URL: app.url, TUNERY_KEY: app.key }): Terminal {
  const environment = { ...cliEnv(folder), TUNERY_DATA_DIR: path.join(folder, 'none'), TERM: 'xterm', ...env }
  return openTerminal(environment, path.join(root, 'tunery'), ...words)
}
const shows = (terminal: Terminal, text: string | RegExp, from = 0) =>
  until(`the terminal to show ${text}; it shows:\n${terminal.shown()}`, () => {
    const shown = terminal.shown().slice(from)
    return typeof text === 'string' ? shown.includes(text) : text.test(shown)
  })

test('login asks for address and key, and the key is not shown', async () => {
  const terminal = open(['login'], {})
  await shows(terminal, 'Address of the service')
  terminal.type(app.address)
  await shows(terminal, 'API key')
  terminal.type(app.key)
  assert.equal(await terminal.ended, 0, terminal.shown())
  assert.match(terminal.shown(), /You are/)
  assert.ok(!terminal.shown().includes(app.key.slice(4)))
  assert.ok(readFileSync(path.join(folder, 'tunery/profiles.json'), 'utf8').includes(app.key))
})

test('Ctrl-C at a question ends the command with status 130 and stores nothing', async () => {
  const home = path.join(folder, 'interrupted')
  const terminal = open(['login', app.url], { XDG_CONFIG_HOME: home })
  await shows(terminal, 'API key')
  terminal.press('C-c')
  assert.equal(await terminal.ended, 130)
  assert.ok(!existsSync(path.join(home, 'tunery')))
})

test('train shows a bar and curves; Ctrl-C leaves the job running and says how to come back', async () => {
  const file = path.join(folder, 'rows.jsonl')
  writeFileSync(file, colourRows(400))
  const words = ['train', file, '--model', tiny, '--epochs', '50', '--batch-size', '1', '--no-estimate']
  const terminal = open(words)
  await shows(terminal, /[█░]{10}.*step \d+\/\d+/)
  await shows(terminal, /train loss +[▁▂▃▄▅▆▇█]+ \d/)
  terminal.press('C-c')
  assert.equal(await terminal.ended, 130)
  const id = /(job_\w+) keeps running\. Follow it again with '\.\/tunery jobs follow \1'/.exec(terminal.shown())?.[1]
  assert.ok(id, terminal.shown())
  assert.equal((await app.job(id)).status, 'running')

  const again = open(['jobs', 'follow', id])
  await shows(again, /step \d+\/\d+/)
  await app.api('POST', `/fine-tuning/jobs/${id}/cancel`)
  assert.equal(await again.ended, 1)
  assert.match(again.shown(), /was cancelled/)
})

test('a conversation with two models: answers side by side, commands, a saved file, Ctrl-D', async () => {
  const model = await app.colourModel()
  const saved = path.join(folder, 'saved.jsonl')
  const terminal = open(['chat', model, tiny, '--max-tokens', '8', '-t', '0'])
  await shows(terminal, /\/help lists/)
  await shows(terminal, '> ')
  terminal.type('/nonsense')
  await shows(terminal, "'/nonsense' is not a command")
  terminal.type('code of red?')
  await shows(terminal, /8 tokens.*│.*8 tokens/)
  terminal.type(`/save ${saved}`)
  await shows(terminal, 'Saved in')
  terminal.press('C-d')
  assert.equal(await terminal.ended, 0, terminal.shown())
  const lines = readFileSync(saved, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.equal(lines.length, 2)
  assert.deepEqual(
    lines[0].messages.map(({ role }: { role: string }) => role),
    ['user', 'assistant'],
  )
})
