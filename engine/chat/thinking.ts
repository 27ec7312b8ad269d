// What a chat template reads about thinking: effort, whether to think, and whether thoughts of earlier answers stay.
// Templates have a name of their own for each. Rendering them with each name shows which they read, so that a request
// can use any.
import type { ReasoningEffort } from '../../contract/chat.ts'
import type { Probe } from './learn-calls.ts'
import { thoughtFields } from './learn-thoughts.ts'
import type { Variables } from './user-text.ts'

/** From the least to the most. */
const efforts: readonly ReasoningEffort[] = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']

/** A variable that has one of two values. */
interface Toggle {
  name: string
  yes: unknown
  no: unknown
}
const toggle = (name: string, yes: unknown = true, no: unknown = false): Toggle => ({ name, yes, no })
const switches = [
  toggle('enable_thinking'),
  toggle('thinking'),
  toggle('thinking_mode', 'thinking', 'chat'),
  toggle('thinking_mode', 'enabled', 'disabled'),
  toggle('reasoning'),
]
/** Whether thoughts before the last question are shown. */
const histories = [
  toggle('preserve_thinking'),
  toggle('preserved_thinking'),
  toggle('keep_past_thinking'),
  toggle('clear_thinking', false, true),
  toggle('truncate_history_thinking', false, true),
  toggle('drop_thinking', false, true),
  toggle('think_render_option', 'all', 'lastthink'),
]
const effortNames = ['reasoning_effort', 'reasoning_strength', 'thinking_effort']
/** Flags that lower the effort. */
const effortFlags = { low_effort: 'low', medium_effort: 'medium' } as const
/** Tokens of thoughts; more than the last is no limit. */
const budgets = { none: 0, minimal: 512, low: 1024, medium: 4096 } as const

export interface ThinkingVariables {
  switch: Toggle | null
  history: Toggle | null
  /** The variables of each effort that the template knows. Empty if it knows none. */
  efforts: Partial<Record<ReasoningEffort, Variables>>
  /** The names of efforts that it reads. */
  effort_names: readonly string[]
}

const user = { role: 'user', content: 'Zq asks.' }
const thoughts = Object.fromEntries(thoughtFields.map((field) => [field, 'Zq thinks.']))
/** Conversations whose prompts show what a variable changes. */
const conversations: readonly object[][] = [
  [user],
  ...[
    { role: 'assistant', content: 'Zq answers.', ...thoughts },
    { role: 'assistant', content: '<think>Zq thinks.</think>Zq answers.' },
  ].map((answer) => [user, answer, user, answer, user]),
]

/** Learns the names that a template reads, and its efforts. */
export function learnThinking(source: string, probe: Probe): ThinkingVariables {
  const render = (variables: Variables): string | null => {
    const texts = conversations.map((messages) => probe(messages, { ...variables, add_generation_prompt: true }))
    return texts[0] === null ? null : texts.join('\0')
  }
  const isNamed = (name: string) => new RegExp(`\\b${name}\\b`).test(source)
  const differs = (one: Variables, other: Variables) => {
    const [first, second] = [render(one), render(other)]
    return first !== null && second !== null && first !== second
  }
  const isRead = ({ name, yes, no }: Toggle, others: Variables = {}) =>
    isNamed(name) && differs({ ...others, [name]: yes }, { ...others, [name]: no })
  const found = switches.find((each) => isRead(each)) ?? null
  const on = found ? { [found.name]: found.yes } : {}
  const history = histories.find((each) => isRead(each, on)) ?? null

  const levels: ThinkingVariables['efforts'] = {}
  const effort_names: string[] = []
  for (const name of effortNames.filter(isNamed)) {
    const known = knownEfforts(source, (value) => render({ ...on, [name]: value }), render(on))
    if (known.size === 0) continue
    effort_names.push(name)
    for (const [effort, value] of known) levels[effort] ??= { ...on, ...(value !== null && { [name]: value }) }
  }
  for (const [name, effort] of Object.entries(effortFlags))
    if (isRead(toggle(name), on)) {
      effort_names.push(name)
      levels[effort] ??= { ...on, [name]: true }
      levels.high ??= on
    }
  if (isRead(toggle('thinking_budget', budgets.low, budgets.none), on)) {
    effort_names.push('thinking_budget')
    for (const [effort, tokens] of Object.entries(budgets))
      levels[effort as keyof typeof budgets] ??= { ...on, thinking_budget: tokens }
    levels.high ??= on
  }
  if (found) {
    levels.none = { [found.name]: found.no }
    if (effort_names.length === 0) levels.medium = on
  }
  return { switch: found, history, efforts: levels, effort_names }
}

