// Grammar of an answer: JSON, tool calls, or either, after optional reasoning. The types are those of XGrammar's
// structural tag format.
import type { GrammarSpec } from '../grammar/session.ts'
import type { ToolPlan } from './tool-choice.ts'
import type { CallSyntax } from './tool-formats.ts'

type Schema = Record<string, unknown>
interface Tag {
  type: 'tag'
  begin: string
  content: Format
  end: string
}
type Format =
  | { type: 'const_string'; value: string }
  | { type: 'json_schema'; json_schema: Schema }
  | { type: 'any_text' }
  | { type: 'regex'; pattern: string }
  | { type: 'sequence' | 'or'; elements: Format[] }
  | { type: 'triggered_tags'; triggers: string[]; tags: Tag[]; at_least_one: boolean; stop_after_first: boolean }
  | { type: 'tags_with_separator'; tags: Tag[]; separator: string; at_least_one: boolean; stop_after_first: boolean }
  | Tag

/** `optional`: the answer may begin with reasoning. `started`: the prompt already ends in an open <think>. */
export type Thinking = 'never' | 'optional' | 'started'
export type JsonFormat = { kind: 'json_object' } | { kind: 'json_schema'; schema: Schema }

/** Null if the answer is unconstrained. */
export function answerGrammar(
  json: JsonFormat | null,
  plan: ToolPlan | null,
  syntax: CallSyntax,
  thinking: Thinking,
): GrammarSpec | null {
  if (!plan && !json) return null
  if (!plan && thinking === 'never') return json
  return {
    kind: 'structural_tag',
    tag: { type: 'structural_tag', format: withThoughts(body(json, plan, syntax, thinking), thinking) },
  }
}

function body(json: JsonFormat | null, plan: ToolPlan | null, syntax: CallSyntax, thinking: Thinking): Format {
  if (!plan) return jsonValue(json!)
  if (plan.required) return calls(plan, syntax)
  return json ? jsonOrCalls(json, plan, syntax) : textOrCalls(plan, syntax, thinking)
}

function calls(plan: ToolPlan, syntax: CallSyntax): Format {
  const tags = plan.callable.map(({ name, schema }) => callTag(name, schema, syntax))
  const list: Format =
    plan.calls_max === 1
      ? oneOf(tags)
      : { type: 'tags_with_separator', tags, separator: syntax.separator, at_least_one: true, stop_after_first: false }
  return syntax.opening === '' ? list : { type: 'tag', begin: syntax.opening, content: list, end: syntax.closing }
}

function textOrCalls(plan: ToolPlan, syntax: CallSyntax, thinking: Thinking): Format {
  if (syntax.exclusive) {
    // Plain text must not look like a call or like reasoning (after which a call may follow), so exclude it by its
    // first character.
    const excludedFirst = thinking === 'optional' ? '{<' : '{'
    return {
      type: 'or',
      elements: [calls(plan, syntax), { type: 'regex', pattern: `([^ \\n\\t\\r${excludedFirst}][^\\x00]*)?` }],
    }
  }
  const inList = syntax.opening !== ''
  const tags = inList
    ? [calls(plan, syntax) as Tag]
    : plan.callable.map(({ name, schema }) => callTag(name, schema, syntax))
  return {
    type: 'triggered_tags',
    triggers: [syntax.trigger],
    tags,
    at_least_one: false,
    stop_after_first: inList || plan.calls_max === 1,
  }
}

function jsonOrCalls(json: JsonFormat, plan: ToolPlan, syntax: CallSyntax): Format {
  const callsFormat = calls(plan, syntax)
  const value = jsonValue(json)
  // XGrammar requires that either all alternatives or none have their own end; a list of tags has none.
  const valueFormat: Format =
    callsFormat.type === 'tags_with_separator'
      ? { ...callsFormat, tags: [{ type: 'tag', begin: '', content: value, end: '' }], stop_after_first: true }
      : value
  return { type: 'or', elements: [valueFormat, callsFormat] }
}

function withThoughts(answer: Format, thinking: Thinking): Format {
  if (thinking === 'never') return answer
  // Models write an empty line after </think>. Free text allows it anyway; other formats must require it.
  const gap: Format[] = answer.type === 'triggered_tags' ? [] : [{ type: 'const_string', value: '\n\n' }]
  const thoughts = (begin: string): Format[] => [
    { type: 'tag', begin, content: { type: 'any_text' }, end: '</think>' },
    ...gap,
  ]
  if (thinking === 'started') return { type: 'sequence', elements: [...thoughts(''), answer] }
  // Optional reasoning, then the answer. One sequence, not two alternatives: the answer's grammar can be large.
  const optionalThoughts: Format = {
    type: 'or',
    elements: [
      { type: 'sequence', elements: thoughts('<think>') },
      { type: 'regex', pattern: '()' },
    ],
  }
  return { type: 'sequence', elements: [optionalThoughts, answer] }
}

function callTag(name: string, schema: Schema, syntax: CallSyntax): Tag {
  return {
    type: 'tag',
    begin: syntax.head(name),
    content: { type: 'json_schema', json_schema: schema },
    end: syntax.tail,
  }
}

function jsonValue(json: JsonFormat): Format {
  return {
    type: 'json_schema',
    json_schema: json.kind === 'json_schema' ? json.schema : { type: 'object', additionalProperties: true },
  }
}

function oneOf(tags: Tag[]): Format {
  return tags.length === 1 ? tags[0]! : { type: 'or', elements: tags }
}
