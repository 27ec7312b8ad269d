// How many tokens of prompts a step may hold so that other streams wait no longer than agreed.

const chunkMin = 16
const chunkFirst = 64

export type PromptPace = {
  /** Tokens that take about `ms` milliseconds, by the steps measured so far. */
  tokens(ms: number): number
  /** A step with this many prompt tokens took `ms` milliseconds in all. */
  measured(tokens: number, ms: number): void
}

export function createPromptPace(): PromptPace {
  let msPerToken: number | null = null
  return {
    tokens: (ms) => (msPerToken === null ? chunkFirst : Math.max(chunkMin, Math.floor(ms / msPerToken))),
    measured(tokens, ms) {
      // Of a few tokens, the time is the step's own cost and tells nothing about a long chunk.
      if (tokens < chunkMin) return
      const now = ms / tokens
      msPerToken = msPerToken === null ? now : 0.7 * msPerToken + 0.3 * now
    },
  }
}
