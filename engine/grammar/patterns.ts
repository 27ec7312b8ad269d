// Translates JavaScript regular expressions to grammar rules for the content of a JSON string.
import { plainRanges } from './json-rules.ts'
import {
  any,
  chars,
  type Expr,
  intersectRanges,
  invertRanges,
  lastCodePoint,
  type Range,
  repeat,
  rule,
  seq,
  text,
} from './rules.ts'

/** Grammar of a string's content between its quotes, with its length in characters (null: unbounded). */
export interface Pattern {
  expr: Expr
  min_length: number
  max_length: number | null
}

type Part =
  | { kind: 'set'; ranges: readonly Range[] }
  | { kind: 'seq'; parts: Part[] }
  | { kind: 'any'; parts: Part[] }
  | { kind: 'repeat'; part: Part; min: number; max: number | null }
  | { kind: 'start' }
  | { kind: 'end' }

const nestingMax = 40
const digitRanges: Range[] = [[0x30, 0x39]]
const wordRanges: Range[] = [...digitRanges, [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]]
const spaceRanges: Range[] = [
  [0x09, 0x0d],
  [0x20, 0x20],
  [0xa0, 0xa0],
  [0x1680, 0x1680],
  [0x2000, 0x200a],
  [0x2028, 0x2029],
  [0x202f, 0x202f],
  [0x205f, 0x205f],
  [0x3000, 0x3000],
  [0xfeff, 0xfeff],
]
const lineEnds: Range[] = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
]
const classes: Record<string, readonly Range[]> = {
  d: digitRanges,
  D: invertRanges(digitRanges),
  w: wordRanges,
  W: invertRanges(wordRanges),
  s: spaceRanges,
  S: invertRanges(spaceRanges),
}
const controlEscapes: Record<string, number> = { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 }

/** Parses a pattern. Throws an Error that names the unsupported part. */
export function readPattern(source: string): Pattern {
  assertRegExp(source)
  const branches = parse(source).map((branch) => {
    const parts = branch.kind === 'seq' ? [...branch.parts] : [branch]
    const anchored = { start: parts[0]?.kind === 'start', end: parts.at(-1)?.kind === 'end' && parts.length > 0 }
    if (anchored.start) parts.shift()
    if (anchored.end) parts.pop()
    const inner: Part = { kind: 'seq', parts }
    const [min, max] = lengthOf(inner)
    // Without an anchor the pattern may match anywhere in the string.
    const anyCharacters = rule('any_chars')
    const exprs = [
      ...(anchored.start ? [] : [anyCharacters]),
      ...parts.map(toExpr),
      ...(anchored.end ? [] : [anyCharacters]),
    ]
    return { expr: seq(...exprs), min_length: min, max_length: anchored.start && anchored.end ? max : null }
  })
  return {
    expr: any(...branches.map(({ expr }) => expr)),
    min_length: Math.min(...branches.map(({ min_length }) => min_length)),
    max_length: branches.some(({ max_length }) => max_length === null)
      ? null
      : Math.max(...branches.map(({ max_length }) => max_length!)),
  }
}

function assertRegExp(source: string): void {
  try {
    new RegExp(source, 'u')
  } catch {
    try {
      new RegExp(source)
    } catch {
      throw new Error('it is no regular expression.')
    }
  }
}

