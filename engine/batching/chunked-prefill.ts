// Chunked prefill: how long one step may compute prompts (the prefill budget), how many tokens that is, and which
// prompts get them. Bounds the time that a long prompt delays the other streams.

// A long prompt is computed in chunks of about this time, shared by all runners that prefill. The budget is larger when
// many prompts wait, as a step costs nearly as much with few streams as with all of them, and when no stream is
// decoding: small chunks take half as long again in total. The maximum bounds how late a disconnect is noticed, as that
// happens between steps. A prompt that does not end with the step gets only a share of the time that the streams' steps
// take, so that a long one at most doubles their time per token.
const budget_ms = 150
const budget_ms_max = 350
const partShare = 0.8
/** Steps whose shares a part gets at once: each part reads all weights once more, however few tokens it has. */
const partSteps = 3

const chunkTokensMin = 16
const chunkTokensFirst = 64
/** Weight of a new measurement in the moving average. */
const smoothing = 0.3

interface PrefillSpeed {
  /** Prompt tokens that fit into `ms` milliseconds, by the steps measured so far. */
  tokensIn(ms: number): number
  /** How long a step of so many sequences takes with one token, or a draft, of each; 0 if none was measured. */
  decode_ms(rows: number): number
  /** A step over `rows` sequences, with `tokens` of prompts beyond the first of each, took `ms` milliseconds. */
  record(rows: number, tokens: number, ms: number): void
}

/**
 * Estimates the prefill speed. Model: a step costs what its sequences cost with one token each, plus a constant per
 * additional token.
 */
export function createPrefillSpeed(): PrefillSpeed {
  // Duration of steps with one token per sequence, indexed by log2 of the number of sequences.
  const decode_ms: number[] = []
  let ms_per_token: number | null = null
  const average = (before: number | null | undefined, now: number) =>
    before == null ? now : (1 - smoothing) * before + smoothing * now
  const bucketOf = (rows: number) => Math.round(Math.log2(Math.max(1, rows)))
  const decodeTime_ms = (rows: number): number => {
    for (let bucket = bucketOf(rows); bucket >= 0; bucket--)
      if (decode_ms[bucket] !== undefined) return decode_ms[bucket]!
    return 0
  }
  return {
    tokensIn(ms) {
      if (ms === 0) return 0
      return ms_per_token === null ? chunkTokensFirst : Math.max(chunkTokensMin, Math.floor(ms / ms_per_token))
    },
    decode_ms: decodeTime_ms,
    record(rows, tokens, ms) {
      if (tokens === 0) decode_ms[bucketOf(rows)] = average(decode_ms[bucketOf(rows)], ms)
      // A chunk this small measures the step's fixed cost, not the cost per token.
      if (tokens < chunkTokensMin) return
      // At least a quarter of the time counts as prefill. Otherwise one step that was slow for another reason could
      // shrink the chunks below what is measured.
      ms_per_token = average(ms_per_token, Math.max(ms - decodeTime_ms(rows), ms / 4) / tokens)
    },
  }
}

/** `part_ms`: what the step adds to the time for parts of long prompts (`createPartTime`); within `whole_ms`. */
export interface PrefillBudget {
  whole_ms: number
  part_ms: number
}
interface Loaded {
  prefilling(): number
  decoding(): number
  decode_ms(): number
}

/**
 * Prefill budget of one runner for its next step. Runners with prompts get equal shares, so that a single long prompt
 * does not wait for the many prompts of another runner.
 */
export function prefillBudget(runners: readonly Loaded[]): PrefillBudget {
  const waiting = runners.map((runner) => runner.prefilling()).filter((prompts) => prompts > 0)
  const shares = Math.max(1, waiting.length)
  const prompts = waiting.reduce((sum, count) => sum + count, 0)
  const streams = runners.filter((runner) => runner.decoding() > 0)
  if (streams.length === 0) return { whole_ms: budget_ms_max / shares, part_ms: budget_ms_max / shares }
  const whole_ms = Math.min(budget_ms_max, budget_ms * prompts) / shares
  const streams_ms = streams.reduce((sum, runner) => sum + runner.decode_ms(), 0)
  return { whole_ms, part_ms: Math.min(whole_ms, (partShare * streams_ms) / shares) }
}

/** Saves up the time for parts of one runner: how long the parts of its next step may take. */
export function createPartTime(): (budget: PrefillBudget) => number {
  let saved_ms = 0
  let steps = 0
  return ({ whole_ms, part_ms }) => {
    saved_ms += part_ms
    // Without streams nothing is saved up.
    if (++steps < partSteps && saved_ms < whole_ms) return 0
    const part = Math.min(saved_ms, whole_ms)
    saved_ms = 0
    steps = 0
    return part
  }
}

/** `in_parts`: its prompt was longer than the budget of its first step. */
interface Prefill {
  tokens_left: number
  since_ms: number
  in_parts: boolean
}

/**
 * Shares a budget of `tokens` among prompts, `part` of it among those that do not end with it, and those that came in
 * parts before: their last one would stop the streams as long as all of a short prompt. The shortest come first, so
 * that most answers start soon. The oldest gets a quarter, so that a long prompt does not starve.
 */
export function sharePrefillBudget<T extends Prefill>(
  prompts: readonly T[],
  tokens: number,
  part: number,
): Map<T, number> {
  const shares = new Map<T, number>()
  if (prompts.length === 0) return shares
  let rest = tokens
  let partRest = part
  const assign = (prompt: T, requested: number) => {
    const before = shares.get(prompt) ?? 0
    const count = Math.min(requested, rest)
    const ends = before + count === prompt.tokens_left && !prompt.in_parts
    const granted = ends ? count : Math.min(count, partRest)
    if (!ends) partRest -= granted
    rest -= granted
    if (granted > 0) shares.set(prompt, before + granted)
  }
  const oldest = prompts.reduce((first, prompt) => (prompt.since_ms < first.since_ms ? prompt : first))
  assign(oldest, Math.min(oldest.tokens_left, Math.ceil(tokens / 4)))
  for (const prompt of prompts.toSorted((a, b) => a.tokens_left - b.tokens_left || a.since_ms - b.since_ms))
    assign(prompt, prompt.tokens_left - (shares.get(prompt) ?? 0))
  return shares
}
