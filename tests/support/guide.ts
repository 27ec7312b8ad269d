// Runs a guide of docs/guides as its reader would: its programs as files, its commands in order, from the
// current folder.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { freePort } from '../../bench/support/free-port.ts'
import { root } from '../../lib/root.ts'

/** Commands that install tools, which set-up has installed already. */
const installs = /^pip install /
/** Programs that serve until they are stopped. */
const serves = /^(llama-server|vllm serve) /
const ready_ms = 240_000

interface Step {
  command: string
  /** What the command printed; empty for a server, which runs until the next one is started. */
  stdout: string
  /** Output of the running server. */
  url: string | undefined
}

interface GuideOptions {
  /** The address of the service for `./tunery`. */
  url: string
  key: string
  /** Folders with the programs that the commands name. */
  programs: string[]
  env?: NodeJS.ProcessEnv
  /** Replacements of the guide's placeholders. One that is not in the guide fails. */
  replaced?: [string, string][]
  /** The part of the page below this heading of the second level; the whole page without it. */
  section?: string
  /** Commands to skip, because their program is not available. */
  without?: RegExp
}

export interface Guide {
  folder: string
  /** Runs the next command. */
  steps(): AsyncGenerator<Step>
  close(): Promise<void>
}

export function openGuide(name: string, options: GuideOptions): Guide {
  const { url, key, programs, env, replaced = [], section, without } = options
  const page = readFileSync(path.join(root, 'docs/guides', name), 'utf8')
  let text = section ? partOf(page, section) : page
  for (const [what, by] of replaced) {
    if (!text.includes(what)) throw new Error(`${name} does not have: ${what}`)
    text = text.replaceAll(what, by)
  }
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-guide-'))
  for (const [, file, code] of text.matchAll(/```\w+\n(?:\/\/|#) ([\w.]+)\n([\s\S]*?)```/g))
    writeFileSync(path.join(folder, file!), code!)
  // The reader's folder is Tunery's own, with its command line and models.
  writeFileSync(path.join(folder, 'tunery'), `#!/bin/sh\nexec '${path.join(root, 'tunery')}' "$@"\n`)
  chmodSync(path.join(folder, 'tunery'), 0o755)
  mkdirSync(path.join(folder, '.local'))
  symlinkSync(path.join(root, '.local/models'), path.join(folder, '.local/models'))
  const all = {
    ...process.env,
    TUNERY_URL: url,
    TUNERY_KEY: key,
    HF_HUB_OFFLINE: '1',
    ...env,
    PATH: [...programs, process.env.PATH].join(':'),
  }

  let server: { url: string; stop(): Promise<void> } | undefined
  const stop = async () => {
    await server?.stop()
    server = undefined
  }
  async function* steps(): AsyncGenerator<Step> {
    for (const line of commandsOf(text)) {
      if (installs.test(line) || without?.test(line)) continue
      if (serves.test(line)) {
        await stop()
        const started = await serve(line, folder, all)
        server = started
        yield { command: line, stdout: '', url: started.url }
      } else {
        // The guide's port is another one here.
        const command = server ? line.replace(/http:\/\/127\.0\.0\.1:\d+/, server.url) : line
        const { stdout } = await promisify(execFile)('bash', ['-euo', 'pipefail', '-c', command], {
          cwd: folder,
          env: all,
          maxBuffer: 1 << 26,
        })
        yield { command, stdout, url: server?.url }
      }
    }
  }
  return {
    folder,
    steps,
    async close() {
      await stop()
      rmSync(folder, { recursive: true })
    },
  }
}

/** The part of a page below a heading of the second level. */
function partOf(page: string, heading: string): string {
  const part = page.split(/^## /m).find((text) => text.startsWith(`${heading}\n`))
  if (!part) throw new Error(`no part of the page is called ${heading}`)
  return part
}

/** The commands of all `sh` blocks. */
function commandsOf(text: string): string[] {
  return [...text.matchAll(/^```sh\n(.*?)^```/gms)].flatMap(([, block]) => commandsIn(block!))
}

/**
 * The commands of a block, each with its continuation lines: after a backslash, or while a quote is open. Lines that
 * are comments or empty are left out.
 */
export function commandsIn(block: string): string[] {
  const commands: string[] = []
  let open = ''
  for (const line of block.trimEnd().split('\n')) {
    if (!open && /^\s*(#|$)/.test(line)) continue
    open = open ? `${open}\n${line}` : line
    if (open.split("'").length % 2 === 0 || open.endsWith('\\')) continue
    commands.push(open)
    open = ''
  }
  if (open) throw new Error(`a command does not end: ${open}`)
  return commands
}

async function serve(words: string, cwd: string, env: NodeJS.ProcessEnv) {
  const port = await freePort()
  const command = words.replace(/--port \d+/, `--port ${port}`)
  const url = `http://127.0.0.1:${port}`
  let output = ''
  // Its own process group, because vLLM has workers that must end with it.
  const child: ChildProcess = spawn('bash', ['-c', `exec ${command}`], {
    cwd,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  })
  for (const stream of [child.stdout!, child.stderr!])
    stream.on('data', (data) => {
      output = `${output}${data}`.slice(-5000)
    })
  const runs = () => child.exitCode === null && child.signalCode === null
  const end = () => runs() && process.kill(-child.pid!, 'SIGKILL')
  process.once('exit', end)
  const answers = () =>
    fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    )
  for (const last = Date.now() + ready_ms; !(await answers()); await sleep(100))
    if (!runs() || Date.now() > last) {
      end()
      throw new Error(`'${command}' did not start:\n${output}`)
    }
  return {
    url,
    async stop() {
      const ended = once(child, 'exit')
      if (end()) await ended
    },
  }
}
