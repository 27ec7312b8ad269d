// Numbers between bounds, digit by digit.

import { digits } from './json-rules.ts'
import { any, chars, type Expr, never, nothing, repeat, seq, text } from './rules.ts'

/** A bound on a number; `open`: the bound itself is left out. */
export type Bound = { value: number; open: boolean }

const integerDigitsMax = 19
// Texts of up to 15 digits are different numbers also where they are read back; of more, 4.9999999999999999 would be 5.
const exactDigits = 15

const digitsBetween = (from: string, to: string): Expr => chars([from.charCodeAt(0), to.charCodeAt(0)])

/** Integers from `min` to `max`, both within; null: as far as 19 digits reach. */
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
    const first = length === 1 ? 0n : 10n ** BigInt(length - 1)
    const top = 10n ** BigInt(length) - 1n
    parts.push(sameLength(String(from > first ? from : first), String(last < top ? last : top)))
  }
  return any(...parts)
}

/** Digits from `low` to `high`, which are of one length. */
function sameLength(low: string, high: string): Expr {
  if (low.length === 0) return nothing
  const rest = low.length - 1
  if (low[0] === high[0]) return seq(digitsBetween(low[0]!, low[0]!), sameLength(low.slice(1), high.slice(1)))
  if (/^0*$/.test(low.slice(1)) && /^9*$/.test(high.slice(1)))
    return seq(digitsBetween(low[0]!, high[0]!), digits(rest, rest))
  const parts = [
    seq(digitsBetween(low[0]!, low[0]!), sameLength(low.slice(1), '9'.repeat(rest))),
    seq(digitsBetween(high[0]!, high[0]!), sameLength('0'.repeat(rest), high.slice(1))),
  ]
  const [above, below] = [next(low[0]!, 1), next(high[0]!, -1)]
  if (above <= below) parts.push(seq(digitsBetween(above, below), digits(rest, rest)))
  return any(...parts)
}

const next = (digit: string, by: number): string => String.fromCharCode(digit.charCodeAt(0) + by)

/** Numbers between the bounds, written without an exponent. */
export function numbersBetween(min: Bound | null, max: Bound | null): Expr {
  const parts: Expr[] = []
  const negated = (bound: Bound | null): Bound | null => bound && { value: -bound.value, open: bound.open }
  const positive = (bound: Bound | null): Bound => (bound && bound.value >= 0 ? bound : { value: 0, open: false })
  if (!max || max.value >= 0) parts.push(decimals(positive(min), max))
  if (!min || min.value < 0) parts.push(seq(text('-'), decimals(positive(negated(max)), negated(min))))
  return any(...parts)
}

/** Numbers of zero and more between the bounds. */
function decimals(low: Bound, high: Bound | null): Expr {
  if (high && (high.value < low.value || (high.value === low.value && (high.open || low.open)))) return never
  const [lowInteger, lowFraction] = written(low.value)
  const [highInteger, highFraction] = high ? written(high.value) : [null, '']
  const room = Math.max(0, exactDigits - String(highInteger ?? lowInteger).length)
  const at = (integer: bigint, fractions: Expr): Expr => seq(text(String(integer)), fractions)
  if (lowInteger === highInteger) return at(lowInteger, fractions(low, lowFraction, high, highFraction, room))
  const parts = [at(lowInteger, fractions(low, lowFraction, null, '', room))]
  if (highInteger === null || lowInteger + 1n <= highInteger - 1n)
    parts.push(
      seq(
        naturals(lowInteger + 1n, highInteger === null ? null : highInteger - 1n),
        fractions(null, '', null, '', room),
      ),
    )
  if (highInteger !== null) parts.push(at(highInteger, fractions(null, '', high, highFraction, room)))
  return any(...parts)
}

/** What may follow the integer part: nothing or a point and digits, between the bounds' digits behind the point. */
function fractions(low: Bound | null, lowDigits: string, high: Bound | null, highDigits: string, room: number): Expr {
  const zeroFits = lowDigits === '' && !low?.open && !(high?.open && highDigits === '')
  const some = seq(
    text('.'),
    fractionDigits(
      low && { digits: lowDigits, open: low.open },
      high && { digits: highDigits, open: high.open },
      room,
      true,
    ),
  )
  return zeroFits ? any(nothing, some) : some
}

type Digits = { digits: string; open: boolean }

/** Up to `room` digits whose value lies between those of the bounds that are still touched (null: passed already). */
function fractionDigits(lower: Digits | null, high: Digits | null, room: number, first: boolean): Expr {
  // A lower bound without digits left is passed by whatever follows.
  const low = lower?.digits === '' && !lower.open ? null : lower
  if (!low && !high) return first && room === 0 ? never : digits(first ? 1 : 0, room)
  const parts: Expr[] = []
  const endFits = !(low && (low.digits !== '' || low.open)) && !(high && high.digits === '' && high.open)
  if (!first && endFits) parts.push(nothing)
  if (room > 0) {
    const from = low?.digits[0] ?? '0'
    const to = high ? (high.digits[0] ?? '0') : '9'
    const after = (bound: Digits | null, touched: boolean): Digits | null =>
      bound && touched ? { digits: bound.digits.slice(1), open: bound.open } : null
    const ends = new Set([from, to].filter((digit) => (low && digit === from) || (high && digit === to)))
    for (const digit of ends)
      if (digit >= from && digit <= to)
        parts.push(
          seq(text(digit), fractionDigits(after(low, digit === from), after(high, digit === to), room - 1, false)),
        )
    const inner: [string, string] = [low ? next(from, 1) : from, high ? next(to, -1) : to]
    if (inner[0] <= inner[1]) parts.push(seq(digitsBetween(...inner), repeat(chars([0x30, 0x39]), 0, room - 1)))
  }
  return parts.length === 0 ? never : any(...parts)
}

/** The integer part, and the digits behind the point without zeros at their end. */
function written(value: number): [bigint, string] {
  const [, mantissa, exponent] = /^([\d.]+)(?:e([+-]\d+))?$/.exec(String(value))!
  const [integer, behind = ''] = mantissa!.split('.')
  const shift = Number(exponent ?? 0)
  if (shift >= 0) {
    const moved = behind.padEnd(shift, '0')
    return [BigInt(integer! + moved.slice(0, shift)), moved.slice(shift)]
  }
  return [0n, '0'.repeat(-shift - 1) + integer + behind]
}
