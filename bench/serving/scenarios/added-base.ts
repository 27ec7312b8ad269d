// Added bases in bfloat16, of the shapes of published models with random weights: in the form that is served after a
// moment, and one with its original kept, beside llama-server on the same file and in eight bits. One is added as a
// file in four bits too, beside llama-server on that. What is required is beside files of the peer that are no further
// from the original than ours (`npm run bench -- fidelity`): its eight bits are further from it than ours.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, renameSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openLibrary } from '../../../engine/llama/library.ts'
import { quantize } from '../../../engine/llama/quantize.ts'
import { durations, measure, median, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import {
  noEndToken as noDefaultEnd,
  type Ours,
  root,
  type Side,
  sampling,
  startLlamaServer,
  startOurs,
  threads,
} from '../servers.ts'

const folder = path.join(root, '.local/bench/shapes')
const models = path.join(folder, 'models')
const fileOf = (model: string) => path.join(models, model, 'model.gguf')
/** The names in `bench/support/shapes.py`. */
export const shapes = ['qwen3-0.6b', 'gemma3-1b', 'qwen3.5-0.8b', 'mixture-8x']
/** Gemma's tokenizer has its ends at other ids. */
const noEndToken = { logit_bias: { ...noDefaultEnd.logit_bias, '1': -100, '106': -100 } }
const output = 64
const promptTokens = [512, 4000, 16_000]
const fourBits = 'Q4_K_M'
/** How many times the peer's output is required, by clients. */
const required = { 1: 1.5, 8: 2.5, 32: 2.5 }
/** The most of the peer's time that a prompt may take. */
const mostOfTime = 0.5

/** A file of the peer. */
interface Peer {
  weights: string
  /** Whether it is at most as far from the original as the form that ours is served in. */
  is_as_near: boolean
}
const formWait_ms = 600_000
/** Beside each file of the peer ours gets other texts, none of which it has in its cache. */
const turnsBetween = 100

export const addedBase = (shape: string) => async (rounds: number, report: (row: Row) => void) => {
  const model = addOnce(shape)
  for (const kept of shape === shapes[0] ? [false, true] : [false]) {
    const settings = { TUNERY_MODELS_DIR: models, TUNERY_KEEP_ORIGINAL_WEIGHTS: String(kept) }
    const ours = await startOurs(settings)
    const us: Side = { ...ours, model }
    try {
      await measure(us, 1, bodies(999, 1))
      if (!kept) await waitForForm(ours, model)
      await compareAll(rounds, report, us, `${shape}, ${kept ? 'original kept' : 'as served'}`, await peersOf(model))
    } finally {
      await us.stop()
    }
  }
  if (shape === shapes[0]) await inFourBits(shape, model, rounds, report)
}

/** A base that was added as a file in four bits. */
async function inFourBits(shape: string, original: string, rounds: number, report: (row: Row) => void) {
  const file = await quantized(original, fourBits)
  const model = `${original}-${fourBits.toLowerCase()}`
  if (!existsSync(path.join(models, model, 'model.json'))) add(model, file)
  const ours = await startOurs({ TUNERY_MODELS_DIR: models })
  const us: Side = { ...ours, model }
  try {
    await measure(us, 1, bodies(999, 1))
    await compareAll(rounds, report, us, `${shape}, added in ${fourBits}`, [{ weights: file, is_as_near: true }])
  } finally {
    await us.stop()
  }
}

const peersOf = async (model: string): Promise<Peer[]> => [
  { weights: fileOf(model), is_as_near: true },
  { weights: await quantized(model, 'Q8_0'), is_as_near: false },
]

/** Prompts of all lengths, in the form that is served. */
export const longPrompts = (shape: string) => async (rounds: number, report: (row: Row) => void) => {
  const ours = await startOurs({ TUNERY_MODELS_DIR: models })
  const us: Side = { ...ours, model: addOnce(shape) }
  try {
    await measure(us, 1, bodies(999, 1))
    await waitForForm(ours, us.model)
    const peers = await peersOf(us.model)
    for (const tokens of promptTokens)
      for (const peer of peers) await comparePrompts(rounds, report, us, tokens, `${shape}, as served`, peer)
  } finally {
    await us.stop()
  }
}

async function compareAll(rounds: number, report: (row: Row) => void, us: Side, form: string, peers: readonly Peer[]) {
  for (const clients of Object.keys(required).map(Number))
    for (const peer of peers) await compareOutput(rounds, report, us, clients, form, peer)
  for (const peer of peers) await comparePrompts(rounds, report, us, promptTokens[0]!, form, peer)
}

async function compareOutput(
  rounds: number,
  report: (row: Row) => void,
  us: Side,
  clients: number,
  form: string,
  { weights, is_as_near }: Peer,
) {
  const firstTurn = is_as_near ? 0 : turnsBetween
  const them = await startLlamaServer(clients, 1024, { weights })
  try {
    await measure(them, clients, bodies(998, clients))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn + firstTurn, Math.max(2, clients))), output),
    )
    const what = `${form}: output at ${clients} client${clients > 1 ? 's' : ''}`
    const bound = is_as_near ? { least: required[clients as keyof typeof required] } : {}
    report(comparisonRow('added-base', what, 'tokens/s', figures, bound, them.form))
  } finally {
    await them.stop()
  }
}

