// Calls in the forms of templates: what a template renders is parsed to what it was, whole and streamed, and is what an
// enforced grammar accepts.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ApiError } from '../../../contract/errors.ts'
import { prepareConversation } from '../../../engine/chat/conversation.ts'
import type { ReplyPart } from '../../../engine/chat/reply.ts'
import { readTemplate } from '../../../engine/chat/template.ts'
import { resolveTag } from '../../../engine/grammar/structural-tag.ts'
import { stripMarkers } from '../../../engine/tokenizer/tokenizer.ts'
import { ask, now } from './chat-models.ts'
import {
  answerWith,
  type Call,
  calls,
  createCheckers,
  missing,
  modelNamed,
  modelWith,
  required,
  templateNames,
  tools,
} from './template-calls.ts'

const isFull = process.env.TEST_FULL !== undefined

const request = (tool_choice: string) => ask({ tools, tool_choice })

/** A prompt may begin thoughts, which the answer then ends. */
function thoughtsBefore(name: string): string {
  const model = modelNamed(name)
  const { thoughts } = readTemplate(model).thoughts
  const prompt = stripMarkers(prepareConversation(model, request('required')).prompt)
  return thoughts && prompt.trimEnd().endsWith(thoughts.open) ? `Hm.${thoughts.close}${thoughts.gap}` : ''
}

function read(parts: readonly ReplyPart[]): [string, unknown][] {
  const found: [string, string][] = []
  for (const part of parts) {
    if (part.kind !== 'tool_call') continue
    if (part.name !== undefined) found.push([part.name, ''])
    found[part.index]![1] += part.arguments
  }
  return found.map(([name, written]) => [name, JSON.parse(written)])
}

const learned = templateNames.filter((name) => {
  try {
    return readTemplate(modelNamed(name)).tool_format.name === 'learned'
  } catch {
    return false
  }
})
const casesOf = (name: string): (readonly Call[])[] => {
  const isSingle = readTemplate(modelNamed(name)).tool_format.is_single
  return [...calls.map((call) => [call]), ...(isSingle ? [] : [[calls[0]!, calls[4]!, calls[3]!]])]
}

test('the calls of every required template are learned', { skip: missing }, () => {
  assert.deepEqual(
    required.filter((name) => !learned.includes(name)),
    [],
  )
})

test('rendered calls are parsed to what they were, in pieces of every length', { skip: missing }, () => {
  for (const name of learned) {
    const model = modelNamed(name)
    const conversation = prepareConversation(model, request('auto'))
    const before = thoughtsBefore(name)
    for (const given of casesOf(name)) {
      const answer = answerWith(model, given)
      assert.ok(answer !== null, name)
      const written = before + answer
      for (const length of [written.length, ...(isFull ? [1, 2, 3, 4, 5, 6, 7, 11, 17] : [1, 3, 7])]) {
        const parser = conversation.createParser()
        const parts: ReplyPart[] = []
        for (let at = 0; at < written.length; at += length) parts.push(...parser.push(written.slice(at, at + length)))
        parts.push(...parser.finish(false))
        assert.deepEqual(read(parts), given, `${name}, in pieces of ${length}: ${written}`)
        const content = parts.filter(({ kind }) => kind === 'content')
        assert.deepEqual(content, [], `${name} has content beside its calls`)
      }
    }
  }
})

test('enforced grammars accept rendered calls, and refuse what is none', { skip: missing }, async () => {
  const check = await createCheckers()
  for (const name of isFull ? learned : learned.filter((each) => required.includes(each))) {
    const model = modelNamed(name)
    const before = thoughtsBefore(name)
    const { ambiguous_start } = readTemplate(model).tool_format
    const checkerOf = (choice: string) =>
      check(resolveTag((prepareConversation(model, request(choice)).grammar as { tag: object }).tag))
    const enforced = await checkerOf('required')
    const free = await checkerOf('auto')
    for (const given of casesOf(name)) {
      const answer = answerWith(model, given)!
      assert.ok(await enforced.accepts(before + answer), `${name} refuses ${answer}`)
      assert.ok(await free.accepts(before + answer), `${name}, where calls are optional, refuses ${answer}`)
      if (ambiguous_start === null)
        assert.ok(await free.accepts(`${before}I will look.\n${answer}`), `${name} refuses text before ${answer}`)
      const malformed = [
        `Yes. ${answer}`,
        answer.replaceAll(given[0]![0], 'unknown_tool'),
        answer.replace('-42', '"no"'),
        answer.replace('-42', '-4.2'),
        answer.replace('celsius', 'kelvin'),
        answer.replace('[1, 2, 3]', '[1, "two", 3]').replace('[1,2,3]', '[1,true,3]'),
        answer.replace('title', 'tittle'),
        answer.trimEnd().slice(0, -1),
        `${answer.trimEnd()}!`,
      ]
      for (const text of malformed)
        if (text !== answer) assert.ok(!(await enforced.accepts(before + text)), `${name} accepts ${text}`)
    }
  }
})

