// Keeps the caller's words words: written control tokens in them are marked, so that only those that the template
// writes become tokens.
import { ApiError } from '../../contract/errors.ts'
import type { SpecialToken, Vocab } from '../llama/vocab.ts'
import { findersOf, type PromptText } from '../tokenizer/tokenizer.ts'

/** What a template is run with. */
export type Variables = Record<string, unknown>
export type RenderOptions = {
  /** Texts of an answer's form (thoughts, calls), which stay control tokens in what the assistant says. */
  answer_texts: readonly string[]
  /** Every written control token becomes one, whoever wrote it. */
  parse_control_tokens: boolean
}

// Noncharacters of Unicode, which no text is meant to have.
const marks = Array.from({ length: 32 }, (_, index) => String.fromCharCode(0xfdd0 + index))

type ControlTexts = {
  longest: number
  /** Matches every character that a control text begins with. */
  beginning: RegExp
  /** Every text that a control text ends with. */
  ends: ReadonlySet<string>
  joined: string
}

/**
 * Renders a conversation so that no control token comes from the caller's texts: neither whole, nor of parts that the
 * template joins. The rendering without its marks is what the template makes of the texts as they are. Throws ApiError
 * invalid_request where it makes something else of them.
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
  if (!someText(variables, (text) => isSuspicious(text, controls))) return { text: plain, controls: 'all' }
  const mark = marks.find((each) => !plain.includes(each) && !someText(variables, (text) => text.includes(each)))
  if (mark === undefined)
    throw refusal('The messages have every noncharacter of Unicode (U+FDD0 to U+FDEF) in them. Remove one.')

  const full = render(
    marked(variables, (text, exempt) => markBeginnings(text, controls, mark, exempt), options.answer_texts),
  )
  if (full.replaceAll(mark, '') === plain) return { text: full, controls: { unless_marked_by: mark } }
  // The template looks for such texts, as many do for </think>: only whole control tokens are marked.
  const { control } = findersOf(vocab)
  const narrow = render(
    marked(variables, (text, exempt) => markWhole(text, control, mark, exempt), options.answer_texts),
  )
  if (
    narrow.replaceAll(mark, '') === plain &&
    sameControls([...control.partition(full)], [...control.partition(narrow)])
  )
    return { text: narrow, controls: { unless_marked_by: mark } }
  throw refusal(
    'The model’s chat template rewrites parts of these messages that spell control tokens of the model, such as <|im_end|>, so they cannot be kept apart from its own. Remove them from the messages, or let the operator set TUNERY_PARSE_CONTROL_TOKENS=true.',
  )
}

const refusal = (message: string) => new ApiError('invalid_request', message, { param: 'messages' })

const known = new WeakMap<Vocab, ControlTexts>()
function controlTextsOf(vocab: Vocab): ControlTexts {
  const before = known.get(vocab)
  if (before) return before
  const texts = vocab.special_tokens.filter(({ control, text }) => control && text.length > 1).map(({ text }) => text)
  const firsts = [...new Set(texts.map(firstOf))].map((first) => first.replace(/[\\\]^-]/, '\\$&'))
  const controls: ControlTexts = {
    longest: Math.max(0, ...texts.map((text) => text.length)),
    beginning: new RegExp(`[${firsts.join('')}]`, 'gu'),
    ends: new Set(
      texts.flatMap((text) => Array.from({ length: text.length - 1 }, (_, index) => text.slice(index + 1))),
    ),
    joined: texts.join('\n'),
  }
  known.set(vocab, controls)
  return controls
}

const firstOf = (text: string) => String.fromCodePoint(text.codePointAt(0)!)

/** Whether a control text may begin in a text, or go on in it beside what a template writes. */
function isSuspicious(text: string, controls: ControlTexts): boolean {
  controls.beginning.lastIndex = 0
  return controls.beginning.test(text) || goesOn(text, controls)
}

/** Whether a text may be the middle or the end of a control text that a template has begun. */
function goesOn(text: string, { longest, ends, joined }: ControlTexts): boolean {
  for (let length = 1; length < longest && length <= text.length; length++)
    if (ends.has(text.slice(0, length))) return true
  return text !== '' && text.length < longest && joined.includes(text)
}

/**
 * A mark after each character that a control text may begin with, so that none can, even of pieces that a template puts
 * together.
 */
function markBeginnings(text: string, controls: ControlTexts, mark: string, exempt: readonly string[]): string {
  const inside = exempt.some((each) => text.includes(each))
    ? text.replace(controls.beginning, (first, at: number) =>
        exempt.some((each) => text.startsWith(each, at)) ? first : first + mark,
      )
    : text.replace(controls.beginning, `$&${mark}`)
  return goesOn(text, controls) ? mark + inside : inside
}

/** A mark after the first character of every whole control text. */
function markWhole(
  text: string,
  finder: { at(text: string, place: number): SpecialToken | null },
  mark: string,
  exempt: readonly string[],
): string {
  const parts: string[] = []
  let from = 0
  for (let at = 0; at < text.length; at++) {
    const found = finder.at(text, at)
    if (!found || exempt.includes(found.text)) continue
    const next = at + firstOf(found.text).length
    parts.push(text.slice(from, next), mark)
    from = next
  }
  return parts.join('') + text.slice(from)
}

const sameControls = (one: readonly (string | SpecialToken)[], other: readonly (string | SpecialToken)[]): boolean => {
  const [first, second] = [one, other].map((parts) =>
    parts.filter((part) => typeof part !== 'string').map(({ token }) => token),
  )
  return first!.length === second!.length && first!.every((token, index) => token === second![index])
}

const roles = new Set<unknown>(['system', 'user', 'assistant', 'tool'])
/** Templates compare roles; these are the service's own words. */
const isRole = (key: string, value: unknown) => key === 'role' && roles.has(value)

/**
 * Whether a field is named by the caller (properties and arguments of tools, odd keys of schemas) and not by the
 * protocol.
 */
const isNamedByCaller = (key: string, parent: string) =>
  parent === 'properties' || parent === 'arguments' || !/^\w+$/.test(key)

function someText(value: unknown, found: (text: string) => boolean, parent = ''): boolean {
  if (typeof value === 'string') return found(value)
  if (typeof value !== 'object' || value === null) return false
  if (Array.isArray(value)) return value.some((each) => someText(each, found))
  return Object.entries(value).some(
    ([key, each]) => (isNamedByCaller(key, parent) && found(key)) || (!isRole(key, each) && someText(each, found, key)),
  )
}

/** A copy with every text of the caller's changed. */
function marked(
  variables: Variables,
  change: (text: string, exempt: readonly string[]) => string,
  answerTexts: readonly string[],
): Variables {
  const copy = (value: unknown, exempt: readonly string[], parent: string): unknown => {
    if (typeof value === 'string') return change(value, exempt)
    if (typeof value !== 'object' || value === null) return value
    if (Array.isArray(value)) return value.map((each) => copy(each, exempt, ''))
    const inside = 'role' in value && value.role === 'assistant' ? answerTexts : exempt
    const entries = Object.entries(value).map(([key, each]) => [
      isNamedByCaller(key, parent) ? change(key, []) : key,
      isRole(key, each) ? each : copy(each, inside, key),
    ])
    return Object.fromEntries(entries)
  }
  return copy(variables, [], '') as Variables
}
