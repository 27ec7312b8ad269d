// Syntax in which models write tool calls: three forms by hand, all others learned from their templates.
import { type CallShape, isOnlyAtStart, triggerOf } from '../grammar/call-shape.ts'
import { type LearnedCalls, learnCalls, type Probe } from './learn-calls.ts'

/**
 * Everything but the JSON arguments is constant text, so a grammar can enforce it and a parser can match it exactly.
 */
export interface CallSyntax {
  /** Text that starts a call or a list of calls. */
  trigger: string
  /** Before the first call. Starts with the trigger if not empty. */
  opening: string
  /** From the start of a call to its arguments. */
  head(name: string): string
  /** After the arguments. */
  tail: string
  separator: string
  /** After the last call. */
  closing: string
  /** Whether a call must be the whole answer, and the only call. */
  exclusive: boolean
}

export interface ToolFormat {
  name: 'hermes' | 'mistral' | 'llama' | 'learned' | 'prompted'
  syntax: CallSyntax
  /** The shape of learned calls. */
  shape: CallShape | null
  /** What the template reads as the arguments of a call in the history: the object, or its JSON. */
  arguments: LearnedCalls['arguments']
  /** Whether an answer has one call at most. */
  is_single: boolean
  /** Whether a message of the history may have one call. */
  takes_one: boolean
  /** The first character of calls that JSON and other text may begin with too; null if a marker begins them. */
  ambiguous_start: string | null
  /** Whether the template refuses ids that are not of nine letters and digits. */
  short_ids: boolean
  /** Markers of calls that may be control tokens in a vocabulary. */
  control_texts: string[]
}

/** Limit of calls in one answer, and so in one message of the history. */
export const callsMax = 128

const hermes: CallSyntax = {
  trigger: '<tool_call>',
  opening: '',
  head: (name) => `<tool_call>\n{"name": "${name}", "arguments": `,
  tail: '}\n</tool_call>',
  separator: '\n',
  closing: '',
  exclusive: false,
}

const mistral = (space: string): CallSyntax => ({
  trigger: '[TOOL_CALLS]',
  opening: `[TOOL_CALLS]${space}[`,
  head: (name) => `{"name": "${name}", "arguments": `,
  tail: '}',
  separator: ', ',
  closing: ']',
  exclusive: false,
})

const llama: CallSyntax = {
  trigger: '{',
  opening: '',
  head: (name) => `{"name": "${name}", "parameters": `,
  tail: '}',
  separator: '',
  closing: '',
  exclusive: true,
}

/** For models whose template writes no tools. */
export const promptedFormat: ToolFormat = byHand('prompted', hermes, [])

/**
 * The format of a template: one by hand, one learned from what `probe` renders, or `prompted`. `end_texts`: what ends
 * an answer.
 */
export function toolFormatOf(template: string, probe: Probe, end_texts: readonly string[]): ToolFormat {
  const known = detectToolFormat(template)
  if (known.name !== 'prompted') return known
  const learned = /\btools\b|tool_calls/.test(template) ? learnCalls(probe, end_texts) : null
  if (!learned) return known
  const { shape } = learned
  const trigger = triggerOf(shape)
  return {
    ...known,
    name: 'learned',
    shape,
    arguments: learned.arguments,
    is_single: shape.next === null,
    takes_one: learned.takes_one,
    ambiguous_start: isOnlyAtStart(shape) ? trigger[0]! : null,
    short_ids: learned.short_ids,
  }
}

function byHand(name: ToolFormat['name'], syntax: CallSyntax, control_texts: string[]): ToolFormat {
  return {
    name,
    syntax,
    control_texts,
    shape: null,
    arguments: 'object',
    is_single: syntax.exclusive,
    takes_one: syntax.exclusive,
    ambiguous_start: syntax.exclusive ? '{' : null,
    short_ids: name === 'mistral',
  }
}

function detectToolFormat(template: string): ToolFormat {
  // Templates may escape quotes and may split their text at any point.
  const hermesCall = /<tool_call>(?:\\n|[\s"'~+{}-])*\{\\?"name\\?": /
  const otherForm = /<function=|<arg_key>|\[ARGS\]|\[CALL_ID\]/
  if (/\btools\b/.test(template) && !otherForm.test(template)) {
    if (hermesCall.test(template) && /"arguments\\?": /.test(template))
      return byHand('hermes', hermes, ['<tool_call>', '</tool_call>'])
    if (template.includes('[TOOL_CALLS]') && template.includes('[AVAILABLE_TOOLS]'))
      return byHand('mistral', mistral(template.includes('[TOOL_CALLS] [') ? ' ' : ''), ['[TOOL_CALLS]'])
    if (template.includes('<|start_header_id|>') && template.includes('ipython') && /"parameters\\?": /.test(template))
      return byHand('llama', llama, [])
  }
  return promptedFormat
}
