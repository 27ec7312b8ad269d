// Decides whether an exported file answers like the trainer, for all formats. docs/guides/export.md has the
// measurements behind the bounds.
import { z } from 'zod'
import { ContentPart } from '../../../contract/chat.ts'
import type { ExportCheck } from '../../../contract/exports.ts'

/** The answers of the trainer, or of an exported file's runtime, to fixed prompts. */
export const Answers = z.object({
  version: z.literal(2),
  runtime: z.string().optional(),
  rows: z
    .array(
      z.object({
        /** Contents with pictures are parts, as in chats. */
        messages: z.array(z.object({ role: z.string(), content: z.union([z.string(), z.array(ContentPart)]) })),
        /**
         * The messages after chat template and tokenizer, -1 for each vector of a picture; null if the template writes
         * the current time.
         */
        prompt_tokens: z.array(z.int()).nullable(),
        /** Greedy tokens, with the end-of-answer token if it was reached; -1 if only the text of a token is known. */
        answer_tokens: z.array(z.int()),
        /** How far the logit of each token is above the second highest; only of the trainer's answer. */
        margins: z.array(z.number()).optional(),
        answer: z.string(),
        /** Log-probabilities (natural) of the tokens of the trainer's answer. */
        log_probabilities: z.array(z.number().nullable()),
      }),
    )
    .min(1),
})
export type Answers = z.infer<typeof Answers>

/** The most tokens of an answer; a shorter answer has reached its end. */
export const answerTokens = 64

interface Bounds {
  /** The most mean absolute log-probability difference, in nats. */
  log_probability_difference: number
  /** The least share of tokens before the answers diverge. Low, because rounded weights may make them diverge early. */
  matching_tokens: number
}

const within = (log_probability_difference: number, matching_tokens = 0): Bounds => ({
  log_probability_difference,
  matching_tokens,
})

/** Bounds by bits per weight. Types that are not listed have 16 bits or more. */
const bounds: [RegExp, Bounds][] = [
  [/^(F32|fp32)$/, within(0.02, 0.3)],
  [/^(Q8_0|int8)$/, within(0.15, 0.1)],
  [/^(Q6_K|Q5_\w+)$/, within(0.4)],
  [/^(Q4_\w+|IQ4_\w+|MXFP4_MOE|int4)$/, within(0.8)],
  [/^(I?Q[123]_\w+|TQ\w+)$/, within(1.2)],
]
const boundsOf = (quantization: string | null): Bounds =>
  bounds.find(([names]) => names.test(quantization ?? ''))?.[1] ?? within(0.1, 0.3)

/** Above a probability of 0.5 a token is the likeliest for certain; 0.6 allows for rounding differences. */
const certainLogprob = Math.log(0.6)

const same = (one: readonly number[], other: readonly number[]) =>
  one.length === other.length && one.every((token, position) => token === other[position])

function commonPrefixLength(one: readonly number[], other: readonly number[]): number {
  let length = 0
  while (length < one.length && one[length] !== -1 && one[length] === other[length]) length++
  return length
}

/** Compares the answers of the exported file with the trainer's, row by row. */
export function compareAnswers(
  reference: Answers,
  exported: Answers,
  runtime: string,
  quantization: string | null,
): ExportCheck {
  const rows = reference.rows.map((expected, index) => ({ expected, actual: exported.rows[index] }))
  const compared = rows.flatMap(({ expected, actual }) => (actual ? [{ expected, actual }] : []))
  const tokens = rows.reduce((sum, { expected }) => sum + expected.answer_tokens.length, 0)
  const differences = compared.flatMap(({ expected, actual }) =>
    expected.log_probabilities.map((value, position) =>
      Math.abs(finite(value) - finite(actual.log_probabilities[position])),
    ),
  )
  const bounds = boundsOf(quantization)
  const shared = compared.reduce((sum, one) => sum + divergence(one), 0)
  // Both logits of a tie may be off, in opposite directions. What is larger than the bound is no rounding.
  const tie = 2 * Math.min(Math.max(0, ...differences), bounds.log_probability_difference)
  const afterTies = compared.reduce((sum, one) => sum + tokensAfterTie(one, tie), 0)
  const figures = {
    prompts: rows.length,
    tokens,
    identical:
      compared.filter(({ expected, actual }) => same(expected.answer_tokens, actual.answer_tokens)).length /
      rows.length,
    matching_tokens: tokens > afterTies ? shared / (tokens - afterTies) : 1,
    log_probability_difference:
      differences.reduce((sum, difference) => sum + difference, 0) / Math.max(1, differences.length),
  }
  const problem = problemOf(compared, rows.length, figures, bounds)
  return { agrees: problem === null, problem, runtime, ...rounded(figures) }
}

