// Prevents control-token injection: marks control tokens spelled in the caller's texts, so that only those of the
// template become tokens.
import { ApiError } from '../../contract/errors.ts'
import type { SpecialToken, Vocab } from '../llama/vocab.ts'
import type { SpecialTokenFinder } from '../tokenizer/special-tokens.ts'
import { findersOf, type PromptText } from '../tokenizer/tokenizer.ts'
import { ExactNumber } from './python-text.ts'

/** Variables of a template. */
export type Variables = Record<string, unknown>
interface RenderOptions {
  /** Markers of answers (<think>, <tool_call>), which stay control tokens in assistant messages. */
  answer_texts: readonly string[]
  /** Turn every spelled control token into a token, no matter who wrote it. */
  parse_control_tokens: boolean
}

// Unicode noncharacters, which regular text does not contain.
const markerCandidates = Array.from({ length: 32 }, (_, index) => String.fromCharCode(0xfdd0 + index))

interface ControlTexts {
  longest: number
  /** Matches the first character of any control text. */
  firstCharacters: RegExp
  /** Every proper suffix of a control text. */
  suffixes: ReadonlySet<string>
  joined: string
}

/**
 * Renders a conversation so that no control token comes from the caller's texts, neither whole nor from parts that the
 * template joins. Without its markers, the result equals the plain rendering. Throws ApiError invalid_request if the
 * template rewrites such texts, so that the two differ.
 */
export function renderUserText(
  vocab: Vocab,
  render: (variables: Variables) => string,
  variables: Variables,
  options: RenderOptions,
): PromptText {
  const plain = render(variables)
  if (options.parse_control_tokens) return { text: plain, controls: 'all' }
  const controls = controlTextsOf(vocab)
  if (!someText(variables, (text) => mayFormControl(text, controls))) return { text: plain, controls: 'all' }
  const marker = markerCandidates.find(
    (markerCandidate) =>
      !plain.includes(markerCandidate) && !someText(variables, (text) => text.includes(markerCandidate)),
  )
  if (marker === undefined)
    throw messagesError('The messages have every noncharacter of Unicode (U+FDD0 to U+FDEF) in them. Remove one.')

  const fullyMarked = render(
    mapTexts(variables, (text, exempt) => markFirstCharacters(text, controls, marker, exempt), options.answer_texts),
  )
  if (fullyMarked.replaceAll(marker, '') === plain) return { text: fullyMarked, controls: { escape_marker: marker } }
  // The template searches its input for such texts, often </think>. Mark only whole control tokens instead.
  const { control } = findersOf(vocab)
  const sparselyMarked = render(
    mapTexts(variables, (text, exempt) => markWhole(text, control, marker, exempt), options.answer_texts),
  )
  if (
    sparselyMarked.replaceAll(marker, '') === plain &&
    sameControls([...control.partition(fullyMarked)], [...control.partition(sparselyMarked)])
  )
    return { text: sparselyMarked, controls: { escape_marker: marker } }
  throw messagesError(
    'The model’s chat template rewrites parts of these messages that spell control tokens of the model, ' +
      'such as <|im_end|>, so they cannot be kept apart from its own. Remove them from the messages, ' +
      'or let the operator set TUNERY_PARSE_CONTROL_TOKENS=true.',
  )
}

const messagesError = (message: string) => new ApiError('invalid_request', message, { param: 'messages' })

const cache = new WeakMap<Vocab, ControlTexts>()
function controlTextsOf(vocab: Vocab): ControlTexts {
  const cached = cache.get(vocab)
  if (cached) return cached
  const texts = vocab.special_tokens.filter(({ control, text }) => control && text.length > 1).map(({ text }) => text)
  const firsts = [...new Set(texts.map(firstOf))].map((first) => first.replace(/[\\\]^-]/, '\\$&'))
  const controls: ControlTexts = {
    longest: Math.max(0, ...texts.map((text) => text.length)),
    firstCharacters: new RegExp(`[${firsts.join('')}]`, 'gu'),
    suffixes: new Set(
      texts.flatMap((text) => Array.from({ length: text.length - 1 }, (_, index) => text.slice(index + 1))),
    ),
    joined: texts.join('\n'),
  }
  cache.set(vocab, controls)
  return controls
}

