// Added bases in bfloat16, of the shapes of published models with random weights: in the form that is served after a
// moment, and one with its original kept, beside llama-server on the same file or in eight bits, whichever is faster.
// One is added as a file in four bits too, beside llama-server on that.
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
const formWait_ms = 600_000

export const addedBase = (shape: string) => async (rounds: number, report: (row: Row) => void) => {
  const model = addOnce(shape)
  for (const kept of shape === shapes[0] ? [false, true] : [false]) {
    const settings = { TUNERY_MODELS_DIR: models, TUNERY_KEEP_ORIGINAL_WEIGHTS: String(kept) }
    const ours = await startOurs(settings)
    const us: Side = { ...ours, model }
    try {
      await measure(us, 1, bodies(999, 1))
      if (!kept) await waitForForm(ours, model)
      const form = `${shape}, ${kept ? 'original kept' : 'as served'}`
      const files = [fileOf(model), await quantized(model, 'Q8_0')]
      for (const [clients, least] of Object.entries(required))
        await compareOutput(rounds, report, us, Number(clients), least, form, files)
      await comparePrompts(rounds, report, us, promptTokens[0]!, form, files)
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
  const form = `${shape}, added in ${fourBits}`
  try {
    await measure(us, 1, bodies(999, 1))
    for (const [clients, least] of Object.entries(required))
      await compareOutput(rounds, report, us, Number(clients), least, form, [file])
    await comparePrompts(rounds, report, us, promptTokens[0]!, form, [file])
  } finally {
    await us.stop()
  }
}

/** Prompts of all lengths, in the form that is served. */
export const longPrompts = (shape: string) => async (rounds: number, report: (row: Row) => void) => {
  const ours = await startOurs({ TUNERY_MODELS_DIR: models })
  const us: Side = { ...ours, model: addOnce(shape) }
  try {
    await measure(us, 1, bodies(999, 1))
    await waitForForm(ours, us.model)
    const files = [fileOf(us.model), await quantized(us.model, 'Q8_0')]
    for (const tokens of promptTokens) await comparePrompts(rounds, report, us, tokens, `${shape}, as served`, files)
  } finally {
    await us.stop()
  }
}

async function compareOutput(
  rounds: number,
  report: (row: Row) => void,
  us: Side,
  clients: number,
  least: number,
  form: string,
  files: readonly string[],
) {
  const them = await startFaster(files, clients, 1024, async (side) => {
    await measure(side, clients, bodies(998, clients))
    return tokensPerSecond(await measure(side, clients, bodies(997, clients)), output)
  })
  try {
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn, Math.max(2, clients))), output),
    )
    const what = `${form}: output at ${clients} client${clients > 1 ? 's' : ''}`
    report(comparisonRow('added-base', what, 'tokens/s', figures, { least }, them.form))
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
  files: readonly string[],
) {
  // The whole time of one token: with random weights most tokens have no text.
  const prompts = (turn: number) => [
    { ...user(text(tokens - 30, 9_000_000 + tokens + turn)), ...sampling, ...noEndToken, max_tokens: 1 },
  ]
  // Which file is read faster does not depend on the length.
  const few = { ...user(text(promptTokens[0]! - 30, 8_000_000)), ...sampling, ...noEndToken, max_tokens: 1 }
  const them = await startFaster(files, 1, tokens + 512, async (side) => {
    return 1 / median(durations(await measure(side, 1, [few])))
  })
  try {
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      median(durations(await measure(side, 1, prompts(turn)))),
    )
    const what = `${form}: one token after a prompt of ${tokens}`
    report(comparisonRow('added-base', what, 'ms', figures, { most: 0.5 }, them.form))
  } finally {
    await them.stop()
  }
}

/** Starts llama-server with the file with which it has the higher figure. */
async function startFaster(
  files: readonly string[],
  slots: number,
  context: number,
  figureOf: (side: Side) => Promise<number>,
) {
  const figures: number[] = []
  for (const weights of files.length > 1 ? files : []) {
    const side = await startLlamaServer(slots, context, { weights })
    try {
      figures.push(await figureOf(side))
    } finally {
      await side.stop()
    }
  }
  const them = await startLlamaServer(slots, context, {
    weights: files[figures.indexOf(Math.max(...figures))] ?? files[0]!,
  })
  await figureOf(them)
  return them
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
