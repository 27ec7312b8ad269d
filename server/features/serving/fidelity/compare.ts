// Compares engine and trainer on a few probe rows: by how much did training change the log-probabilities in each? Both
// use tuned minus origin, because they hold the same base in different precisions.
import { readFile } from 'node:fs/promises'
import { z } from 'zod'
import { ContentPart } from '../../../../contract/chat.ts'
import type { Comparison } from '../../../../contract/models.ts'

export const Probe = z.object({
  rows: z.array(
    z.object({
      /** Contents with pictures are parts, as in chats. */
      prompt: z.array(z.object({ role: z.string(), content: z.union([z.string(), z.array(ContentPart)]) })),
      /** -1: a vector of a picture. */
      tokens: z.array(z.int()),
      targets: z.array(z.int()),
      /** Whether the last token ends the answer. */
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
  /** Duration of the fastest batch. */
  least_ms: z.number(),
  /** Whether the base answered in its eight-bit form. */
  eight_bits: z.boolean().optional(),
})
export type Scores = z.infer<typeof Scores>

export const readProbe = async (file: string): Promise<Probe> => Probe.parse(JSON.parse(await readFile(file, 'utf8')))
export const parseScores = (text: string): Scores => Scores.parse(JSON.parse(text))

/**
 * Largest accepted difference between the engine's and the trainer's change, averaged over tokens, in nats: rounding,
 * plus twice their difference on the base alone (different precisions, which affect each model differently), plus a
 * share of the change itself. Serving the base without the adapter would differ by the whole change. Measurements:
 * docs/decisions/006-engine-and-trainer.md.
 */
const limit = (base_difference: number, change: number) => 0.05 + 2 * base_difference + 0.2 * change
/** Precision alone never explains a larger difference on the base, in nats. */
const largestBaseDifference = 2

/** `probe` has the trainer's scores; `tuned` and `origin` are the engine's scores of the same rows. */
export function compare(probe: Probe, tuned: Scores, origin: Scores): Comparison {
  let tokens = 0
  let change = 0
  let difference = 0
  let base_difference = 0
  let differentPrompts = 0
  let missingEnds = 0
  probe.rows.forEach((row, index) => {
    const after = tuned.rows[index]!
    const before = origin.rows[index]!
    if (after.prompt && !startsWith(row.tokens, after.prompt)) differentPrompts++
    if (row.whole && !after.ends) missingEnds++
    row.targets.forEach((_, position) => {
      const trainers = row.tuned[position]! - row.origin[position]!
      const engines = finiteOrWorst(after.logprobs[position]) - finiteOrWorst(before.logprobs[position])
      tokens++
      change += Math.abs(trainers)
      difference += Math.abs(engines - trainers)
      base_difference += Math.abs(finiteOrWorst(before.logprobs[position]) - row.origin[position]!)
    })
  })
  change /= Math.max(1, tokens)
  difference /= Math.max(1, tokens)
  base_difference /= Math.max(1, tokens)
  const problem =
    differentPrompts * 2 > probe.rows.length
      ? 'The engine makes other tokens of these conversations than the trainer did: its chat template or tokenizer ' +
        'is another one. Run the set-up of the base again, then train again.'
      : missingEnds > 0
        ? 'The engine does not know the token that ends an answer in training as an end, so answers would not stop. ' +
          'Run the set-up of the base again.'
        : !(base_difference <= largestBaseDifference)
          ? 'The engine and the trainer do not have the same base: its probabilities differ by ' +
            `${base_difference.toFixed(3)} on average before any training. Run the set-up of the base again, ` +
            'then train again.'
          : !(difference <= limit(base_difference, change))
            ? `The engine's probabilities do not follow the training: it changed them by ${change.toFixed(3)} on ` +
              `average, and the engine's differ from that by ${difference.toFixed(3)}. The files of this model do ` +
              "not hold what was trained. Train it again; if that does not help, the service's log and " +
              'docs/decisions/006-engine-and-trainer.md say more.'
            : null
  const { eight_bits = false } = tuned
  return {
    agrees: problem === null,
    problem,
    rows: probe.rows.length,
    tokens,
    change,
    difference,
    base_difference,
    eight_bits,
  }
}

/** Mean absolute difference between two scores of the same rows, in nats per token. */
export function meanDifference(one: Scores, other: Scores): number {
  const differences = one.rows.flatMap((row, index) =>
    row.logprobs.map((logprob, position) =>
      Math.abs(finiteOrWorst(logprob) - finiteOrWorst(other.rows[index]!.logprobs[position])),
    ),
  )
  return differences.reduce((sum, difference) => sum + difference, 0) / Math.max(1, differences.length)
}

/** JSON has no NaN or infinity, so they arrive as null: treat them as a probability of zero. */
const finiteOrWorst = (value: number | null | undefined) => (Number.isFinite(value) ? value! : -1e6)

/** Compares all prompt tokens but the last, which may merge with the start of the answer. */
function startsWith(tokens: number[], prompt: number[]): boolean {
  return prompt.slice(0, -1).every((token, position) => tokens[position] === token)
}