async function comparePrompts(
  rounds: number,
  report: (row: Row) => void,
  us: Side,
  tokens: number,
  form: string,
  { weights, is_as_near }: Peer,
) {
  const firstTurn = is_as_near ? 0 : turnsBetween
  // The whole time of one token: with random weights most tokens have no text.
  const prompt = (length: number, turn: number) => [
    { ...user(text(length - 30, 9_000_000 + length + turn)), ...sampling, ...noEndToken, max_tokens: 1 },
  ]
  const them = await startLlamaServer(1, tokens + 512, { weights })
  try {
    await measure(them, 1, prompt(promptTokens[0]!, 998))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      median(durations(await measure(side, 1, prompt(tokens, turn + firstTurn)))),
    )
    const what = `${form}: one token after a prompt of ${tokens}`
    report(comparisonRow('added-base', what, 'ms', figures, is_as_near ? { most: mostOfTime } : {}, them.form))
  } finally {
    await them.stop()
  }
}

/** The base's file in another type of weights. */
async function quantized(model: string, type: 'Q8_0' | 'Q4_K_M'): Promise<string> {
  const file = path.join(folder, 'quantized', `${path.basename(model)}.${type}.gguf`)
  if (!existsSync(file)) {
    mkdirSync(path.dirname(file), { recursive: true })
    const library = openLibrary(path.join(root, '.local/llama/lib'))
    const options = { source: fileOf(model), type, threads, importance: undefined, onProgress: () => {} }
    await quantize(library, { ...options, out: `${file}.part` })
    renameSync(`${file}.part`, file)
  }
  return file
}

const bodies = (turn: number, requests: number) =>
  Array.from({ length: requests }, (_, index) => ({
    ...user(text(32, 7_000_000 + turn * 1000 + index)),
    ...sampling,
    ...noEndToken,
    max_tokens: output,
  }))

/** Returns the name of the base. */
function addOnce(shape: string): string {
  const model = `shapes/${shape}`
  if (existsSync(path.join(models, model, 'model.json'))) return model
  const checkpoint = path.join(folder, shape)
  // The training bench uses it too.
  if (!existsSync(path.join(checkpoint, 'config.json')))
    run(path.join(root, '.local/python/bin/python'), ['-m', 'bench.support.shapes', shape, checkpoint])
  add(model, checkpoint)
  return model
}

const add = (model: string, from: string) => run(path.join(root, 'tunery'), ['models', 'add', model, '--from', from])

const run = (command: string, args: string[]) =>
  execFileSync(command, args, {
    cwd: root,
    env: { ...process.env, TUNERY_MODELS_DIR: models },
    stdio: ['ignore', 2, 'inherit'],
  })

/** Waits until the eight-bit form answers: the header of an answer says so. */
async function waitForForm({ url, path: route, headers }: Ours, model: string): Promise<void> {
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
