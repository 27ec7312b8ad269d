// Who gets how many of the tokens of prompts that a step may hold.

type Waiting = { left: number; since_ms: number }

/**
 * Shares `tokens` among prompts of which `left` tokens are not computed yet: the shortest first, so that most answers begin soon, but a
 * quarter to the oldest, so that a long one is not overtaken for ever.
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
  for (const prompt of prompts.toSorted((a, b) => a.left - b.left || a.since_ms - b.since_ms)) give(prompt, prompt.left - (shares.get(prompt) ?? 0))
  return shares
}
