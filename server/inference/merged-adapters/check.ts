// Whether a merged copy may serve in place of its adapter: it says what the adapter says and what was trained, and
// sooner.
import type { ServableModel } from '../../fine-tuning/models/registry.ts'
import { type Scoring, scoredRows } from '../fidelity/adapter-verification.ts'
import { apart, compare, readProbe } from '../fidelity/compare.ts'
import type { Target } from '../replicas/replica.ts'
import { NotWorth } from './manager.ts'

/**
 * How far a copy may be from its adapter, on average over the tokens, in nats: some digits, and what engine and trainer
 * differ by about the base alone, which is rounding. docs/decisions/009-merged-copies.md has the measurements.
 */
const limit = (base_difference: number) => 0.05 + base_difference
/**
 * Tokens that are computed one by one to see how fast that goes, and how often at most: the fastest of them counts,
 * which is one that nothing disturbed.
 */
const timedTokens = 32
const timedTurns = 5

export interface Found {
  /** Of the copy's scores from the adapter's, in nats. */
  apart: number
  /** The adapter's time for a token over the copy's. */
  faster: number
}

export type CheckCopy = (tuned: ServableModel, adapter: Target, copy: Target, signal: AbortSignal) => Promise<Found>

/** The check throws NotWorth where the adapter had better be served as it is. */
export function createCheck(scores: Scoring): CheckCopy {
  return async (tuned, adapter, copy, signal) => {
    const probe = await readProbe(tuned.probe)
    const rows = scoredRows(probe)
    const own = await scores(adapter, rows, { signal })
    const merged = await scores(copy, rows, { signal })
    const { problem, base_difference } = compare(probe, merged, await scores({ base: adapter.base }, rows, { signal }))
    if (problem) throw new NotWorth(problem)
    const distance = apart(merged, own)
    if (!(distance <= limit(base_difference)))
      throw new NotWorth(`its copy's log-probabilities are ${distance.toFixed(3)} away from its own on average`)
    const longest = rows.toSorted((a, b) => b.tokens.length - a.tokens.length)[0]!
    const tokens = longest.tokens.slice(0, timedTokens + 1)
    const timed = [{ ...longest, tokens, targets: [tokens.length - 1] }]
    const time = async (target: Target) => (await scores(target, timed, { at_once: 1, signal })).least_ms
    const best = { adapter: Number.POSITIVE_INFINITY, copy: Number.POSITIVE_INFINITY }
    let turns = 0
    do {
      best.adapter = Math.min(best.adapter, await time(adapter))
      best.copy = Math.min(best.copy, await time(copy))
    } while (best.copy > best.adapter && ++turns < timedTurns)
    const faster = best.adapter / best.copy
    if (!(faster >= 1)) throw new NotWorth(`its copy takes ${(1 / faster).toFixed(2)} times as long for a token`)
    return { apart: distance, faster }
  }
}
