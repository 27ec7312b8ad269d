// The code of README and guides, run as a reader would: commands, programs, rows and settings, in the order of the
// guides, with the ids that the service gave in place of `ds_…` and the like.
import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { root } from '../../lib/root.ts'
import { Tunery } from '../../sdk/index.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { readPlans } from '../../server/platform/plans.ts'
import { until } from '../support/client.ts'
import { commandsIn } from '../support/guide.ts'
import { codeBlocks, order, shownElsewhere } from '../support/guide-blocks.ts'
import { startReceiver } from '../support/receiver.ts'
import { type DataFolder, dataFolder } from '../support/server.ts'
import { openTerminal } from '../support/terminal.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

let service: DataFolder
let url: string
let key: string
let tunery: Tunery
let reader: string
let models: string
let hooks: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  // The default model's name with a tiny model behind it, which learns as fast as a reader would like.
  models = mkdtempSync(path.join(os.tmpdir(), 'tunery-models-'))
  mkdirSync(path.join(models, 'HuggingFaceTB'))
  symlinkSync(path.join(tinyModelsDir(), tiny), path.join(models, 'HuggingFaceTB/SmolLM2-135M-Instruct'))
  service = dataFolder('guides', {
    TUNERY_MODELS_DIR: models,
    TUNERY_STORE_COMPLETIONS: '30',
    TUNERY_SHARE_LINKS: 'on',
    TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
  })
  url = (await service.start()).url
  key = service.key()
  tunery = new Tunery({ baseUrl: url, apiKey: key })
  hooks = await startReceiver()
  // The reader's folder is a checkout, with files of their own.
  reader = mkdtempSync(path.join(os.tmpdir(), 'tunery-reader-'))
  writeFileSync(path.join(reader, 'tunery'), `#!/bin/sh\nexec '${path.join(root, 'tunery')}' "$@"\n`)
  chmodSync(path.join(reader, 'tunery'), 0o755)
  // Few rows, as the model learns little anyway.
  mkdirSync(path.join(reader, 'examples'))
  for (const name of ['ticket-triage', 'support-replies', 'support-replies.preferences'].map(
    (each) => `${each}.jsonl`,
  )) {
    const rows = readFileSync(path.join(root, 'examples', name), 'utf8').split('\n')
    writeFileSync(path.join(reader, 'examples', name), rows.slice(0, 24).join('\n'))
  }
  for (const each of ['node_modules', 'sdk']) symlinkSync(path.join(root, each), path.join(reader, each))
  // As fish makes it at its first start.
  mkdirSync(path.join(reader, '.config/fish/completions'), { recursive: true })
  writeFileSync(path.join(reader, '.curlrc'), 'silent\nshow-error\nfail-with-body\n')
  writeFileSync(path.join(reader, 'graders.json'), '[{"type": "json_equal", "name": "fields"}]')
  symlinkSync('examples/ticket-triage.jsonl', path.join(reader, 'rows.jsonl'))
  const [csv] = codeBlocks('docs/guides/prepare-data.md').filter(({ language }) => language === 'csv')
  writeFileSync(path.join(reader, 'tickets.csv'), csv!.code)
  cpSync(path.join(root, 'tests/fixtures/cases/own-columns.csv'), path.join(reader, 'questions.csv'))
})
after(() => {
  hooks?.stop()
  service?.remove()
  for (const folder of [reader, models]) rmSync(folder, { recursive: true, force: true })
})

const environment = (): NodeJS.ProcessEnv => ({
  ...process.env,
  TUNERY_DATA_DIR: service.dataDir,
  TUNERY_MODELS_DIR: models,
  TUNERY: url,
  URL: url,
  TUNERY_URL: url,
  TUNERY_KEY: key,
  KEY: key,
  HOME: reader,
  XDG_CONFIG_HOME: path.join(reader, '.config'),
  NO_COLOR: '1',
})

/** The ids of what the service has, newest first. */
const lists: Record<string, () => Promise<string[]>> = {
  ds_: async () => (await tunery.datasets.list()).items.map(({ id }) => id),
  job_: async () => (await tunery.jobs.list()).items.map(({ id }) => id),
  // One that does not serve already, as it is to be deployed or compared.
  mdl_: async () => {
    const served = await tunery.deployments.get('tickets').catch(() => undefined)
    const ids = (await tunery.models.list()).items.map(({ id }) => id)
    return [...ids.filter((id) => id !== served?.model), ...ids]
  },
  eval_: async () => (await tunery.evaluations.list()).items.map(({ id }) => id),
  exp_: async () => (await tunery.exports.list()).items.map(({ id }) => id),
}
/** A reader waits until what runs has ended, before the next command. */
async function resting(): Promise<void> {
  for (const { id } of (await tunery.jobs.list()).items) await tunery.jobs.wait(id)
  await until('evaluations and exports to end', async () => {
    const { items } = await tunery.evaluations.list()
    const all = [...items, ...(await tunery.exports.list()).items]
    return all.every(({ status }) => !['queued', 'running'].includes(status))
  })
}