test('gpt-oss calls as OpenAI’s model writes it, beside its template’s form', { skip: missing }, async () => {
  const check = await createCheckers()
  const model = modelNamed('openai-gpt-oss-120b')
  const checkerOf = (choice: string) =>
    check(resolveTag((prepareConversation(model, request(choice)).grammar as { tag: object }).tag))
  const [free, enforced] = [await checkerOf('auto'), await checkerOf('required')]
  const thoughts = '<|channel|>analysis<|message|>I count.<|end|><|start|>assistant'
  const heads = [
    '<|channel|>commentary to=functions.count_things <|constrain|>json<|message|>',
    '<|channel|>commentary to=functions.count_things<|constrain|>json<|message|>',
    '<|channel|>commentary to=functions.count_things json<|message|>',
    '<|channel|>commentary to=functions.count_things<|message|>',
    ' to=functions.count_things<|channel|>commentary <|constrain|>json<|message|>',
    ' to=functions.count_things<|channel|>commentary json<|message|>',
    'to=functions.count_things<|channel|>commentary json<|message|>',
  ]
  for (const head of heads)
    for (const before of ['', thoughts]) {
      const text = `${before}${head}{"number": -42, "ratio": 2.5}`
      assert.ok(await free.accepts(text), `where calls are optional, refused: ${text}`)
      assert.ok(await enforced.accepts(text), `refused: ${text}`)
      assert.ok(!(await enforced.accepts(text.replace('-42', '"no"'))), `a text for a number: ${text}`)
      assert.ok(!(await enforced.accepts(text.replace('count_things', 'unknown'))), `an unknown tool: ${text}`)
      for (const length of [text.length, 1, 2, 3, 7, 11]) {
        const parser = prepareConversation(model, request('auto')).createParser()
        const parts: ReplyPart[] = []
        for (let at = 0; at < text.length; at += length) parts.push(...parser.push(text.slice(at, at + length)))
        parts.push(...parser.finish(false))
        assert.deepEqual(
          read(parts),
          [['count_things', { number: -42, ratio: 2.5 }]],
          `in pieces of ${length}: ${text}`,
        )
        const others = parts.map((part) => (part.kind === 'tool_call' ? '' : `${part.kind}: ${part.text}`)).join('')
        assert.equal(others.replaceAll('reasoning: ', ''), before && 'I count.', text)
      }
    }
  const cut = prepareConversation(model, request('auto')).createParser()
  assert.deepEqual([...cut.push('<|channel|>commentary to=functions.count'), ...cut.finish(true)], [])
})

test('arguments that a schema leaves open are typed as they look, and a string stays one', { skip: missing }, () => {
  const model = modelNamed('Qwen3-Coder')
  const parameters = {
    type: 'object',
    properties: { code: { type: 'string' }, any: {}, maybe: { anyOf: [{ type: 'integer' }, { type: 'null' }] } },
  }
  const tool = { type: 'function', function: { name: 'f', parameters } }
  const parser = prepareConversation(model, ask({ tools: [tool] })).createParser()
  const argument = (name: string, value: string) => `<parameter=${name}>\n${value}\n</parameter>\n`
  const given = argument('code', '42') + argument('any', '[1, 2]') + argument('maybe', '7')
  const parts = [
    ...parser.push(`<tool_call>\n<function=f>\n${given}</function>\n</tool_call>`),
    ...parser.finish(false),
  ]
  assert.deepEqual(read(parts), [['f', { code: '42', any: [1, 2], maybe: 7 }]])
})

