// Time from POST /deployments to the first token of an adapter that was not loaded yet; and from `npm start` to the
// first token, compared with llama-server.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { copyAdapters, copyOf, trainedAdapters } from '../../support/adapters.ts'
import { firstTokens, measure } from '../job.ts'
import { text, user } from '../prompts.ts'
import { interleave, type Row, singleRow } from '../rounds.ts'
import { model, root, sampling, startLlamaServer, startOurs } from '../servers.ts'

const body = (seed: number) => ({ ...user(text(16, 6_000_000 + seed)), ...sampling, max_tokens: 2 })
const pause = () => new Promise((resolve) => setTimeout(resolve, 20))

export async function deploy(rounds: number, report: (row: Row) => void): Promise<void> {
  const prepared = await trainedAdapters(4)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-deploy-'))
  const dataDir = copyOf(prepared.dataDir, path.join(folder, 'data'))
  const models = copyAdapters({ ...prepared, dataDir }, rounds * 2 + 1)
  const us = await startOurs({}, dataDir)
  try {
    await measure(us, 1, [body(0)])
    const all: number[] = []
    for (const [index, tuned] of models.slice(1).entries()) {
      const started = performance.now()
      await us.service.api('POST', '/deployments', { model: tuned, name: `new-${index}` })
      const deployed = performance.now() - started
      all.push(deployed + firstTokens(await measure({ ...us, model: `new-${index}` }, 1, [body(index + 1)]))[0]!)
    }
    report(singleRow('deploy', 'POST /deployments to its first token', 'ms', all, { most: 1000 }))
  } finally {
    await us.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Signals the whole process group, as npm does not forward a signal at once. */
async function end(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit')
  process.kill(-child.pid!, 'SIGTERM')
  await ended
}

async function npmStart(seed: number): Promise<number> {
  const dataDir = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-start-'))
  const env = { ...process.env, TUNERY_DATA_DIR: dataDir, TUNERY_PORT: '0', TUNERY_LOG_LEVEL: 'warn' }
  const started = performance.now()
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
    return await firstTokenSince(target, started, seed)
  } finally {
    await end(child)
    rmSync(dataDir, { recursive: true, force: true })
  }
}

/** Includes the start of the load process, which takes the same time on both sides. */
async function firstTokenSince(target: Parameters<typeof measure>[0], started: number, seed: number): Promise<number> {
  const sent = performance.now()
  return sent - started + firstTokens(await measure(target, 1, [body(seed)]))[0]!
}

export async function coldStart(rounds: number, report: (row: Row) => void): Promise<void> {
  let form = ''
  const sides = {
    ours: npmStart,
    theirs: async (seed: number) => {
      const started = performance.now()
      const side = await startLlamaServer(1)
      form = side.form
      try {
        return await firstTokenSince(side, started, seed)
      } finally {
        await side.stop()
      }
    },
  }
  await sides.theirs(99)
  const figures = await interleave(rounds, sides, (side, turn) => side(turn))
  const overhead = figures.ours.map((value, index) => value - figures.theirs[index]!)
  report(singleRow('start', 'npm start to the first token', 'ms', figures.ours, {}))
  report(singleRow('start', 'llama-server to the first token', 'ms', figures.theirs, {}, form))
  report(singleRow('start', 'npm start, beyond llama-server', 'ms', overhead, { most: 2000 }, form))
}
