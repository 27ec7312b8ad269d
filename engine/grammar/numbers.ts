// Grammar rules for numbers within bounds, digit by digit.

import { digits } from './json-rules.ts'
import { any, chars, type Expr, empty, never, repeat, seq, text } from './rules.ts'

/** A bound on a number. `open`: excludes the bound itself. */
export interface Bound {
  value: number
  open: boolean
}

const integerDigitsMax = 19
// Decimals of up to 15 digits are distinct as floats; with more, 4.9999999999999999 would be 5.
const exactDigits = 15

const digitsBetween = (from: string, to: string): Expr => chars([from.charCodeAt(0), to.charCodeAt(0)])

/** Integers from `min` to `max`, inclusive. Null: unbounded, up to 19 digits. */
export function integersBetween(min: bigint | null, max: bigint | null): Expr {
  const parts: Expr[] = []
  if (max === null || max >= 0n) parts.push(naturals(min !== null && min > 0n ? min : 0n, max))
  if (min === null || min < 0n)
    parts.push(seq(text('-'), naturals(max !== null && max < 0n ? -max : 1n, min === null ? null : -min)))
  return any(...parts)
}

function naturals(from: bigint, to: bigint | null): Expr {
  const highest = 10n ** BigInt(integerDigitsMax) - 1n
  const last = to === null || to > highest ? highest : to
  if (from > last) return never
  const parts: Expr[] = []
  for (let length = String(from).length; length <= String(last).length; length++) {
    const firstOfLength = length === 1 ? 0n : 10n ** BigInt(length - 1)
    const lastOfLength = 10n ** BigInt(length) - 1n
    parts.push(
      integersOfLength(
        String(from > firstOfLength ? from : firstOfLength),
        String(last < lastOfLength ? last : lastOfLength),
      ),
    )
  }
  return any(...parts)
}

/** Integers from `low` to `high`, which have the same number of digits. */
function integersOfLength(low: string, high: string): Expr {
  if (low.length === 0) return empty
  const rest = low.length - 1
  if (low[0] === high[0]) return seq(digitsBetween(low[0]!, low[0]!), integersOfLength(low.slice(1), high.slice(1)))
  if (/^0*$/.test(low.slice(1)) && /^9*$/.test(high.slice(1)))
    return seq(digitsBetween(low[0]!, high[0]!), digits(rest, rest))
  const parts = [
    seq(digitsBetween(low[0]!, low[0]!), integersOfLength(low.slice(1), '9'.repeat(rest))),
    seq(digitsBetween(high[0]!, high[0]!), integersOfLength('0'.repeat(rest), high.slice(1))),
  ]
  const [above, below] = [stepDigit(low[0]!, 1), stepDigit(high[0]!, -1)]
  if (above <= below) parts.push(seq(digitsBetween(above, below), digits(rest, rest)))
  return any(...parts)
}

const stepDigit = (digit: string, by: number): string => String.fromCharCode(digit.charCodeAt(0) + by)

/** Numbers within the bounds, without an exponent. */
export function numbersBetween(min: Bound | null, max: Bound | null): Expr {
  const parts: Expr[] = []
  const negated = (bound: Bound | null): Bound | null => bound && { value: -bound.value, open: bound.open }
  const positive = (bound: Bound | null): Bound => (bound && bound.value >= 0 ? bound : { value: 0, open: false })
  if (!max || max.value >= 0) parts.push(decimals(positive(min), max))
  if (!min || min.value < 0) parts.push(seq(text('-'), decimals(positive(negated(max)), negated(min))))
  return any(...parts)
}

/** Numbers of 0 or more within the bounds. */
function decimals(low: Bound, high: Bound | null): Expr {
  if (high && (high.value < low.value || (high.value === low.value && (high.open || low.open)))) return never
  const [lowInteger, lowFraction] = splitDecimal(low.value)
  const [highInteger, highFraction] = high ? splitDecimal(high.value) : [null, '']
  const digitsMax = Math.max(0, exactDigits - String(highInteger ?? lowInteger).length)
  const withFraction = (integer: bigint, fractions: Expr): Expr => seq(text(String(integer)), fractions)
  if (lowInteger === highInteger)
    return withFraction(lowInteger, fractions(low, lowFraction, high, highFraction, digitsMax))
  const parts = [withFraction(lowInteger, fractions(low, lowFraction, null, '', digitsMax))]
  if (highInteger === null || lowInteger + 1n <= highInteger - 1n)
    parts.push(
      seq(
        naturals(lowInteger + 1n, highInteger === null ? null : highInteger - 1n),
        fractions(null, '', null, '', digitsMax),
      ),
    )
  if (highInteger !== null) parts.push(withFraction(highInteger, fractions(null, '', high, highFraction, digitsMax)))
  return any(...parts)
}

/** Fraction after the integer part: empty, or a point and digits, within the fraction digits of the bounds. */
function fractions(
  low: Bound | null,
  lowDigits: string,
  high: Bound | null,
  highDigits: string,
  digitsMax: number,
): Expr {
  const zeroFits = lowDigits === '' && !low?.open && !(high?.open && highDigits === '')
  const some = seq(
    text('.'),
    fractionDigits(
      low && { digits: lowDigits, open: low.open },
      high && { digits: highDigits, open: high.open },
      digitsMax,
      true,
    ),
  )
  return zeroFits ? any(empty, some) : some
}

interface Digits {
  digits: string
  open: boolean
}

/** Up to `digitsMax` digits between the remaining digits of the bounds (null: no longer restricting). */
function fractionDigits(lower: Digits | null, high: Digits | null, digitsMax: number, first: boolean): Expr {
  // A lower bound without digits left is satisfied by any digits.
  const low = lower?.digits === '' && !lower.open ? null : lower
  if (!low && !high) return first && digitsMax === 0 ? never : digits(first ? 1 : 0, digitsMax)
  const parts: Expr[] = []
  const endFits = !(low && (low.digits !== '' || low.open)) && !(high && high.digits === '' && high.open)
  if (!first && endFits) parts.push(empty)
  if (digitsMax > 0) {
    const from = low?.digits[0] ?? '0'
    const to = high ? (high.digits[0] ?? '0') : '9'
    const after = (bound: Digits | null, touched: boolean): Digits | null =>
      bound && touched ? { digits: bound.digits.slice(1), open: bound.open } : null
    const ends = new Set([from, to].filter((digit) => (low && digit === from) || (high && digit === to)))
    for (const digit of ends)
      if (digit >= from && digit <= to)
        parts.push(
          seq(text(digit), fractionDigits(after(low, digit === from), after(high, digit === to), digitsMax - 1, false)),
        )
    const inner: [string, string] = [low ? stepDigit(from, 1) : from, high ? stepDigit(to, -1) : to]
    if (inner[0] <= inner[1]) parts.push(seq(digitsBetween(...inner), repeat(chars([0x30, 0x39]), 0, digitsMax - 1)))
  }
  return parts.length === 0 ? never : any(...parts)
}

/** Splits a number into its integer part and its fraction digits, without trailing zeros. */
function splitDecimal(value: number): [bigint, string] {
  const [, mantissa, exponent] = /^([\d.]+)(?:e([+-]\d+))?$/.exec(String(value))!
  const [integer, behind = ''] = mantissa!.split('.')
  const shift = Number(exponent ?? 0)
  if (shift >= 0) {
    const shifted = behind.padEnd(shift, '0')
    return [BigInt(integer! + shifted.slice(0, shift)), shifted.slice(shift)]
  }
  return [0n, '0'.repeat(-shift - 1) + integer + behind]
}