const spellings: Partial<Record<ReasoningEffort, readonly string[]>> = { none: ['none', 'no_think'] }
const unknown = 'zqeffort'

/** The efforts that a variable may have, with its values; null where the template's default is that effort. */
function knownEfforts(
  source: string,
  render: (value: string) => string | null,
  byDefault: string | null,
): Map<ReasoningEffort, string | null> {
  const known = new Map<ReasoningEffort, string | null>()
  const ofUnknown = render(unknown)
  const isShown = ofUnknown?.includes(unknown)
  const usual: readonly ReasoningEffort[] = ['low', 'medium', 'high']
  let isDefaultKnown = false
  for (const effort of efforts)
    for (const value of spellings[effort] ?? [effort]) {
      const text = render(value)
      // Models of templates that write any value were trained on the usual ones, and on those that the template names.
      const isNamed = usual.includes(effort) || new RegExp(`['"]${value}['"]`).test(source)
      const isKnown = isShown ? isNamed : text !== ofUnknown
      if (text === null || !isKnown || known.has(effort)) continue
      known.set(effort, value)
      isDefaultKnown ||= text === byDefault
    }
  if (known.size > 0 && !isDefaultKnown && !known.has('medium')) known.set('medium', null)
  return known
}

/**
 * The variables of a request: `kwargs`, under the names that the template reads, and those of the effort that is
 * nearest to `effort`, where `kwargs` do not set them.
 */
export function thinkingVariables(
  learned: ThinkingVariables,
  effort: ReasoningEffort | null | undefined,
  kwargs: Variables,
): Variables {
  const requested = effortIn(kwargs, learned.effort_names) ?? (isOff(kwargs, learned) ? 'none' : effort)
  return {
    ...(requested && nearest(learned.efforts, requested)),
    ...translated(kwargs, switches, learned.switch),
    ...translated(kwargs, histories, learned.history),
    ...kwargs,
  }
}

/** Whether `kwargs` turn thinking off where the template knows efforts alone. */
const isOff = (kwargs: Variables, learned: ThinkingVariables) =>
  learned.switch === null && switches.some(({ name, no }) => kwargs[name] === no)

/** The variable of the template for the first other name of it in `kwargs`. */
function translated(kwargs: Variables, toggles: readonly Toggle[], own: Toggle | null): Variables {
  if (!own) return {}
  for (const { name, yes, no } of toggles) {
    if (name === own.name) continue
    if (kwargs[name] === yes) return { [own.name]: own.yes }
    if (kwargs[name] === no) return { [own.name]: own.no }
  }
  return {}
}

/** The effort that `kwargs` name in a way that the template does not read. */
function effortIn(kwargs: Variables, read: readonly string[]): ReasoningEffort | null {
  for (const name of effortNames) {
    const effort = efforts.find((each) => (spellings[each] ?? [each]).includes(kwargs[name] as string))
    if (effort && !read.includes(name)) return effort
  }
  for (const [name, effort] of Object.entries(effortFlags))
    if (kwargs[name] === true && !read.includes(name)) return effort
  const tokens = kwargs.thinking_budget
  if (typeof tokens !== 'number' || read.includes('thinking_budget')) return null
  const level = Object.entries(budgets).find(([, most]) => tokens >= 0 && tokens <= most)
  return (level?.[0] as ReasoningEffort | undefined) ?? 'high'
}

/** The lower one of two that are as near. */
function nearest(levels: ThinkingVariables['efforts'], effort: ReasoningEffort): Variables {
  const at = efforts.indexOf(effort)
  const known = efforts.filter((each) => levels[each])
  const distance = (each: ReasoningEffort) => Math.abs(efforts.indexOf(each) - at)
  const best = known.reduce<ReasoningEffort | null>(
    (found, each) => (found === null || distance(each) < distance(found) ? each : found),
    null,
  )
  return best === null ? {} : levels[best]!
}