/** A command with what its reader knows: the address, the base of the tests, the newest ids. */
async function filledIn(text: string): Promise<string> {
  let filled = text
    .replaceAll('http://127.0.0.1:8000/v1', url)
    .replaceAll('http://127.0.0.1:3000/hooks', hooks.url)
    .replaceAll('/path/to/tunery', path.join(reader, 'tunery'))
    .replaceAll('/path/to/examples', path.join(reader, 'examples'))
    .replaceAll('/backups/', `${reader}/backup-`)
    .replaceAll('~/', `${reader}/`)
    .replaceAll('tny_…', key)
  for (const [prefix, list] of Object.entries(lists)) {
    const missing = new RegExp(`\\b${prefix}…`)
    if (!missing.test(filled)) continue
    const ids = await list()
    // A page of a model shows an evaluation of that model.
    if (prefix === 'mdl_' && filled.includes('/shares'))
      ids.unshift((await tunery.evaluations.list()).items[0]?.model ?? '')
    for (let next = 0; missing.test(filled); next++) {
      const id = ids[next] ?? assert.fail(`the service has no ${prefix} for: ${text}`)
      filled = filled.replace(missing, id)
    }
  }
  return filled
}

/** What a reader types or presses while a command runs, and how it ends then. */
const inTerminal: { command: RegExp; shows: RegExp; answer: () => string; status: number }[] = [
  { command: /^\.\/tunery login/, shows: /key/i, answer: () => key, status: 0 },
  { command: /^\.\/tunery train (?!.*--yes)/, shows: /\[Y\/n\]|\[y\/N\]|\?/, answer: () => 'y', status: 0 },
  { command: /^\.\/tunery chat/, shows: /\/help lists/, answer: () => '/quit', status: 0 },
  { command: /^\.\/tunery webhooks listen/, shows: /Ctrl-C/, answer: () => 'C-c', status: 0 },
  { command: /mcp --http/, shows: /8765/, answer: () => 'C-c', status: 0 },
]
/** A model of the tests' size does not pass the gate, which is said with status 1. */
const fails: { command: RegExp; says: RegExp }[] = [{ command: /--gate/, says: /keeps serving/ }]

const runProgram = (program: string, args: string[]) =>
  promisify(execFile)(program, args, { cwd: reader, env: environment(), maxBuffer: 1 << 26 })

async function run(given: string): Promise<void> {
  await resting()
  const command = await filledIn(given)
  // The same thing a second time, in the other way that the guide shows.
  if (/-C - -o model.gguf/.test(command)) rmSync(path.join(reader, 'model.gguf'), { force: true })
  if (/deployments .*"name":"tickets"/.test(command)) await tunery.deployments.delete('tickets').catch(() => {})
  const typed = inTerminal.find((each) => each.command.test(command))
  if (typed) return runInTerminal(command, typed)
  const [shell, before] = command.includes('completion zsh')
    ? ['zsh', 'autoload -U compinit; compinit -D; ']
    : ['bash', '']
  try {
    await runProgram(shell, ['-euo', 'pipefail', '-c', before + command])
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
    const expected = fails.find((each) => each.command.test(command))
    assert.ok(expected?.says.test(stdout + stderr), `${command}\n${stdout}\n${stderr}`)
  }
}

async function runInTerminal(command: string, { shows, answer, status }: (typeof inTerminal)[number]): Promise<void> {
  const terminal = openTerminal(
    environment(),
    'bash',
    '-c',
    `cd ${reader} && exec env ${command.replace(/\s+#.*$/, '')}`,
  )
  try {
    let over = false
    const ended = terminal.ended.finally(() => (over = true))
    await until(`'${command}' to show ${shows}, or to end`, () => over || shows.test(terminal.shown()))
    const typed = answer()
    if (typed === 'C-c') terminal.press('C-c')
    else terminal.type(typed)
    assert.equal(await ended, status, `${command}\n${terminal.shown()}`)
  } finally {
    terminal.close()
  }
}

