// Measures steps of one context in this process: `node measure.ts JSON`, with the fields of `Measurement`. Prints JSON:
// milliseconds of each step, by its name. The library's kernels or ours: a process cannot change them.
import path from 'node:path'
import { readCoreTimes } from '../../engine/batching/core-times.ts'
import { createStepThreads } from '../../engine/batching/step-threads.ts'
import { createComputeThreads } from '../../engine/llama/compute-threads.ts'
import { type Context, createContext } from '../../engine/llama/context.ts'
import { addKernels } from '../../engine/llama/kernels.ts'
import { openLibrary } from '../../engine/llama/library.ts'
import { loadAdapter, loadModel } from '../../engine/llama/model.ts'

export type Measurement = {
  model: string
  adapter: string | null
  /** `served`: ours where the processor has what they need, as the engine does. */
  kernels: 'library' | 'own' | 'served'
  threads: number
  /** Whether the threads of each step are chosen, as the engine does; if not, all compute. */
  chosen?: boolean
  steps: string[]
}

/** Tokens that a sequence has before the step. */
const contextTokens = 100
const { model: file, adapter, kernels, threads, chosen = false, steps }: Measurement = JSON.parse(process.argv[2]!)
const library = openLibrary(path.resolve(import.meta.dirname, '../../.local/llama/lib'))
const missing = kernels === 'library' ? null : addKernels(library)
if (missing && kernels === 'own') throw new Error(`The engine's own kernels cannot be measured: ${missing}.`)
const model = await loadModel(library, file)
const computeThreads = createComputeThreads(library, threads)
if (chosen) computeThreads.choose(createStepThreads(threads, readCoreTimes(computeThreads.ids, threads)!))
const attached = adapter === null ? null : loadAdapter(library, model, adapter)

const result: Record<string, number> = {}
for (const step of steps) result[step] = measure(step)
console.log(JSON.stringify(result))
// The library's threads would keep the process for a while.
process.exit(0)

/**
 * `sequences N`: a token each; `draft N`: tokens of one sequence, all with logits; `prompt N`: N tokens, in chunks;
 * `context N`: a token after N of its sequence.
 */
function measure(step: string): number {
  const [kind, size] = [step.split(' ')[0]!, Number(step.split(' ')[1])]
  const sequences = kind === 'sequences' ? size : 1
  const context = createContext(library, model, {
    sequences,
    tokens_per_sequence: kind === 'prompt' || kind === 'context' ? size + 8 : 256,
    batch_tokens: 512,
    threads: computeThreads,
    adapter: attached,
    outputs: kind === 'draft' ? size : sequences,
  })
  const before = kind === 'prompt' ? 0 : kind === 'context' ? size : contextTokens
  for (let sequence = 0; sequence < sequences; sequence++)
    for (let at = 0; at < before; at++) {
      context.add(tokenOf(at, sequence), at, sequence, at === before - 1)
      if (at === before - 1 || context.batchLength() === 512) decode(context)
    }
  const once = () => {
    for (let at = 0; at < (kind === 'sequences' || kind === 'context' ? 1 : size); at++) {
      for (let sequence = 0; sequence < sequences; sequence++)
        context.add(tokenOf(before + at, sequence), before + at, sequence, kind !== 'prompt' || at === size - 1)
      if (context.batchLength() === 512) decode(context)
    }
    if (context.batchLength() > 0) decode(context)
    for (let sequence = 0; sequence < sequences; sequence++) context.truncate(sequence, before)
  }
  const milliseconds = fastestOf(once)
  context.free()
  return milliseconds
}

function tokenOf(at: number, sequence: number): number {
  return 1000 + ((at * 7919 + sequence * 104729) % 40_000)
}

function decode(context: Context): void {
  const status = context.decode()
  if (status !== 0) throw new Error(`The library returned ${status} for a step.`)
}

/** With one thread processor time, which other programs change little; with more, whose threads spin, time. */
function clock(): number {
  if (threads > 1) return performance.now()
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** The fastest of at least two, and of half a second: other programs only ever make a run slower. */
function fastestOf(run: () => void): number {
  run()
  let fastest = Number.POSITIVE_INFINITY
  for (let total = 0, count = 0; total < 500 || count < 2; count++) {
    const started = clock()
    run()
    const took = clock() - started
    total += took
    fastest = Math.min(fastest, took)
  }
  return fastest
}
