// The choices of an upstream's answers, whole or in pieces: brought into the shape of this API, counted, and cut where
// an answer is longer than was asked for. Fields that the API does not have pass as they are.
import { type FinishReason, finishReasons } from '../../../../contract/sampling.ts'
import { type Allowance, bytesOf, bytesPerToken, tokensIn } from './usage.ts'

/** An object of an upstream's JSON, whose values are not known yet. */
export type Fields = Record<string, unknown>

/** The longest tokens of today's vocabularies are runs of spaces and dashes; an answer of such tokens alone is cut. */
const tokenBytesMax = 32

export const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The log-probabilities of a choice; null for what cannot be any. */
export const logprobsOf = (value: unknown): Fields | null => (isFields(value) ? value : null)

export const textOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null)

/** Unknown reasons of an end are the end of the text. */
export function finishReason(value: unknown): FinishReason | null {
  if (typeof value !== 'string') return null
  if (value === 'function_call') return 'tool_calls'
  return finishReasons.find((reason) => reason === value) ?? 'stop'
}

/** Counts the text of one choice, and says how much of it is within the length that was asked for. */
export interface ChoiceCounter {
  /** Adds a piece of the text, each of at least one token. Returns how many bytes of it fit; all of them mostly. */
  add(bytes: number, isToken?: boolean): number
  tokens(): number
  readonly isCut: boolean
}

export function createChoiceCounter({ choice_tokens_max: max, echoed_bytes }: Allowance): ChoiceCounter {
  let pieces = 0
  /** With what is echoed of the prompt. */
  let bytes = 0
  const ownBytes = () => Math.max(0, bytes - echoed_bytes)
  const counter = {
    isCut: false,
    add(more: number, isToken = true) {
      const room = max * bytesPerToken + echoed_bytes - bytes
      bytes += more
      if (isToken) pieces++
      if (!counter.isCut && leastTokens() <= max) return more
      // A piece of the usual size is left out as a whole.
      const fits = counter.isCut || more <= tokenBytesMax ? 0 : Math.max(0, Math.min(room, more))
      counter.isCut = true
      bytes -= more - fits
      if (isToken && fits === 0) pieces--
      return fits
    },
    tokens: () => Math.max(echoed_bytes > 0 ? 0 : pieces, tokensIn(ownBytes())),
  }
  /** Fewer tokens the text cannot have. Servers that send single characters are counted by their bytes. */
  function leastTokens(): number {
    const bySize = Math.ceil(ownBytes() / tokenBytesMax)
    if (echoed_bytes > 0) return bySize
    return Math.max(bySize, bytes >= 2 * pieces ? pieces : tokensIn(bytes))
  }
  return counter
}

/** The beginning of a text that has at most this many bytes, without half a character. */
export function firstBytes(text: string, max: number): string {
  const bytes = Buffer.from(text)
  if (bytes.length <= max) return text
  let end = max
  while (end > 0 && (bytes[end]! & 0xc0) === 0x80) end--
  return bytes.toString('utf8', 0, end)
}

/** Calls of tools in one answer. */
const callsMax = 128

/** The place of a call among those of a streamed choice; undefined for more of them than an answer may have. */
export type PlaceOfCall = (index: number) => number | undefined

/** Counts calls in the order in which they begin: readers keep them in lists, and servers count as they like. */
export function createCallPlaces(): PlaceOfCall {
  const places = new Map<number, number>()
  return (index) => {
    if (!places.has(index) && places.size < callsMax) places.set(index, places.size)
    return places.get(index)
  }
}

/** Calls of tools, with arguments as text. `placeOf`: they are pieces of calls, each with its index. */
export function toolCalls(value: unknown, placeOf?: PlaceOfCall): Fields[] {
  if (!Array.isArray(value)) return []
  const calls = value.filter(isFields)
  return (placeOf ? calls : calls.slice(0, callsMax)).flatMap(
    ({ index: sent, id, function: called, ...call }, position) => {
      const { name, arguments: args, ...rest } = isFields(called) ? called : {}
      const text = typeof args === 'string' ? args : args == null ? '' : JSON.stringify(args)
      const index = placeOf?.(Number.isSafeInteger(sent) ? (sent as number) : position)
      if (placeOf && index === undefined) return []
      return {
        ...call,
        ...(placeOf && { index }),
        ...(typeof id === 'string' ? { id } : !placeOf && { id: `call_${position}` }),
        ...(!placeOf || typeof name === 'string' ? { type: 'function' } : {}),
        function: { ...rest, ...(typeof name === 'string' ? { name } : !placeOf && { name: '' }), arguments: text },
      }
    },
  )
}

/** Texts of a message or a piece of one that are part of the answer's length. */
const textsOf = ({ content, reasoning_content, tool_calls }: Fields): unknown[] => [
  reasoning_content,
  content,
  ...((tool_calls ?? []) as { function: { name?: unknown; arguments: unknown } }[]).flatMap(({ function: call }) => [
    call.name,
    call.arguments,
  ]),
]

/** The message with the first bytes of its texts: thoughts, then the answer, then the calls. */
export function cutMessage(message: Fields, max: number): Fields {
  let left = max
  const take = (text: unknown) => {
    if (typeof text !== 'string') return text
    const taken = firstBytes(text, left)
    left -= Buffer.byteLength(taken)
    return taken
  }
  const { reasoning_content, content, tool_calls, ...rest } = message
  const calls = tool_calls as { function: Fields }[] | undefined
  return {
    ...rest,
    ...(reasoning_content !== undefined && { reasoning_content: take(reasoning_content) }),
    ...(content !== undefined && { content: take(content) }),
    ...(calls && {
      tool_calls: calls.flatMap((call) => {
        if (left <= 0) return []
        left -= bytesOf([call.function.name])
        return { ...call, function: { ...call.function, arguments: take(call.function.arguments) } }
      }),
    }),
  }
}

export const messageBytes = (message: Fields) => bytesOf(textsOf(message))
