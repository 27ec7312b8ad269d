// Steps with changing numbers of threads: the same numbers, on cores that are free again afterwards.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'
import { readCoreTimes } from '../../../engine/batching/core-times.ts'
import { createComputeThreads } from '../../../engine/llama/compute-threads.ts'
import { createContext } from '../../../engine/llama/context.ts'
import { loadFastestFormat } from '../../../engine/llama/eight-bit-weights.ts'
import { addKernels } from '../../../engine/llama/kernels.ts'
import { openLibrary } from '../../../engine/llama/library.ts'
import { loadModel, type Model } from '../../../engine/llama/model.ts'
import { allowedCores, usableCores } from '../../../lib/usable-cores.ts'
import { modelPath, ownKernels, root } from './engine-process.ts'

const skip = usableCores() < 2 && 'this machine has one core'
const library = openLibrary(join(root, '.local/llama/lib'))
const all = Math.min(4, usableCores())
const threads = createComputeThreads(library, all)

/** Logits of a prompt's end and of eight more tokens; `next` chooses the threads of each step. */
function logits(model: Model, next: (step: number) => number): Float32Array[] {
  let step = 0
  const asked: number[] = []
  threads.choose({ threads: () => next(step++), record: (count) => asked.push(count) })
  const size = { sequences: 1, tokens_per_sequence: 128, batch_tokens: 128, adapter: null, outputs: 1 }
  const context = createContext(library, model, { ...size, threads })
  const outputs: Float32Array[] = []
  const compute = (length: number, from: number) => {
    for (let at = 0; at < length; at++) context.add(1000 + 7 * (from + at), from + at, 0, at === length - 1)
    assert.equal(context.decode(), 0)
    outputs.push(context.logits(length - 1, model.vocab.size).slice())
  }
  compute(48, 0)
  for (let token = 0; token < 8; token++) compute(1, 48 + token)
  context.free()
  assert.deepEqual(asked, Array.from(outputs.keys(), next), 'each step had the threads that were chosen')
  return outputs
}

async function sameNumbers(model: Model) {
  const before = allowedCores()
  const one = logits(model, () => 1)
  assert.deepEqual(
    logits(model, () => all),
    one,
  )
  assert.deepEqual(
    logits(model, (step) => 1 + (step % all)),
    one,
  )
  assert.deepEqual(allowedCores(), before, 'the thread that calls the library is free again')
  const child = execFileSync(process.execPath, ['-p', 'os.availableParallelism()'], { encoding: 'utf8' })
  assert.ok(Number(child) >= usableCores(), 'and so are processes that it starts')
}

test('the kernels of the library compute the same to the last bit with any number of threads', { skip }, async () => {
  await sameNumbers(await loadModel(library, modelPath))
})

const skipOwn = skip || (!ownKernels && 'our own kernels are not installed here, or not for this processor')
test('so do our own', { skip: skipOwn }, async () => {
  assert.equal(addKernels(library), null)
  const open = async (path: string) => ({ model: await loadModel(library, path) })
  const processor = { threads: all, has_own_kernels: true }
  await sameNumbers((await loadFastestFormat(library, modelPath, processor, 1e6, open)).opened.model)
})

test('the times of the compute threads and of the cores are read', {
  skip: skip || process.platform !== 'linux',
}, () => {
  assert.equal(threads.ids(all).length, all)
  const times = readCoreTimes(threads.ids, all)!
  const before = [times.threads(1).used_ms, times.cores().idle_ms] as const
  for (const end = performance.now() + 50; performance.now() < end; );
  const used = times.threads(1).used_ms - before[0]
  assert.ok(used > 1 && used < 500, `${used} ms of the thread that was busy for 50 ms`)
  assert.ok(times.cores().idle_ms >= before[1])
  assert.ok(times.threads(all).used_ms >= times.threads(1).used_ms)
})
