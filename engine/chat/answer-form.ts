// The grammar of an answer: JSON, calls of tools, or either, with the model's thoughts before it.
// The types are those of XGrammar's structural tag format.
import type { GrammarSpec } from '../grammar/session.ts'
import type { ToolPlan } from './tool-choice.ts'
import type { CallSyntax } from './tool-formats.ts'

type Schema = Record<string, unknown>
type Tag = { type: 'tag'; begin: string; content: Format; end: string }
type Format =
  | { type: 'const_string'; value: string }
  | { type: 'json_schema'; json_schema: Schema }
  | { type: 'any_text' }
  | { type: 'regex'; pattern: string }
  | { type: 'sequence' | 'or'; elements: Format[] }
  | { type: 'triggered_tags'; triggers: string[]; tags: Tag[]; at_least_one: boolean; stop_after_first: boolean }
  | { type: 'tags_with_separator'; tags: Tag[]; separator: string; at_least_one: boolean; stop_after_first: boolean }
  | Tag

/** Whether the model thinks, and whether the prompt has begun its thoughts for it. */
export type Thinking = 'never' | 'perhaps' | 'begun'
export type JsonForm = { kind: 'json_object' } | { kind: 'json_schema'; schema: Schema }

/** Null where the answer is free. */
export function answerForm(
  json: JsonForm | null,
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

function body(json: JsonForm | null, plan: ToolPlan | null, syntax: CallSyntax, thinking: Thinking): Format {
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
  if (syntax.alone) {
    // Text that could be taken for a call is excluded by its first character, as is text that could be taken for
    // thoughts, after which a call may come.
    const notFirst = thinking === 'perhaps' ? '{<' : '{'
    return {
      type: 'or',
      elements: [calls(plan, syntax), { type: 'regex', pattern: `([^ \\n\\t\\r${notFirst}][^\\x00]*)?` }],
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

function jsonOrCalls(json: JsonForm, plan: ToolPlan, syntax: CallSyntax): Format {
  const either = calls(plan, syntax)
  const value = jsonValue(json)
  // Of alternatives, XGrammar wants all or none to be without an end of their own, as a list of tags is.
  const alike: Format =
    either.type === 'tags_with_separator'
      ? { ...either, tags: [{ type: 'tag', begin: '', content: value, end: '' }], stop_after_first: true }
      : value
  return { type: 'or', elements: [alike, either] }
}

function withThoughts(form: Format, thinking: Thinking): Format {
  if (thinking === 'never') return form
  // Models end their thoughts with an empty line. Free text has it anyway, forms need it said.
  const gap: Format[] = form.type === 'triggered_tags' ? [] : [{ type: 'const_string', value: '\n\n' }]
  const thoughts = (begin: string): Format[] => [
    { type: 'tag', begin, content: { type: 'any_text' }, end: '</think>' },
    ...gap,
  ]
  if (thinking === 'begun') return { type: 'sequence', elements: [...thoughts(''), form] }
  // Thoughts or nothing, then the form: said once, since it can be large.
  const perhaps: Format = {
    type: 'or',
    elements: [
      { type: 'sequence', elements: thoughts('<think>') },
      { type: 'regex', pattern: '()' },
    ],
  }
  return { type: 'sequence', elements: [perhaps, form] }
}

function callTag(name: string, schema: Schema, syntax: CallSyntax): Tag {
  return {
    type: 'tag',
    begin: syntax.head(name),
    content: { type: 'json_schema', json_schema: schema },
    end: syntax.tail,
  }
}

function jsonValue(json: JsonForm): Format {
  return {
    type: 'json_schema',
    json_schema: json.kind === 'json_schema' ? json.schema : { type: 'object', additionalProperties: true },
  }
}

function oneOf(tags: Tag[]): Format {
  return tags.length === 1 ? tags[0]! : { type: 'or', elements: tags }
}
