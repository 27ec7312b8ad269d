// From POST /deployments to the first token of an adapter that was never loaded; and from a cold `npm start` to the
// first token, beside llama-server's start to its first token.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { copyAdapters, copyOf, trainedAdapters } from '../../support/adapters.ts'
import { firstTokens, measure } from '../job.ts'
import { text, user } from '../prompts.ts'
import { alone, inTurns, type Row } from '../rounds.ts'
import { model, ours, root, sampling, theirs } from '../servers.ts'

const body = (seed: number) => ({ ...user(text(16, 6_000_000 + seed)), ...sampling, max_tokens: 2 })
const pause = () => new Promise((resolve) => setTimeout(resolve, 20))

export async function deploy(rounds: number, say: (row: Row) => void): Promise<void> {
  const prepared = await trainedAdapters(4)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-deploy-'))
  const dataDir = copyOf(prepared.dataDir, path.join(folder, 'data'))
  const models = copyAdapters({ ...prepared, dataDir }, rounds * 2 + 1)
  const us = await ours({}, dataDir)
  try {
    await measure(us, 1, [body(0)])
    const all: number[] = []
    for (const [index, tuned] of models.slice(1).entries()) {
      const began = performance.now()
      await us.service.api('POST', '/deployments', { model: tuned, name: `new-${index}` })
      const deployed = performance.now() - began
      all.push(deployed + firstTokens(await measure({ ...us, model: `new-${index}` }, 1, [body(index + 1)]))[0]!)
    }
    say(alone('deploy', 'POST /deployments to its first token', 'ms', all, { most: 1000 }))
  } finally {
    await us.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Ends a whole group, as npm does not pass a signal on at once. */
async function end(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit')
  process.kill(-child.pid!, 'SIGTERM')
  await ended
}

async function npmStart(seed: number): Promise<number> {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-start-'))
  const env = { ...process.env, TUNERY_DATA_DIR: dataDir, TUNERY_PORT: '0', TUNERY_LOG_LEVEL: 'warn' }
  const began = performance.now()
  const child = spawn('npm', ['start'], { cwd: root, env, stdio: ['ignore', 'ignore', 'inherit'], detached: true })
  try {
    const serverFile = path.join(dataDir, 'server.json')
    for (;;) {
      if (child.exitCode !== null) throw new Error('npm start ended')
      if (existsSync(serverFile) && readFileSync(serverFile, 'utf8').endsWith('}')) break
      await pause()
    }
    const url = new URL((JSON.parse(readFileSync(serverFile, 'utf8')) as { url: string }).url).origin
    const key = readFileSync(path.join(dataDir, 'first-key.txt'), 'utf8').trim()
    const target = {
      name: 'npm start',
      url,
      path: '/v1/chat/completions',
      headers: { authorization: `Bearer ${key}` },
      model,
      extra: {},
    }
    return await untilFirst(target, began, seed)
  } finally {
    await end(child)
    rmSync(dataDir, { recursive: true, force: true })
  }
}

/** The process that asks is started for it, which takes both sides the same time. */
async function untilFirst(target: Parameters<typeof measure>[0], began: number, seed: number): Promise<number> {
  const asked = performance.now()
  return asked - began + firstTokens(await measure(target, 1, [body(seed)]))[0]!
}

export async function coldStart(rounds: number, say: (row: Row) => void): Promise<void> {
  const sides = {
    ours: npmStart,
    theirs: async (seed: number) => {
      const began = performance.now()
      const side = await theirs(1)
      try {
        return await untilFirst(side, began, seed)
      } finally {
        await side.stop()
      }
    },
  }
  await sides.theirs(99)
  const found = await inTurns(rounds, sides, (side, turn) => side(turn))
  const more = found.ours.map((value, index) => value - found.theirs[index]!)
  say(alone('start', 'npm start to the first token', 'ms', found.ours, {}))
  say(alone('start', 'llama-server to the first token', 'ms', found.theirs, {}))
  say(alone('start', 'npm start, beyond llama-server', 'ms', more, { most: 2000 }))
}
