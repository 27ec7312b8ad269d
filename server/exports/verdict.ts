// Whether an exported file says what the trainer says: the one judgement for all formats. docs/exports.md has the
// measurements behind the bounds.
import { z } from 'zod'
import type { ExportCheck } from '../../contract/exports.ts'

/** What the trainer, or the runtime of an exported file, says to fixed prompts. */
export const Answers = z.object({
  version: z.literal(1),
  runtime: z.string().optional(),
  rows: z
    .array(
      z.object({
        messages: z.array(z.object({ role: z.string(), content: z.string() })),
        /**
         * As its tokenizer and its chat template make them of the messages; null where the template writes the time.
         */
        prompt_tokens: z.array(z.int()).nullable(),
        /**
         * Chosen greedily, the token that ends the answer included where it was reached; -1 for one of which only the
         * text is known.
         */
        answer_tokens: z.array(z.int()),
        answer: z.string(),
        /** Natural logarithms of the probabilities of the trainer's answer, token by token. */
        log_probabilities: z.array(z.number().nullable()),
      }),
    )
    .min(1),
})
export type Answers = z.infer<typeof Answers>

/** How many tokens an answer has at most; one with fewer has come to its end. */
export const answerTokens = 64

export interface Bounds {
  /** Of the logarithms of the tokens' probabilities, on average, in nats. */
  log_probability_difference: number
  /**
   * Of the share of tokens that are the same before the answers part: a near tie may part them early where weights are
   * rounded, so few are asked for.
   */
  matching_tokens: number
}

const within = (log_probability_difference: number, matching_tokens = 0): Bounds => ({
  log_probability_difference,
  matching_tokens,
})

/** By the bits that a weight is kept in. What is not named is in sixteen or more. */
const bounds: [RegExp, Bounds][] = [
  [/^(F32|fp32)$/, within(0.02, 0.3)],
  [/^(Q8_0|int8)$/, within(0.15, 0.1)],
  [/^(Q6_K|Q5_\w+)$/, within(0.4)],
  [/^(Q4_\w+|IQ4_\w+|MXFP4_MOE|int4)$/, within(0.8)],
  [/^(I?Q[123]_\w+|TQ\w+)$/, within(1.2)],
]
export const boundsOf = (quantization: string | null): Bounds =>
  bounds.find(([names]) => names.test(quantization ?? ''))?.[1] ?? within(0.1, 0.3)

/**
 * The probability from which on a token is the likeliest whatever the others are, with some room for roundings between
 * one computation and another.
 */
const surely = Math.log(0.6)

const same = (one: readonly number[], other: readonly number[]) =>
  one.length === other.length && one.every((token, place) => token === other[place])

function sharedStart(one: readonly number[], other: readonly number[]): number {
  let length = 0
  while (length < one.length && one[length] !== -1 && one[length] === other[length]) length++
  return length
}

/** Compares what the exported file says with what the trainer says, row by row. */
export function judge(
  reference: Answers,
  exported: Answers,
  runtime: string,
  quantization: string | null,
): ExportCheck {
  const rows = reference.rows.map((row, index) => ({ row, said: exported.rows[index] }))
  const compared = rows.flatMap(({ row, said }) => (said ? [{ row, said }] : []))
  const tokens = rows.reduce((sum, { row }) => sum + row.answer_tokens.length, 0)
  const shared = compared.reduce((sum, { row, said }) => sum + sharedStart(row.answer_tokens, said.answer_tokens), 0)
  const differences = compared.flatMap(({ row, said }) =>
    row.log_probabilities.map((value, place) => Math.abs(number(value) - number(said.log_probabilities[place]))),
  )
  const figures = {
    prompts: rows.length,
    tokens,
    identical: compared.filter(({ row, said }) => same(row.answer_tokens, said.answer_tokens)).length / rows.length,
    matching_tokens: shared / Math.max(1, tokens),
    log_probability_difference: differences.reduce((sum, each) => sum + each, 0) / Math.max(1, differences.length),
  }
  const problem = problemOf(compared, rows.length, figures, boundsOf(quantization))
  return { agrees: problem === null, problem, runtime, ...rounded(figures) }
}

type Compared = { row: Answers['rows'][number]; said: Answers['rows'][number] }[]

function problemOf(
  compared: Compared,
  rows: number,
  figures: Omit<ExportCheck, 'agrees' | 'problem' | 'runtime'>,
  bounds: Bounds,
): string | null {
  if (compared.length < rows) return `The exported file answered ${compared.length} of ${rows} prompts.`
  const other = compared.filter(
    ({ row, said }) =>
      said.prompt_tokens !== null && row.prompt_tokens !== null && !same(row.prompt_tokens, said.prompt_tokens),
  )
  if (other.length > 0)
    return `The prompt of the exported file is other tokens than in training, for ${other.length} of ${rows} conversations: its chat template or its tokenizer is another one.`
  const { log_probability_difference: apart, matching_tokens } = figures
  if (!(apart <= bounds.log_probability_difference))
    return `The exported file's log-probabilities are ${apart.toFixed(3)} away from the trainer's on average over ${figures.tokens} tokens, more than the ${bounds.log_probability_difference} that its precision explains.`
  if (!(matching_tokens >= bounds.matching_tokens))
    return `The exported file's answers are not the trainer's: they share ${percent(matching_tokens)} of their tokens before they part, less than ${percent(bounds.matching_tokens)}.`
  const astray = compared.filter(goesAstray)
  if (
    astray.some(
      ({ row, said }) =>
        said.answer_tokens.length > row.answer_tokens.length && parting({ row, said }) >= row.answer_tokens.length - 1,
    )
  )
    return 'The exported file does not stop where the trainer does: it does not know the token that ends an answer.'
  if (astray.length > 0)
    return `The exported file does not write what it itself finds likeliest, in ${astray.length} of ${rows} answers: its runtime computes answers otherwise than whole texts.`
  return null
}

type One = Compared[number]

const parting = ({ row, said }: One) => sharedStart(row.answer_tokens, said.answer_tokens)

/**
 * Whether it wrote another token than the one that it gives more than half of all probability, or went on behind the
 * last.
 */
function goesAstray(one: One): boolean {
  const { row, said } = one
  const place = parting(one)
  if (place === row.answer_tokens.length) return said.answer_tokens.length > place
  return number(said.log_probabilities[place]) > surely
}

const percent = (share: number) => `${Math.round(100 * share)} %`
/** What a runtime computes that is no number: as far from right as can be. */
const number = (value: number | null | undefined) => (Number.isFinite(value) ? value! : -1e6)
const digits = (value: number) => Number(value.toPrecision(5))
const rounded = <T extends { identical: number; matching_tokens: number; log_probability_difference: number }>(
  figures: T,
): T => ({
  ...figures,
  identical: digits(figures.identical),
  matching_tokens: digits(figures.matching_tokens),
  log_probability_difference: digits(figures.log_probability_difference),
})
