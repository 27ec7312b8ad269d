// Grammar of an answer: JSON, tool calls, or either, after optional reasoning. The types are those of XGrammar's
// structural tag format.

import { type CallShape, triggerOf } from '../grammar/call-shape.ts'
import type { GrammarSpec, NamedSchema } from '../grammar/session.ts'
import type { Thoughts } from './learn-thoughts.ts'
import { relaxedPlan, type ToolPlan } from './tool-choice.ts'
import { type CallSyntax, callsMax, type ToolFormat } from './tool-formats.ts'

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
  | { type: 'calls'; shape: CallShape; tools: ToolPlan['callable']; calls_max: number | null; is_triggered: boolean }
  | { type: 'regex'; pattern: string }
  | { type: 'sequence' | 'or'; elements: Format[] }
  | { type: 'triggered_tags'; triggers: string[]; tags: Tag[]; at_least_one: boolean; stop_after_first: boolean }
  | { type: 'tags_with_separator'; tags: Tag[]; separator: string; at_least_one: boolean; stop_after_first: boolean }
  | Tag

/** `optional`: the answer may begin with reasoning. `started`: the prompt already ends in open thoughts. */
export type Thinking = 'never' | 'optional' | 'started'
export type JsonFormat = { kind: 'json_object' } | { kind: 'json_schema'; schema: Schema }

/** Null if the answer is unconstrained. */
export function answerGrammar(
  json: JsonFormat | null,
  plan: ToolPlan | null,
  format: ToolFormat,
  thinking: Thinking,
  thoughts: Thoughts | null,
): GrammarSpec | null {
  if (!plan && !json) return null
  const answer = thoughts?.answer.open ?? ''
  if (!plan && thinking === 'never' && answer === '') return json
  const tag = withThoughts(body(json, plan, format, thinking, thoughts), thinking, thoughts)
  const relaxed = plan && relaxedPlan(plan)
  return {
    kind: 'structural_tag',
    tag: { type: 'structural_tag', format: tag },
    schemas: schemasOf(json, plan),
    ...(relaxed && { relaxed: answerGrammar(json, relaxed, format, thinking, thoughts)! }),
  }
}

function schemasOf(json: JsonFormat | null, plan: ToolPlan | null): NamedSchema[] {
  const answer =
    json?.kind === 'json_schema'
      ? [{ of: 'response_format', param: 'response_format.json_schema.schema', schema: json.schema }]
      : []
  const tools = plan?.callable ?? []
  return [...answer, ...tools.map(({ name, schema, param }) => ({ of: `the tool '${name}'`, param, schema }))]
}

function body(
  json: JsonFormat | null,
  plan: ToolPlan | null,
  format: ToolFormat,
  thinking: Thinking,
  thoughts: Thoughts | null,
): Format {
  if (!plan) return wrapped(jsonValue(json!), thoughts)
  const { syntax, shape } = format
  if (plan.required) return shape ? shapedCalls(plan, shape) : calls(plan, syntax)
  if (json)
    return shape
      ? { type: 'or', elements: [wrapped(jsonValue(json), thoughts), shapedCalls(plan, shape)] }
      : jsonOrCalls(json, plan, syntax)
  return shape
    ? textOrShapedCalls(plan, shape, format.ambiguous_start, thinking, thoughts)
    : textOrCalls(plan, syntax, thinking)
}

/** An answer with what the model writes before and after it. */
function wrapped(answer: Format, thoughts: Thoughts | null): Format {
  const { open, close } = thoughts?.answer ?? { open: '', close: '' }
  return open === '' ? answer : { type: 'tag', begin: open, content: answer, end: close }
}

function shapedCalls(plan: ToolPlan, shape: CallShape): Format {
  return {
    type: 'calls',
    shape,
    tools: plan.callable,
    calls_max: plan.calls_max === callsMax ? null : plan.calls_max,
    is_triggered: false,
  }
}

function textOrShapedCalls(
  plan: ToolPlan,
  shape: CallShape,
  ambiguousStart: string | null,
  thinking: Thinking,
  thoughts: Thoughts | null,
): Format {
  const answer = thoughts?.answer.open ?? ''
  if (ambiguousStart !== null) {
    // Calls only begin an answer: other text must begin otherwise, or with the text that begins answers.
    if (answer !== '')
      return {
        type: 'or',
        elements: [
          shapedCalls(plan, shape),
          { type: 'sequence', elements: [{ type: 'const_string', value: answer }, anyText] },
        ],
      }
    const excluded = [ambiguousStart, ...(thinking === 'optional' && thoughts ? [thoughts.open[0]!] : [])]
    const pattern = `([^ \\n\\t\\r${excluded.map((char) => `\\${char}`).join('')}][^\\x00]*)?`
    return { type: 'or', elements: [shapedCalls(plan, shape), { type: 'regex', pattern }] }
  }
  const trigger = triggerOf(shape)
  const content: Format = { ...(shapedCalls(plan, shape) as Format & { type: 'calls' }), is_triggered: true }
  return {
    type: 'triggered_tags',
    triggers: [trigger],
    tags: [{ type: 'tag', begin: trigger, content, end: '' }],
    at_least_one: false,
    stop_after_first: true,
  }
}

const anyText: Format = { type: 'regex', pattern: '[^\\x00]*' }

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

function withThoughts(answer: Format, thinking: Thinking, learned: Thoughts | null): Format {
  if (thinking === 'never' || !learned) return answer
  const { open, close, gap } = learned
  // Models write an empty line after </think>. Free text allows it anyway; other formats must require it.
  const gaps: Format[] = answer.type === 'triggered_tags' || gap === '' ? [] : [{ type: 'const_string', value: gap }]
  const thoughts = (begin: string): Format[] => [
    { type: 'tag', begin, content: { type: 'any_text' }, end: close },
    ...gaps,
  ]
  if (thinking === 'started') return { type: 'sequence', elements: [...thoughts(''), answer] }
  // Optional thoughts, then the answer. One sequence, not two alternatives: the answer's grammar can be large.
  const optionalThoughts: Format = {
    type: 'or',
    elements: [
      { type: 'sequence', elements: thoughts(open) },
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
