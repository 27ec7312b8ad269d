// Whether what the engine serves is what was trained: what training changed in the probabilities of a few rows, by each
// of the two. Tuned minus origin in each, since the two hold the same base in different precisions.
import { readFile } from 'node:fs/promises'
import { z } from 'zod'
import type { Comparison } from '../../../contract/models.ts'

export const Probe = z.object({
  rows: z.array(
    z.object({
      prompt: z.array(z.object({ role: z.string(), content: z.string() })),
      tokens: z.array(z.int()),
      targets: z.array(z.int()),
      /** Whether the last token is the end of the answer. */
      whole: z.boolean(),
      /** The trainer's log-probabilities of the targets. */
      tuned: z.array(z.number()),
      origin: z.array(z.number()),
    }),
  ),
})
export type Probe = z.infer<typeof Probe>

const Scores = z.object({
  rows: z.array(
    z.object({
      prompt: z.array(z.int()).nullable(),
      logprobs: z.array(z.number().nullable()),
      bytes: z.array(z.string()).optional(),
      ends: z.boolean(),
    }),
  ),
  /** How long the engine computed the fastest of the pieces. */
  least_ms: z.number(),
})
export type Scores = z.infer<typeof Scores>

export const readProbe = async (file: string): Promise<Probe> => Probe.parse(JSON.parse(await readFile(file, 'utf8')))
export const parseScores = (text: string): Scores => Scores.parse(JSON.parse(text))

/**
 * The engine's change may differ from the trainer's by this, on average over the tokens: some digits, twice what the
 * two differ by about the base alone (they hold it in different precisions, which shows about each model in another
 * way), and a share of the change itself. Serving the base alone differs by the whole change.
 * docs/decisions/006-engine-and-trainer.md has the measurements.
 */
const limit = (base_difference: number, change: number) => 0.05 + 2 * base_difference + 0.2 * change
/** No precision explains more than this about the base alone. */
const largestBaseDifference = 2

/** Compares the two. `probe` is the trainer's; `tuned` and `origin` are the engine's scores of the same rows. */
export function compare(probe: Probe, tuned: Scores, origin: Scores): Comparison {
  let tokens = 0
  let change = 0
  let difference = 0
  let base_difference = 0
  let otherPrompts = 0
  let endless = 0
  probe.rows.forEach((row, index) => {
    const after = tuned.rows[index]!
    const before = origin.rows[index]!
    if (after.prompt && !startsWith(row.tokens, after.prompt)) otherPrompts++
    if (row.whole && !after.ends) endless++
    row.targets.forEach((_, place) => {
      const trainers = row.tuned[place]! - row.origin[place]!
      const engines = number(after.logprobs[place]) - number(before.logprobs[place])
      tokens++
      change += Math.abs(trainers)
      difference += Math.abs(engines - trainers)
      base_difference += Math.abs(number(before.logprobs[place]) - row.origin[place]!)
    })
  })
  change /= Math.max(1, tokens)
  difference /= Math.max(1, tokens)
  base_difference /= Math.max(1, tokens)
  const problem =
    otherPrompts * 2 > probe.rows.length
      ? 'The engine makes other tokens of these conversations than the trainer did: its chat template or tokenizer is another one. Run the set-up of the base again, then train again.'
      : endless > 0
        ? 'The engine does not know the token that ends an answer in training as an end, so answers would not stop. Run the set-up of the base again.'
        : !(base_difference <= largestBaseDifference)
          ? `The engine and the trainer do not have the same base: its probabilities differ by ${base_difference.toFixed(3)} on average before any training. Run the set-up of the base again, then train again.`
          : !(difference <= limit(base_difference, change))
            ? `The engine's probabilities do not follow the training: it changed them by ${change.toFixed(3)} on average, and the engine's differ from that by ${difference.toFixed(3)}. The files of this model do not hold what was trained. Train it again; if that does not help, the service's log and docs/decisions/006-engine-and-trainer.md say more.`
            : null
  return { agrees: problem === null, problem, rows: probe.rows.length, tokens, change, difference, base_difference }
}

/** How far two scores of the same rows are apart, on average over the tokens, in nats. */
export function apart(one: Scores, other: Scores): number {
  const differences = one.rows.flatMap((row, index) =>
    row.logprobs.map((logprob, place) => Math.abs(number(logprob) - number(other.rows[index]!.logprobs[place]))),
  )
  return differences.reduce((sum, each) => sum + each, 0) / Math.max(1, differences.length)
}

/** What an engine computes that is no number cannot be written in JSON: as far from right as can be. */
const number = (value: number | null | undefined) => (Number.isFinite(value) ? value! : -1e6)

/** The boundary between a prompt and its answer may fall inside a token: the prompt's last one need not be there. */
function startsWith(tokens: number[], prompt: number[]): boolean {
  return prompt.slice(0, -1).every((token, place) => tokens[place] === token)
}