/** Parses a pattern into its top-level alternatives. */
function parse(source: string): Part[] {
  const input = [...source]
  let at = 0

  const alternatives = (depth: number): Part[] => {
    if (depth > nestingMax) throw new Error('its groups are nested too deeply.')
    const branches: Part[][] = [[]]
    while (at < input.length && input[at] !== ')') {
      if (input[at] === '|') {
        at++
        branches.push([])
      } else branches.at(-1)!.push(repeated(atom(depth)))
    }
    return branches.map((parts) => ({ kind: 'seq', parts }))
  }

  const atom = (depth: number): Part => {
    const char = input[at++]!
    if (char === '^') return { kind: 'start' }
    if (char === '$') return { kind: 'end' }
    if (char === '.') return { kind: 'set', ranges: invertRanges(lineEnds) }
    if (char === '[') return { kind: 'set', ranges: characterClass() }
    if (char === '\\') return { kind: 'set', ranges: readEscape(false) }
    if (char !== '(') return { kind: 'set', ranges: [codeRange(char)] }
    const opening = /^\?(:|<[A-Za-z_$][\w$]*>)/.exec(input.slice(at, at + 80).join(''))
    if (opening) at += opening[0].length
    else if (input[at] === '?')
      throw new Error(
        'lookahead and lookbehind ((?=, (?!, (?<=, (?<!) are not supported; write what may come there instead.',
      )
    const parts = alternatives(depth + 1)
    at++
    return parts.length === 1 ? parts[0]! : { kind: 'any', parts }
  }

  const repeated = (part: Part): Part => {
    const quantifier = /^(?:([*+?])|\{(\d+)(?:(,)(\d*))?\})\??/.exec(input.slice(at, at + 30).join(''))
    if (!quantifier) return part
    if (part.kind === 'start' || part.kind === 'end') throw new Error('an anchor can not be repeated.')
    at += quantifier[0].length
    const [, sign, low, comma, high] = quantifier
    if (sign) return { kind: 'repeat', part, min: sign === '+' ? 1 : 0, max: sign === '?' ? 1 : null }
    return { kind: 'repeat', part, min: Number(low), max: comma ? (high ? Number(high) : null) : Number(low) }
  }

  const characterClass = (): readonly Range[] => {
    const negated = input[at] === '^'
    if (negated) at++
    const ranges: Range[] = []
    while (input[at] !== ']') {
      const from = classMember()
      if (input[at] === '-' && input[at + 1] !== ']' && from.length === 1 && from[0]![0] === from[0]![1]) {
        at++
        const to = classMember()
        if (to.length === 1 && to[0]![0] === to[0]![1]) ranges.push([from[0]![0], to[0]![0]])
        else ranges.push(...from, codeRange('-'), ...to)
      } else ranges.push(...from)
    }
    at++
    return negated ? invertRanges(ranges) : ranges
  }

  const classMember = (): readonly Range[] => {
    const char = input[at++]!
    return char === '\\' ? readEscape(true) : [codeRange(char)]
  }

  const readEscape = (inClass: boolean): readonly Range[] => {
    const char = input[at++]!
    if (Object.hasOwn(classes, char)) return classes[char]!
    if (inClass && char === 'b') return [[8, 8]]
    const hex = /^(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|u\{([\da-fA-F]+)\})/.exec(
      char + input.slice(at, at + 10).join(''),
    )
    if (hex) {
      at += hex[0].length - 1
      const code = Number.parseInt(hex[1] ?? hex[2] ?? hex[3]!, 16)
      return [[code, code]]
    }
    if (Object.hasOwn(controlEscapes, char) && !/\d/.test(input[at] ?? ''))
      return [[controlEscapes[char]!, controlEscapes[char]!]]
    if (/[A-Za-z0-9]/.test(char)) throw new Error(`\\${char} is not supported.`)
    return [codeRange(char)]
  }

  return alternatives(0)
}

function codeRange(char: string): Range {
  return [char.codePointAt(0)!, char.codePointAt(0)!]
}

function toExpr(part: Part): Expr {
  if (part.kind === 'seq') return seq(...part.parts.map(toExpr))
  if (part.kind === 'any') return any(...part.parts.map(toExpr))
  if (part.kind === 'repeat') return repeat(toExpr(part.part), part.min, part.max)
  if (part.kind !== 'set')
    throw new Error(
      '^ and $ are allowed only at the start and the end of the pattern, or of its outermost alternatives.',
    )
  const plain = intersectRanges(part.ranges, plainRanges)
  if (plain.length > 0) {
    const usable = usableRanges(plain)
    if (usable.length === 0)
      throw new Error('a class of characters beyond ASCII only is possible where it lists up to 64 of them.')
    return any(...usable)
  }
  // Characters that JSON must escape are used only if the class has no others, one escape each.
  const codes = part.ranges.flatMap(([from, to]) =>
    Array.from({ length: Math.max(0, Math.min(to, lastCodePoint, from + 64) - from + 1) }, (_, index) => from + index),
  )
  if (codes.length === 0) throw new Error('a character class is empty.')
  return any(...codes.map((code) => text(JSON.stringify(String.fromCodePoint(code)).slice(1, -1))))
}

