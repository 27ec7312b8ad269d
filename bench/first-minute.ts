// The first minute: seconds from `npm start` in a fresh clone of the last commit until the page and the first chat
// answer, and with --training until jobs can begin. The caches of npm and pip are used as they are; to warm them, run
// it once before.
//
//   npm run bench -- first-minute [--rounds 3] [--training]
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { root } from '../lib/root.ts'

const { values } = parseArgs({ options: { rounds: { type: 'string', default: '3' }, training: { type: 'boolean' } } })
const model = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const poll_ms = 50

interface Round {
  page_s: number
  chat_s: number
  training_s?: number
  /** Load average of the last minute, before the start. */
  load: number
}

/** The environment without what `npm run bench` added: npm in the clone would take this checkout for its own. */
function ownEnvironment(): NodeJS.ProcessEnv {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(npm_(config_local_prefix|package|lifecycle)|INIT_CWD)/.test(name),
  )
  const PATH = process.env.PATH!.split(':').filter((folder) => !folder.startsWith(root))
  return { ...Object.fromEntries(inherited), PATH: PATH.join(':') }
}

/** Clones the checkout, runs `npm start` in the clone until it has answered, and removes it. */
async function measure(): Promise<Round> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-first-minute-'))
  const clone = path.join(folder, 'clone')
  const dataDir = path.join(folder, 'data')
  execFileSync('git', ['clone', '--quiet', root, clone])
  const load = os.loadavg()[0]!
  const started = performance.now()
  const seconds = () => Number(((performance.now() - started) / 1000).toFixed(1))
  const service = spawn('npm', ['start'], {
    cwd: clone,
    env: { ...ownEnvironment(), TUNERY_PORT: '0', TUNERY_DATA_DIR: dataDir },
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  const waitFor = async <T>(what: string, find: () => Promise<T | undefined> | T | undefined): Promise<T> => {
    for (;;) {
      if (service.exitCode !== null) throw new Error(`npm start ended with ${service.exitCode} before ${what}`)
      const value = await find()
      if (value !== undefined && value !== false) return value
      await sleep(poll_ms)
    }
  }
  try {
    const serverFile = path.join(dataDir, 'server.json')
    await waitFor('it served', () => existsSync(serverFile))
    const { url } = JSON.parse(readFileSync(serverFile, 'utf8')) as { url: string }
    const key = readFileSync(path.join(dataDir, 'first-key.txt'), 'utf8').trim()
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    await waitFor('it showed its page', async () => {
      const page = await fetch(url.replace(/\/v1$/, '/'), { headers: { accept: 'text/html' } })
      return page.ok && (await page.text()).includes('<script')
    })
    const page_s = seconds()
    const body = JSON.stringify({ model, max_tokens: 16, messages: [{ role: 'user', content: 'Say hello.' }] })
    await waitFor('it answered', async () => {
      const answer = await fetch(`${url}/chat/completions`, { method: 'POST', headers, body })
      return answer.ok && ((await answer.json()) as { choices: unknown[] }).choices.length === 1
    })
    const chat_s = seconds()
    if (!values.training) return { page_s, chat_s, load }
    await waitFor('jobs could begin', async () => {
      const setup = (await (await fetch(`${url}/hub/setup`, { headers })).json()) as {
        ready: boolean
        steps: { status: string; message: string | null }[]
      }
      const failed = setup.steps.find(({ status }) => status === 'failed')
      if (failed) throw new Error(`set-up for training failed: ${failed.message}`)
      return setup.ready
    })
    return { page_s, chat_s, training_s: seconds(), load }
  } finally {
    if (service.exitCode === null) {
      const ended = new Promise((resolve) => service.once('exit', resolve))
      service.kill('SIGTERM')
      await ended
    }
    rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 })
  }
}

const rounds: Round[] = []
for (let round = 0; round < Number(values.rounds); round++) rounds.push(await measure())
console.log(
  `\nSeconds from \`npm start\` in a fresh clone, ${os.availableParallelism()} cores, ${os.cpus()[0]!.model}:`,
)
console.table(rounds)