type ComparedRows = { expected: Answers['rows'][number]; actual: Answers['rows'][number] }[]

function problemOf(
  compared: ComparedRows,
  rows: number,
  figures: Omit<ExportCheck, 'agrees' | 'problem' | 'runtime'>,
  bounds: Bounds,
): string | null {
  if (compared.length < rows) return `The exported file answered ${compared.length} of ${rows} prompts.`
  const promptMismatches = compared.filter(
    ({ expected, actual }) =>
      actual.prompt_tokens !== null &&
      expected.prompt_tokens !== null &&
      !same(expected.prompt_tokens, actual.prompt_tokens),
  )
  if (promptMismatches.length > 0)
    return (
      `The prompt of the exported file has other tokens than in training, for ${promptMismatches.length} of ${rows} ` +
      'conversations: its chat template or its tokenizer differs.'
    )
  const { log_probability_difference: apart, matching_tokens } = figures
  if (!(apart <= bounds.log_probability_difference))
    return (
      `The exported file's log-probabilities are ${apart.toFixed(3)} away from the trainer's on average ` +
      `over ${figures.tokens} tokens, more than the ${bounds.log_probability_difference} that its ` +
      'precision explains.'
    )
  if (!(matching_tokens >= bounds.matching_tokens))
    return (
      `The exported file's answers are not the trainer's: they share ${percent(matching_tokens)} of their ` +
      `tokens before they diverge, less than ${percent(bounds.matching_tokens)}.`
    )
  const contradictory = compared.filter(contradictsItself)
  if (
    contradictory.some(
      ({ expected, actual }) =>
        actual.answer_tokens.length > expected.answer_tokens.length &&
        divergence({ expected, actual }) >= expected.answer_tokens.length - 1,
    )
  )
    return 'The exported file does not stop where the trainer does: it does not know the token that ends an answer.'
  if (contradictory.length > 0)
    return (
      `The exported file does not write what it itself finds likeliest, in ${contradictory.length} of ` +
      `${rows} answers: its runtime generates answers differently than it scores texts.`
    )
  return null
}

type ComparedRow = ComparedRows[number]

const divergence = ({ expected, actual }: ComparedRow) =>
  commonPrefixLength(expected.answer_tokens, actual.answer_tokens)

/** How many of the trainer's tokens follow a tie that the exported file decided otherwise, and the tie itself. */
function tokensAfterTie(one: ComparedRow, tie: number): number {
  const { margins, answer_tokens } = one.expected
  const position = divergence(one)
  return margins && margins[position]! <= tie ? answer_tokens.length - position : 0
}

/**
 * True if the exported file wrote another token although it gives the reference token more than half of the
 * probability, or continued after the last token.
 */
function contradictsItself(one: ComparedRow): boolean {
  const { expected, actual } = one
  const position = divergence(one)
  if (position === expected.answer_tokens.length) return actual.answer_tokens.length > position
  return finite(actual.log_probabilities[position]) > certainLogprob
}

const percent = (share: number) => `${Math.round(100 * share)} %`
/** Maps NaN, infinities and missing values to a log-probability that fails every bound. */
const finite = (value: number | null | undefined) => (Number.isFinite(value) ? value! : -1e6)
const digits = (value: number) => Number(value.toPrecision(5))
const rounded = <T extends { identical: number; matching_tokens: number; log_probability_difference: number }>(
  figures: T,
): T => ({
  ...figures,
  identical: digits(figures.identical),
  matching_tokens: digits(figures.matching_tokens),
  log_probability_difference: digits(figures.log_probability_difference),
})