test('a call that is cut keeps the arguments so far, and the beginning of a call is no text', { skip: missing }, () => {
  const model = modelNamed('Qwen3-Coder')
  const parsed = (written: string) => {
    const parser = prepareConversation(model, request('auto')).createParser()
    return [...parser.push(written), ...parser.finish(true)]
  }
  const cut = parsed('Yes.\n\n<tool_call>\n<function=write_note>\n<parameter=text>\nHello the')
  assert.deepEqual(
    cut.map((part) => (part.kind === 'tool_call' ? part.arguments : part.kind === 'content' ? part.text : '')).join(''),
    'Yes.{"text": "Hello the',
  )
  assert.deepEqual(parsed('Yes.\n\n<tool_call>\n<function=wri'), [{ kind: 'content', text: 'Yes.' }])
  assert.deepEqual(parsed('Yes. <tool_'), [{ kind: 'content', text: 'Yes.' }])
})

test('a template that refuses probes, or writes no calls, gets tools in words', () => {
  const template = (body: string) =>
    readTemplate(
      modelWith(`{% for message in messages %}{{ message.role }}: {{ message.content }}\n${body}{% endfor %}`),
    )
  assert.equal(template('{% if tools %}{{ raise_exception("No.") }}{% endif %}').tool_format.name, 'prompted')
  assert.equal(template('{% if tools %}{{ tools | length }}{% endif %}').tool_format.name, 'prompted')
  const always = modelWith('{{ raise_exception("Never.") }}{{ tools }}')
  assert.equal(readTemplate(always).tool_format.name, 'prompted')
  assert.throws(() => prepareConversation(always, ask({ tools: [now] })), /refuses these messages: Never\./)
})

test('a call in the history that was cut is named where a template takes objects alone', { skip: missing }, () => {
  const cut = { id: 'call_7', type: 'function', function: { name: 'now', arguments: '{"place": "Par' } }
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: null, tool_calls: [cut] },
    { role: 'tool', tool_call_id: 'call_7', content: 'No.' },
  ]
  for (const name of ['Qwen3.5-4B', 'GLM-4.6', 'MiniMax-M2'])
    assert.throws(
      () => prepareConversation(modelNamed(name), ask({ messages, tools: [now] })),
      /'call_7'.*no JSON object/,
    )
})

test('results are rendered in the order of their calls, however they are sent', { skip: missing }, () => {
  const called = (id: string) => ({ id, type: 'function', function: { name: 'now', arguments: '{}' } })
  const result = (id: string) => ({ role: 'tool', tool_call_id: id, content: `Result of ${id}.` })
  const asked = (...ids: string[]) => [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: null, tool_calls: [called('a'), called('b'), called('c')] },
    ...ids.map(result),
    { role: 'assistant', content: 'So.' },
    { role: 'user', content: 'And?' },
  ]
  for (const name of ['Qwen3.5-4B', 'GLM-4.6', 'qwen2.5', 'smollm2', 'openai-gpt-oss-120b']) {
    const prompt = (...ids: string[]) =>
      stripMarkers(prepareConversation(modelNamed(name), ask({ messages: asked(...ids), tools: [now] })).prompt)
    assert.equal(prompt('c', 'a', 'b'), prompt('a', 'b', 'c'), name)
  }
})

test('arguments of any schema are shown, or refused by a sentence about the tools', { skip: missing }, () => {
  const ask = (name: string, parameters: unknown) =>
    prepareConversation(modelNamed(name), {
      model: 'm',
      messages: [{ role: 'user', content: 'a' }],
      tools: [{ type: 'function', function: { name: 'find', parameters } }],
    } as never)
  const open = [
    { type: 'object', additionalProperties: true },
    { $ref: '#/$defs/a', $defs: { a: {} } },
    { properties: [] },
  ]
  for (const parameters of [...open, { type: 'object', properties: { any: true } }])
    ask('ByteDance-Seed-OSS', parameters)
  const refused = (name: string, parameters: unknown, param: string, sentence: RegExp) =>
    assert.throws(
      () => ask(name, parameters),
      (error) => {
        assert.ok(error instanceof ApiError)
        assert.equal(error.param, param)
        assert.match(error.message, sentence)
        return true
      },
    )
  const properties = { any: true }
  refused(
    'GigaChat3-10B-A1.8B',
    { type: 'object', properties },
    'tools',
    /cannot write these tools .* a schema that is an object/,
  )
  for (const wrong of [true, [1]])
    refused(
      'ByteDance-Seed-OSS',
      { properties: wrong },
      'tools.0.function.parameters.properties',
      /must be an object with a schema for each argument/,
    )
})
