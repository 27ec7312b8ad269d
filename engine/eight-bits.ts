// Command line: `node engine/eight-bits.ts FILE.gguf LIBRARY_FOLDER MIN_FREE_BYTES`: writes the eight-bit form of a
// model beside its file, measures how far its answers are from the original's, and records that. With one thread, at
// the lowest priority. Exits with 0 when both are there, with 3 and a reason on stderr where they cannot be, with 1
// after a failure.
import { setPriority } from 'node:os'
import { dieWithParent } from '../lib/child-process.ts'
import { type EightBitsDistance, eightBitsFile, writeEightBitsRecord } from '../lib/eight-bits.ts'
import { createComputeThreads } from './llama/compute-threads.ts'
import { createContext } from './llama/context.ts'
import { DiskTooFull, writeEightBits } from './llama/eight-bit-weights.ts'
import { fileTypes } from './llama/file-types.ts'
import { type Library, openLibrary } from './llama/library.ts'
import { loadModel, type Model } from './llama/model.ts'
import { logSumExp } from './sampling/logprobs.ts'

const impossibleStatus = 3
const batchTokens = 32

/** Several kinds of text: what a model knows best and least differs most between them. */
const texts = [
  'The harbour wakes before the town does. Gulls settle on the masts, ropes creak, and a man in a yellow coat counts ' +
    'crates of fish while the ice melts through his fingers. "Tomorrow," he says, "there will be mackerel, if the ' +
    'wind turns."',
  'Question: A train leaves at 14:05 and arrives at 16:50. How long does the journey take?\nAnswer: From 14:05 to ' +
    '16:05 are two hours, and from 16:05 to 16:50 are 45 minutes, so the journey takes 2 hours and 45 minutes.',
  'def median(numbers: list[float]) -> float:\n    ordered = sorted(numbers)\n    middle = len(ordered) // 2\n' +
    '    if len(ordered) % 2 == 1:\n        return ordered[middle]\n' +
    '    return (ordered[middle - 1] + ordered[middle]) / 2\n',
  '{"order": {"id": 4711, "customer": "Ana Souza", "items": [{"sku": "A-12", "quantity": 3, "price": 19.9}], ' +
    '"paid": true}}',
  'La lumière du matin entre par la fenêtre ouverte. Auf dem Tisch liegen ein Brief, zwei Tassen und der Schlüssel ' +
    'zum Garten. El perro duerme junto a la puerta y no se mueve.',
]

async function main([path, lib, minFree]: string[]): Promise<void> {
  // With SIGKILL: an exit would wait for the library's threads.
  dieWithParent()
  if (!path || !lib) throw new Error('eight-bits.ts FILE.gguf LIBRARY_FOLDER MIN_FREE_BYTES')
  // As low as merging, which answers leave minutes behind at the lowest: seconds, where nothing else runs.
  setPriority(10)
  const library = openLibrary(lib)
  const original = await loadModel(library, path)
  await writeEightBits(library, path, original.file_type, 1, Number(minFree ?? 0))
  const copy = await loadModel(library, eightBitsFile(path))
  const name = Object.entries(fileTypes).find(([, number]) => String(number) === original.file_type)?.[0]
  writeEightBitsRecord(path, { original_type: name ?? 'unknown', distance: distanceOf(library, original, copy) })
}

/** Both forms read the same texts, with the library's kernels: these leave the weights in pages of their files. */
function distanceOf(library: Library, original: Model, copy: Model): EightBitsDistance {
  const threads = createComputeThreads(library, 1)
  const tokenized = texts.map((text) => [
    ...(original.vocab.wants_bos ? [original.vocab.bos!] : []),
    ...original.vocab.tokenize(text),
  ])
  const length = Math.max(...tokenized.map((tokens) => tokens.length))
  const [first, second] = [original, copy].map((model) =>
    createContext(library, model, {
      sequences: 1,
      tokens_per_sequence: length,
      batch_tokens: batchTokens,
      threads,
      adapter: null,
      outputs: batchTokens,
    }),
  )
  const sum = { tokens: 0, divergence: 0, logprob_difference: 0, same_top: 0 }
  for (const tokens of tokenized) {
    for (const context of [first!, second!]) context.truncate(0, 0)
    for (let from = 0; from < tokens.length - 1; from += batchTokens) {
      const to = Math.min(tokens.length - 1, from + batchTokens)
      for (const context of [first!, second!]) {
        for (let at = from; at < to; at++) context.add(tokens[at]!, at, 0, true)
        if (context.decode() !== 0) throw new Error('the library could not compute the texts')
      }
      for (let at = from; at < to; at++) {
        const { size } = original.vocab
        const row = compare(first!.logits(at - from, size), second!.logits(at - from, size), tokens[at + 1]!)
        sum.tokens++
        sum.divergence += row.divergence
        sum.logprob_difference += row.logprob_difference
        sum.same_top += row.same_top ? 1 : 0
      }
    }
  }
  const mean = (total: number) => Number((total / sum.tokens).toPrecision(3))
  return {
    tokens: sum.tokens,
    divergence: mean(sum.divergence),
    logprob_difference: mean(sum.logprob_difference),
    same_top: mean(sum.same_top),
  }
}

/** Compares the logits of one position, whose next token is `next`. */
function compare(one: Float32Array, other: Float32Array, next: number) {
  const [total, otherTotal] = [logSumExp(one), logSumExp(other)]
  let divergence = 0
  let top = 0
  let otherTop = 0
  for (let token = 0; token < one.length; token++) {
    if (one[token]! > one[top]!) top = token
    if (other[token]! > other[otherTop]!) otherTop = token
    const logprob = one[token]! - total
    divergence += Math.exp(logprob) * (logprob - (other[token]! - otherTotal))
  }
  return {
    divergence: Math.max(0, divergence),
    logprob_difference: Math.abs(one[next]! - total - (other[next]! - otherTotal)),
    same_top: top === otherTop,
  }
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error: Error) => {
    const isImpossible =
      error instanceof DiskTooFull || ['EACCES', 'EROFS', 'EPERM'].includes((error as NodeJS.ErrnoException).code!)
    console.error(error.message)
    process.exit(isImpossible ? impossibleStatus : 1)
  },
)
