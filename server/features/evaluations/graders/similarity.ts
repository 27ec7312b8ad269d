// How alike two texts are, 0 to 1, by the metrics of `text_similarity`.
import type { similarityMetrics } from '../../../../contract/graders.ts'
import { GraderError } from './template.ts'

type Metric = (typeof similarityMetrics)[number]

/** Longest texts that are compared, in characters and in words: the longest common subsequence takes their product. */
const charsMax = 10_000
const wordsMax = 5000

export function similarity(metric: Metric, text: string, reference: string): number {
  if (metric === 'fuzzy_match') {
    requireShort(text.length, reference.length, charsMax, 'characters')
    const [ours, theirs] = [[...text], [...reference]]
    return fMeasure(longestCommonSubsequence(ours, theirs), ours.length, theirs.length)
  }
  const [words, expected] = [wordsOf(text), wordsOf(reference)]
  requireShort(words.length, expected.length, wordsMax, 'words')
  if (words.length === 0 || expected.length === 0) return words.length === expected.length ? 1 : 0
  if (metric === 'bleu') return bleu(words, expected)
  if (metric === 'gleu') return gleu(words, expected)
  if (metric === 'rouge_l') return fMeasure(longestCommonSubsequence(words, expected), words.length, expected.length)
  const size = Number(metric.slice('rouge_'.length))
  const [ours, theirs] = [ngrams(words, size), ngrams(expected, size)]
  return fMeasure(overlap(ours, theirs), total(ours), total(theirs))
}

function requireShort(a: number, b: number, max: number, what: string): void {
  if (Math.max(a, b) > max) throw new GraderError(`Texts of more than ${max} ${what} are not compared.`)
}

const wordsOf = (text: string) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []

const fMeasure = (common: number, a: number, b: number) => (a + b === 0 ? 1 : (2 * common) / (a + b))

function ngrams(words: string[], size: number): Map<string, number> {
  const counts = new Map<string, number>()
  for (let at = 0; at + size <= words.length; at++) {
    const gram = words.slice(at, at + size).join(' ')
    counts.set(gram, (counts.get(gram) ?? 0) + 1)
  }
  return counts
}

const total = (grams: Map<string, number>) => [...grams.values()].reduce((sum, count) => sum + count, 0)

function overlap(a: Map<string, number>, b: Map<string, number>): number {
  let common = 0
  for (const [gram, count] of a) common += Math.min(count, b.get(gram) ?? 0)
  return common
}

/** Papineni et al., 2002, for one sentence; orders without a match are smoothed (Chen and Cherry, 2014, method 1). */
function bleu(words: string[], reference: string[]): number {
  const orders = Math.min(4, words.length, reference.length)
  let logs = 0
  for (let size = 1; size <= orders; size++) {
    const ours = ngrams(words, size)
    logs += Math.log((overlap(ours, ngrams(reference, size)) || 0.1) / total(ours)) / orders
  }
  const brevity = words.length >= reference.length ? 1 : Math.exp(1 - reference.length / words.length)
  return Math.min(1, brevity * Math.exp(logs))
}

/** Wu et al., 2016 (arXiv 1609.08144): n-grams of up to four words, the lower of precision and recall. */
function gleu(words: string[], reference: string[]): number {
  let [common, ours, theirs] = [0, 0, 0]
  for (let size = 1; size <= 4; size++) {
    const [a, b] = [ngrams(words, size), ngrams(reference, size)]
    common += overlap(a, b)
    ours += total(a)
    theirs += total(b)
  }
  return common / Math.max(ours, theirs)
}

function longestCommonSubsequence<T>(a: T[], b: T[]): number {
  let previous = new Uint32Array(b.length + 1)
  for (const item of a) {
    const current = new Uint32Array(b.length + 1)
    for (let index = 0; index < b.length; index++)
      current[index + 1] = item === b[index] ? previous[index]! + 1 : Math.max(previous[index + 1]!, current[index]!)
    previous = current
  }
  return previous[b.length]!
}
