// How long a step may take for prompts, and how many of their tokens that is, so that other streams wait no longer than
// agreed.

// A long prompt is computed in pieces of about this time, all lanes with prompts together, between two steps of the
// other streams. Many prompts that wait get longer pieces, since a step costs nearly as much with few streams as with
// all of them, and so do prompts that hold up no stream: short pieces take half as long again. But a client that leaves
// is noticed between two steps.
const promptMs = 150
const promptMsMax = 350

const chunkMin = 16
const chunkFirst = 64
const weight = 0.3

export type PromptPace = {
  /** Tokens, beyond the first of each sequence, that take about `ms` milliseconds, by the steps measured so far. */
  tokens(ms: number): number
  /** A step over `rows` sequences with this many tokens beyond the first of each took `ms` milliseconds. */
  measured(rows: number, tokens: number, ms: number): void
}

/**
 * A step costs what its sequences cost with one token each, and something for each token more: the library computes
 * these apart.
 */
export function createPromptPace(): PromptPace {
  // Of steps with one token a sequence, by the logarithm of their number.
  const plainMs: number[] = []
  let msPerToken: number | null = null
  const moved = (before: number | null | undefined, now: number) =>
    before == null ? now : (1 - weight) * before + weight * now
  const bucket = (rows: number) => Math.round(Math.log2(Math.max(1, rows)))
  const plain = (rows: number): number => {
    for (let at = bucket(rows); at >= 0; at--) if (plainMs[at] !== undefined) return plainMs[at]!
    return 0
  }
  return {
    tokens: (ms) => (msPerToken === null ? chunkFirst : Math.max(chunkMin, Math.floor(ms / msPerToken))),
    measured(rows, tokens, ms) {
      if (tokens === 0) plainMs[bucket(rows)] = moved(plainMs[bucket(rows)], ms)
      // Of a few tokens, the time is the step's own cost and tells nothing about a long chunk.
      if (tokens < chunkMin) return
      // A step that was slow for another reason must not make the chunks so small that none is measured again.
      msPerToken = moved(msPerToken, Math.max(ms - plain(rows), ms / 4) / tokens)
    },
  }
}

/**
 * Milliseconds for the prompts of one lane in its next step, by how many prompts and answers each of `lanes` has. Lanes
 * share alike: a long prompt alone in its lane does not stand behind the many of another.
 */
export function promptTime(lanes: readonly { prompts(): number; answers(): number }[]): number {
  const waiting = lanes.map((lane) => lane.prompts()).filter((prompts) => prompts > 0)
  const all = waiting.reduce((sum, prompts) => sum + prompts, 0)
  const holdsUp = lanes.some((lane) => lane.answers() > 0)
  return (holdsUp ? Math.min(promptMsMax, promptMs * all) : promptMsMax) / Math.max(1, waiting.length)
}

// Who gets how many of the tokens of prompts that a step may hold.

type Waiting = { left: number; since_ms: number }

/**
 * Shares `tokens` among prompts of which `left` tokens are not computed yet: the shortest first, so that most answers
 * begin soon, but a quarter to the oldest, so that a long one is not overtaken for ever.
 */
export function allot<T extends Waiting>(prompts: readonly T[], tokens: number): Map<T, number> {
  const shares = new Map<T, number>()
  if (prompts.length === 0) return shares
  let rest = tokens
  const give = (prompt: T, wanted: number) => {
    const given = Math.min(wanted, rest)
    rest -= given
    if (given > 0) shares.set(prompt, (shares.get(prompt) ?? 0) + given)
  }
  const oldest = prompts.reduce((first, prompt) => (prompt.since_ms < first.since_ms ? prompt : first))
  give(oldest, Math.min(oldest.left, Math.ceil(tokens / 4)))
  for (const prompt of prompts.toSorted((a, b) => a.left - b.left || a.since_ms - b.since_ms))
    give(prompt, prompt.left - (shares.get(prompt) ?? 0))
  return shares
}