/** Code of other languages, by its guide. */
const others: Record<string, (code: string) => Promise<void>> = {
  'docs/guides/start.md js': (code) =>
    runFile('call.mjs', `${code}\nif (!answer.choices[0].message) throw new Error('no answer')`, process.execPath),
  'docs/guides/learn-from-answers.md python': (code) => {
    const given = `from openai import OpenAI\nclient = OpenAI(base_url="${url}", api_key="${key}")
messages = [{"role": "system", "content": "Triage the ticket."},
            {"role": "user", "content": "I forgot my password for Sync. No rush."}]\n`
    // A model of this size does not end by itself, and an answer that was cut is not learned from.
    const ended = code.replace('store=True,', 'store=True, stop=["e"],')
    return runFile('store.py', given + ended, path.join(root, '.local/peers/clients-python/bin/python'))
  },
  'docs/guides/prepare-data.md json': (code) => uploaded(code),
  'docs/guides/prepare-data.md csv': (code) => uploaded(code, 'rows.csv'),
  'docs/guides/preference-tuning.md json': async (code) => {
    for (const line of code.trim().split('\n')) await uploaded(line)
  },
  'docs/guides/limits-and-usage.md json': async (code) => {
    const { percents } = await tunery.usage.thresholds.set(JSON.parse(code))
    assert.deepEqual(percents, JSON.parse(code).percents)
  },
  'docs/guides/operate.md json': async (code) => {
    const plans_file = path.join(reader, 'plans.json')
    writeFileSync(plans_file, code)
    const plans = readPlans({ plans_file })
    assert.deepEqual([plans.currency, plans.tiers.map(({ id }) => id)], ['EUR', ['team']])
  },
  'docs/guides/scale.md json': async (code) => {
    assert.equal(readUpstreams(code, {}).length, JSON.parse(code).length)
  },
  'docs/guides/assistants.md json': async (code) => {
    const given = JSON.parse(await filledIn(code))
    const [server] = Object.values<{ command?: string; args: string[]; env: Record<string, string> }>(
      given.mcpServers ?? given.servers ?? given,
    )
    // The last form names the address of `./tunery mcp --http`, which runs in a command of its own.
    if (!server!.command) return
    const env = { ...(environment() as Record<string, string>), ...server!.env }
    if (env.TUNERY_KEY?.startsWith('${input')) env.TUNERY_KEY = key
    const args = server!.args.map((each) => each.replace(/^\$\{workspaceFolder\}/, path.join(reader, 'examples')))
    const client = new Client({ name: 'guides', version: '1' })
    await client.connect(new StdioClientTransport({ command: server!.command, args, env }))
    assert.ok((await client.listTools()).tools.length > 10)
    await client.close()
  },
  'sdk/README.md ts': async (code) => {
    const before = `import { readFileSync } from 'node:fs'
const file = new Blob([readFileSync('rows.jsonl')])
const messages = [{ role: 'user', content: 'I forgot my password.' }] as const\n`
    await tunery.deployments.delete('tickets').catch(() => {})
    const here = code.replace("'tunery-client'", "'./sdk/index.ts'").replace('{ model, name', '{ model: model!, name')
    await runFile('client.ts', before + here, path.join(root, 'scripts/node'))
  },
}

/** A picture of one white pixel, where a guide leaves one out. */
const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC'

async function uploaded(rows: string, name = 'rows.jsonl'): Promise<void> {
  const { id } = await tunery.datasets.upload(rows.replaceAll('base64,…', `base64,${pixel}`), { name })
  const { valid } = await tunery.datasets.validate(id)
  assert.ok(valid, rows)
  await tunery.datasets.delete(id)
}

async function runFile(name: string, code: string, program: string): Promise<void> {
  writeFileSync(path.join(reader, name), await filledIn(code))
  await runProgram(program, [name])
}

for (const file of order)
  test(file, async (t) => {
    // The member whose link the guide asks for.
    if (file.endsWith('sign-in.md')) await tunery.members.add({ name: 'Ada', email: 'ada@example.com', role: 'member' })
    for (const { language, code, line } of codeBlocks(file)) {
      if (shownElsewhere(file, code)) continue
      if (language !== 'sh') {
        const other = others[`${file} ${language}`] ?? assert.fail(`nothing runs ${language} of ${file}`)
        await other(code)
        continue
      }
      // A variable that one command sets is read by the next.
      const commands = commandsIn(code.replace(/^(\w+=\$\(.*\))\n/gm, '$1; '))
      for (const command of commands) {
        if (shownElsewhere(file, command)) continue
        const shell = /completion (zsh|fish)/.exec(command)?.[1]
        if (shell && spawnSync(shell, ['--version']).error) {
          t.diagnostic(`${shell} is not installed: its completion was not tried`)
          continue
        }
        t.diagnostic(`${line}: ${command.split('\n')[0]}`)
        await run(command)
      }
    }
  })