const beyondAscii: Range[] = [
  [0x80, 0xd7ff],
  [0xe000, lastCodePoint],
]
const listedMax = 64

/**
 * The part of a character class that XGrammar reads correctly: ASCII, all characters beyond ASCII, or single
 * characters. It misreads ranges beyond ASCII, so a class with more than `listedMax` such characters keeps only its
 * ASCII part. A dot also matches U+2028 and U+2029, as in most regex dialects.
 */
function usableRanges(ranges: readonly Range[]): Expr[] {
  const ascii = intersectRanges(ranges, [[0, 0x7f]])
  const others = intersectRanges(ranges, beyondAscii)
  const missing = intersectRanges(intersectRanges(invertRanges(ranges), beyondAscii), invertRanges([[0x2028, 0x2029]]))
  if (missing.length === 0) return [chars(...ascii, [0x80, lastCodePoint])]
  const count = others.reduce((sum, [from, to]) => sum + to - from + 1, 0)
  const singles =
    count > listedMax
      ? []
      : others.flatMap(([from, to]) =>
          Array.from({ length: to - from + 1 }, (_, index) => text(String.fromCodePoint(from + index))),
        )
  return [...(ascii.length > 0 ? [chars(...ascii)] : []), ...singles]
}

function lengthOf(part: Part): [min: number, max: number | null] {
  if (part.kind === 'set') return [1, 1]
  if (part.kind === 'start' || part.kind === 'end') return [0, 0]
  if (part.kind === 'repeat') {
    const [min, max] = lengthOf(part.part)
    return [min * part.min, max === 0 || part.max === 0 ? 0 : max === null || part.max === null ? null : max * part.max]
  }
  const lengths = part.parts.map(lengthOf)
  if (part.kind === 'any')
    return [
      Math.min(...lengths.map(([min]) => min)),
      lengths.some(([, max]) => max === null) ? null : Math.max(...lengths.map(([, max]) => max!)),
    ]
  return lengths.reduce<[number, number | null]>(
    ([min, max], [low, high]) => [min + low, max === null || high === null ? null : max + high],
    [0, 0],
  )
}

// Supported string formats as patterns. Each allows a subset of its standard, never more.
const label = '[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?'
const date =
  '(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))' +
  '|(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)'
const time = '([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)'
const count = '\\d{1,6}'
const days = `(${count}Y(${count}M)?(${count}D)?|${count}M(${count}D)?|${count}D)`
const hours = `T(${count}H(${count}M)?(${count}S)?|${count}M(${count}S)?|${count}S)`
const byte = '(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)'
const hex = '[0-9a-fA-F]{1,4}'
const path = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

const sources: Record<string, string> = {
  date: `^${date}$`,
  time: `^${time}$`,
  'date-time': `^${date}T${time}$`,
  duration: `^P(${days}(${hours})?|${hours}|${count}W)$`,
  email: '^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+(-[A-Za-z0-9]+)*\\.)+[A-Za-z]{2,10}$',
  hostname: `^${label}(\\.${label}){0,3}$`,
  ipv4: `^(${byte}\\.){3}${byte}$`,
  ipv6:
    `^((${hex}:){7}${hex}|(${hex}:){1,7}:|(${hex}:){1,6}:${hex}|(${hex}:){1,5}(:${hex}){1,2}` +
    `|(${hex}:){1,4}(:${hex}){1,3}` +
    `|(${hex}:){1,3}(:${hex}){1,4}|(${hex}:){1,2}(:${hex}){1,5}|${hex}:(:${hex}){1,6}|:((:${hex}){1,7}|:))$`,
  uuid: '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$',
  uri:
    '^[a-z][a-z0-9+.-]*://[A-Za-z0-9]+([.-][A-Za-z0-9]+)*(:[1-9]\\d{0,3})?' +
    `(/${path}*)*(\\?(${path}|[/?])*)?(#(${path}|[/?])*)?$`,
}

/** Names of the supported formats. */
export const knownFormats = Object.keys(sources)

/** The pattern of a format, or null if it is not supported. */
export function formatPattern(format: string): string | null {
  return Object.hasOwn(sources, format) ? sources[format]! : null
}
