// A base that was added from a checkpoint in bfloat16: in the form that is served after a moment, and with its original
// kept, beside llama-server on the same file. Its shape is that of Qwen3-0.6B, its weights are random.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { durations, measure, median, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { noEndToken, type Ours, root, type Side, sampling, startLlamaServer, startOurs } from '../servers.ts'

const model = 'test/qwen3'
const folder = path.join(root, '.local/bench/added-base')
const models = path.join(folder, 'models')
const file = path.join(models, model, 'model.gguf')
const output = 64
const promptTokens = 512
const formWait_ms = 600_000

export async function addedBase(rounds: number, report: (row: Row) => void): Promise<void> {
  addOnce()
  for (const kept of [false, true]) {
    const settings = { TUNERY_MODELS_DIR: models, TUNERY_KEEP_ORIGINAL_WEIGHTS: String(kept) }
    const ours = await startOurs(settings)
    const us: Side = { ...ours, model }
    try {
      await measure(us, 1, bodies(999, 1))
      if (!kept) await waitForForm(ours)
      const form = kept ? 'original kept' : 'as served'
      for (const clients of [1, 8]) await compareOutput(rounds, report, us, clients, form)
      await comparePrompts(rounds, report, us, form)
    } finally {
      await us.stop()
    }
  }
}

async function compareOutput(rounds: number, report: (row: Row) => void, us: Side, clients: number, form: string) {
  const them = await startLlamaServer(clients, 1024, { weights: file })
  try {
    await measure(them, clients, bodies(998, clients))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn, Math.max(2, clients))), output),
    )
    const what = `output at ${clients} client${clients > 1 ? 's' : ''}, ${form}`
    report(comparisonRow('added-base', what, 'tokens/s', figures, { least: 1 }, them.form))
  } finally {
    await them.stop()
  }
}

async function comparePrompts(rounds: number, report: (row: Row) => void, us: Side, form: string) {
  // The whole time of one token: with random weights most tokens have no text.
  const prompts = (turn: number) => [
    { ...user(text(promptTokens - 30, 9_000_000 + turn)), ...sampling, ...noEndToken, max_tokens: 1 },
  ]
  const them = await startLlamaServer(1, 1024, { weights: file })
  try {
    await measure(them, 1, prompts(998))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      median(durations(await measure(side, 1, prompts(turn)))),
    )
    const what = `one token after a prompt of ${promptTokens}, ${form}`
    report(comparisonRow('added-base', what, 'ms', figures, { most: 1 }, them.form))
  } finally {
    await them.stop()
  }
}

const bodies = (turn: number, requests: number) =>
  Array.from({ length: requests }, (_, index) => ({
    ...user(text(32, 7_000_000 + turn * 1000 + index)),
    ...sampling,
    ...noEndToken,
    max_tokens: output,
  }))

function addOnce(): void {
  if (existsSync(path.join(models, model, 'model.json'))) return
  const checkpoint = path.join(folder, 'checkpoint')
  mkdirSync(checkpoint, { recursive: true })
  const run = (command: string, args: string[]) =>
    execFileSync(command, args, {
      cwd: root,
      env: { ...process.env, TUNERY_MODELS_DIR: models },
      stdio: ['ignore', 2, 'inherit'],
    })
  run(path.join(root, '.local/python/bin/python'), ['-m', 'bench.serving.make_added_base', checkpoint])
  run(path.join(root, 'tunery'), ['models', 'add', model, '--from', checkpoint])
  rmSync(checkpoint, { recursive: true })
}

/** Waits until the eight-bit form answers: the header of an answer says so. */
async function waitForForm({ url, path: route, headers }: Ours): Promise<void> {
  for (const end = performance.now() + formWait_ms; performance.now() < end; await sleep(1000)) {
    const body = JSON.stringify({ ...user('Hello.'), model, max_tokens: 1 })
    const answer = await fetch(`${url}${route}`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body,
    })
    await answer.text()
    if (answer.headers.get('x-weights')?.includes('; eight_bits=1')) return
  }
  throw new Error('The base did not get its eight-bit form within ten minutes.')
}