const firstOf = (text: string) => String.fromCodePoint(text.codePointAt(0)!)

/** Whether part of a control text may be in this text, possibly joined with the template's text. */
function mayFormControl(text: string, controls: ControlTexts): boolean {
  controls.firstCharacters.lastIndex = 0
  return controls.firstCharacters.test(text) || mayContinueControl(text, controls)
}

/** Whether a text may continue a control text that the template has started. */
function mayContinueControl(text: string, { longest, suffixes, joined }: ControlTexts): boolean {
  for (let length = 1; length < longest && length <= text.length; length++)
    if (suffixes.has(text.slice(0, length))) return true
  return text !== '' && text.length < longest && joined.includes(text)
}

/** Inserts the marker after each possible first character, so that not even joined pieces form a control text. */
function markFirstCharacters(text: string, controls: ControlTexts, marker: string, exempt: readonly string[]): string {
  const inside = exempt.some((marker) => text.includes(marker))
    ? text.replace(controls.firstCharacters, (first, at: number) =>
        exempt.some((marker) => text.startsWith(marker, at)) ? first : first + marker,
      )
    : text.replace(controls.firstCharacters, `$&${marker}`)
  return mayContinueControl(text, controls) ? marker + inside : inside
}

/** Inserts the marker after the first character of every whole control text. */
function markWhole(
  text: string,
  finder: Pick<SpecialTokenFinder, 'matchAt'>,
  marker: string,
  exempt: readonly string[],
): string {
  const parts: string[] = []
  let from = 0
  for (let at = 0; at < text.length; at++) {
    const match = finder.matchAt(text, at)
    if (!match || exempt.includes(match.text)) continue
    const next = at + firstOf(match.text).length
    parts.push(text.slice(from, next), marker)
    from = next
  }
  return parts.join('') + text.slice(from)
}

function sameControls(one: readonly (string | SpecialToken)[], other: readonly (string | SpecialToken)[]): boolean {
  const [first, second] = [one, other].map((parts) =>
    parts.filter((part) => typeof part !== 'string').map(({ token }) => token),
  )
  return first!.length === second!.length && first!.every((token, index) => token === second![index])
}

const roles = new Set<unknown>(['system', 'user', 'assistant', 'tool'])
const partTypes = new Set<unknown>(['text', 'image'])
/** Parent of the fields of a content's part. */
const inContent = 'content[]'
/** Not marked: templates compare roles and types of a content's parts, and the service sets these. */
const isSetByService = (key: string, value: unknown, parent: string) =>
  (key === 'role' && roles.has(value)) || (key === 'type' && parent === inContent && partTypes.has(value))

/** Whether the caller chose the field's name (tool properties and arguments, unusual schema keys), not the protocol. */
const isNamedByCaller = (key: string, parent: string) =>
  parent === 'properties' || parent === 'arguments' || !/^\w+$/.test(key)

function someText(value: unknown, matches: (text: string) => boolean, parent = ''): boolean {
  if (typeof value === 'string') return matches(value)
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return false
  if (Array.isArray(value)) return value.some((item) => someText(item, matches, `${parent}[]`))
  return Object.entries(value).some(
    ([key, field]) =>
      (isNamedByCaller(key, parent) && matches(key)) ||
      (!isSetByService(key, field, parent) && someText(field, matches, key)),
  )
}

/** Copies the variables and changes every text that comes from the caller. */
function mapTexts(
  variables: Variables,
  change: (text: string, exempt: readonly string[]) => string,
  answerTexts: readonly string[],
): Variables {
  const copy = (value: unknown, exempt: readonly string[], parent: string): unknown => {
    if (typeof value === 'string') return change(value, exempt)
    if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
    if (Array.isArray(value)) return value.map((item) => copy(item, exempt, `${parent}[]`))
    const inside = 'role' in value && value.role === 'assistant' ? answerTexts : exempt
    const entries = Object.entries(value).map(([key, field]) => [
      isNamedByCaller(key, parent) ? change(key, []) : key,
      isSetByService(key, field, parent) ? field : copy(field, inside, key),
    ])
    return Object.fromEntries(entries)
  }
  return copy(variables, [], '') as Variables
}
