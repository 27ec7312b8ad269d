// Checks a merged adapter before it serves: its scores match the unmerged adapter and the training, and it is faster.
import type { ServableModel } from '../../models/index.ts'
import { rowsToScore, type ScoreRows } from '../fidelity/adapter-verification.ts'
import { compare, meanDifference, type Probe, readProbe } from '../fidelity/compare.ts'
import type { Target } from '../requests/replica.ts'
import { MergeRejected } from './merge.ts'

/**
 * Largest accepted difference from the unmerged adapter, averaged over tokens, in nats: rounding, plus the difference
 * between engine and trainer on the base alone. Measurements: docs/decisions/009-merged-adapters.md.
 */
const limit = (base_difference: number) => 0.05 + base_difference
/** Tokens decoded one by one in each timing round. The fastest token counts, as it was the least disturbed. */
const timedTokens = 32
const timedRounds = 5

interface CheckResult {
  /** Mean difference of the merged adapter's scores from the unmerged one's, in nats. */
  difference: number
  /** Time per token of the unmerged adapter, divided by that of the merged one. */
  speedup: number
}

/** Not a vector of a picture: one picture has more of these than tokens are timed. */
const isWord = (token: number) => token >= 0
const withoutPictures = ({ role, content }: Probe['rows'][number]['prompt'][number]) => ({
  role,
  content:
    typeof content === 'string'
      ? content
      : content.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n'),
})

export type CheckMerged = (
  tuned: ServableModel,
  adapter: Target,
  merged: Target,
  signal: AbortSignal,
) => Promise<CheckResult>

/** The check throws MergeRejected if the adapter should stay unmerged. */
export function createMergedCheck(scoreRows: ScoreRows): CheckMerged {
  return async (tuned, adapter, merged, signal) => {
    const probe = await readProbe(tuned.probe)
    const rows = rowsToScore(probe)
    const adapterScores = await scoreRows(adapter, rows, { signal })
    const mergedScores = await scoreRows(merged, rows, { signal })
    const { problem, base_difference } = compare(
      probe,
      mergedScores,
      await scoreRows({ base: adapter.base }, rows, { signal }),
    )
    if (problem) throw new MergeRejected(problem)
    const difference = meanDifference(mergedScores, adapterScores)
    if (!(difference <= limit(base_difference)))
      throw new MergeRejected(`the merged adapter's log-probabilities differ by ${difference.toFixed(3)} on average`)
    const longest = rows.toSorted((a, b) => b.tokens.length - a.tokens.length)[0]!
    const tokens = longest.tokens.filter(isWord).slice(0, timedTokens + 1)
    const timed = [{ prompt: longest.prompt.map(withoutPictures), tokens, targets: [tokens.length - 1] }]
    const time = async (target: Target) => (await scoreRows(target, timed, { at_once: 1, signal })).least_ms
    const best = { adapter: Number.POSITIVE_INFINITY, merged: Number.POSITIVE_INFINITY }
    let rounds = 0
    do {
      best.adapter = Math.min(best.adapter, await time(adapter))
      best.merged = Math.min(best.merged, await time(merged))
    } while (best.merged > best.adapter && ++rounds < timedRounds)
    const speedup = best.adapter / best.merged
    if (!(speedup >= 1))
      throw new MergeRejected(`the merged adapter takes ${(1 / speedup).toFixed(2)} times as long for a token`)
    return { difference, speedup }
  }
}
