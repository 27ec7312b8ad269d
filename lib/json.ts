// JSON whose whole numbers keep their digits.

/** A whole number that a JavaScript number cannot hold. `JSON.stringify` writes its digits. */
export interface ExactInteger {
  readonly rawJSON: string
}

interface SourceText {
  parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
  rawJSON(digits: string): ExactInteger
  isRawJSON(value: unknown): value is ExactInteger
}
const withSource = JSON as unknown as SourceText

/** A whole number of these digits. */
export const exactInteger = (digits: string) => withSource.rawJSON(digits)
export const isExactInteger = (value: unknown): value is ExactInteger => withSource.isRawJSON(value)

/** A field `seed` of 16 digits or more. Everything else is parsed as usual, which is several times faster. */
const largeSeed = /"seed"\s*:\s*-?[1-9][0-9]{15}/

/** Like `JSON.parse`, but a `seed` beyond 2^53 is an ExactInteger. */
export function parseJson(text: string): unknown {
  if (!largeSeed.test(text)) return JSON.parse(text)
  return withSource.parse(text, (key, value, { source }) =>
    key === 'seed' && typeof value === 'number' && !Number.isSafeInteger(value) && /^-?[0-9]+$/.test(source ?? '')
      ? withSource.rawJSON(source!)
      : value,
  )
}
