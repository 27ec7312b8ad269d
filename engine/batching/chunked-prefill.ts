// Chunked prefill: how long one step may compute prompts (the prefill budget), how many tokens that is, and which
// prompts get them. Bounds the time that a long prompt delays the other streams.

// A long prompt is computed in chunks of about this time, shared by all runners that prefill. The budget is larger when
// many prompts wait, as a step costs nearly as much with few streams as with all of them, and when no stream is
// decoding: small chunks take half as long again in total. The maximum bounds how late a disconnect is noticed, as that
// happens between steps.
const budgetMs = 150
const budgetMsMax = 350

const chunkTokensMin = 16
const chunkTokensFirst = 64
/** Weight of a new measurement in the moving average. */
const smoothing = 0.3

export type PrefillSpeed = {
  /** Prompt tokens that fit into `ms` milliseconds, by the steps measured so far. */
  tokensIn(ms: number): number
  /** A step over `rows` sequences, with `tokens` beyond the first of each, took `ms` milliseconds. */
  record(rows: number, tokens: number, ms: number): void
}

/**
 * Estimates the prefill speed. Model: a step costs what its sequences cost with one token each, plus a constant per
 * additional token.
 */
export function createPrefillSpeed(): PrefillSpeed {
  // Duration of steps with one token per sequence, indexed by log2 of the number of sequences.
  const decodeMs: number[] = []
  let msPerToken: number | null = null
  const average = (before: number | null | undefined, now: number) =>
    before == null ? now : (1 - smoothing) * before + smoothing * now
  const bucketOf = (rows: number) => Math.round(Math.log2(Math.max(1, rows)))
  const decodeMsOf = (rows: number): number => {
    for (let bucket = bucketOf(rows); bucket >= 0; bucket--)
      if (decodeMs[bucket] !== undefined) return decodeMs[bucket]!
    return 0
  }
  return {
    tokensIn: (ms) => (msPerToken === null ? chunkTokensFirst : Math.max(chunkTokensMin, Math.floor(ms / msPerToken))),
    record(rows, tokens, ms) {
      if (tokens === 0) decodeMs[bucketOf(rows)] = average(decodeMs[bucketOf(rows)], ms)
      // A chunk this small measures the step's fixed cost, not the cost per token.
      if (tokens < chunkTokensMin) return
      // At least a quarter of the time counts as prefill. Otherwise one step that was slow for another reason could
      // shrink the chunks below what is measured.
      msPerToken = average(msPerToken, Math.max(ms - decodeMsOf(rows), ms / 4) / tokens)
    },
  }
}

/**
 * Prefill budget of one runner for its next step, in milliseconds. Runners with prompts get equal shares, so that a
 * single long prompt does not wait for the many prompts of another runner.
 */
export function prefillBudgetMs(runners: readonly { prefilling(): number; decoding(): number }[]): number {
  const waiting = runners.map((runner) => runner.prefilling()).filter((prompts) => prompts > 0)
  const prompts = waiting.reduce((sum, count) => sum + count, 0)
  const delaysStreams = runners.some((runner) => runner.decoding() > 0)
  return (delaysStreams ? Math.min(budgetMsMax, budgetMs * prompts) : budgetMsMax) / Math.max(1, waiting.length)
}

type Prefill = { tokens_left: number; since_ms: number }

/**
 * Shares a budget of `tokens` among prompts. The shortest come first, so that most answers start soon. The oldest gets
 * a quarter, so that a long prompt does not starve.
 */
export function sharePrefillBudget<T extends Prefill>(prompts: readonly T[], tokens: number): Map<T, number> {
  const shares = new Map<T, number>()
  if (prompts.length === 0) return shares
  let rest = tokens
  const assign = (prompt: T, wanted: number) => {
    const count = Math.min(wanted, rest)
    rest -= count
    if (count > 0) shares.set(prompt, (shares.get(prompt) ?? 0) + count)
  }
  const oldest = prompts.reduce((first, prompt) => (prompt.since_ms < first.since_ms ? prompt : first))
  assign(oldest, Math.min(oldest.tokens_left, Math.ceil(tokens / 4)))
  for (const prompt of prompts.toSorted((a, b) => a.tokens_left - b.tokens_left || a.since_ms - b.since_ms))
    assign(prompt, prompt.tokens_left - (shares.get(prompt) ?? 0))
  return shares
}
