// Content, reasoning and tool calls of an answer, however its text is split.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { prepareConversation } from '../../../engine/chat/conversation.ts'
import type { ReplyParser, ReplyPart } from '../../../engine/chat/reply.ts'
import { ask, modelOf, now, type TemplateName, weather } from './chat-models.ts'

interface Reply {
  content: string
  reasoning: string
  calls: { name: string; arguments: string }[]
}

const parserOf = (name: TemplateName, fields: Record<string, unknown> = { tools: [weather, now] }) =>
  prepareConversation(modelOf(name), ask(fields)).createParser

/** Assembles the parts as a client does. Asserts that each call is announced once, in order, with a unique id. */
function assemble(parser: ReplyParser, pieces: readonly string[], cut = false): Reply {
  const reply: Reply = { content: '', reasoning: '', calls: [] }
  const ids = new Set<string>()
  const collect = (part: ReplyPart) => {
    if (part.kind !== 'tool_call') {
      assert.notEqual(part.text, '')
      reply[part.kind] += part.text
      return
    }
    if (part.name !== undefined) {
      assert.equal(part.index, reply.calls.length)
      assert.equal(part.arguments, '')
      assert.match(part.id!, /^call_[a-zA-Z0-9]{24}$/)
      assert.equal(ids.size, ids.add(part.id!).size - 1)
      reply.calls.push({ name: part.name, arguments: '' })
    } else assert.deepEqual([part.index, part.id], [reply.calls.length - 1, undefined])
    reply.calls.at(-1)!.arguments += part.arguments
  }
  for (const piece of pieces) parser.push(piece).forEach(collect)
  parser.finish(cut).forEach(collect)
  assert.equal(parser.calledTools(), reply.calls.length > 0)
  return reply
}

/** Reproducible random numbers. */
function seededNumbers(seed: number): (below: number) => number {
  let state = seed
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

function cutAtRandom(text: string, random: (below: number) => number): string[] {
  const pieces: string[] = []
  for (let at = 0; at < text.length; ) {
    const length = 1 + random(8)
    pieces.push(text.slice(at, at + length))
    at += length
  }
  return pieces
}

/** Parses the text whole, then split at each position, into single characters and at random. */
function everyCut(createParser: () => ReplyParser, text: string, cut = false): Reply {
  const whole = assemble(createParser(), [text], cut)
  const random = seededNumbers(7)
  const cuts = [
    [...Array(text.length + 1).keys()].map((at) => [text.slice(0, at), text.slice(at)]),
    [text.split('')],
  ].flat()
  for (let round = 0; round < 50; round++) cuts.push(cutAtRandom(text, random))
  for (const pieces of cuts) assert.deepEqual(assemble(createParser(), pieces, cut), whole, JSON.stringify(pieces))
  return whole
}

const says = (content: string): Reply => ({ content, reasoning: '', calls: [] })
const paris = { name: 'get_weather', arguments: '{"place": "Par\\"is}</tool_call>"}' }
const hermes = (name: string, text: string) => `<tool_call>\n{"name": "${name}", "arguments": ${text}}\n</tool_call>`

test('a plain answer passes through piece by piece', () => {
  const parser = parserOf('qwen2.5', {})()
  for (const text of [' <tool_call>\n', '{"name"', '\n'])
    assert.deepEqual(parser.push(text), [{ kind: 'content', text }])
  assert.deepEqual([parser.push(''), parser.finish(false), parser.calledTools()], [[], [], false])
})

for (const name of ['qwen2.5', 'smollm2', 'qwen3'] as const) {
  test(`calls between tags are parsed, with the text before the first (${name})`, () => {
    const read = (text: string) => everyCut(parserOf(name, { tools: [weather, now], parallel_tool_calls: true }), text)
    const both = `${hermes(paris.name, paris.arguments)}\n${hermes('now', '{}')}`
    assert.deepEqual(read(both), { ...says(''), calls: [paris, { name: 'now', arguments: '{}' }] })
    assert.deepEqual(read(`I look.\n\n${both} Done.`), {
      ...says('I look.'),
      calls: [paris, { name: 'now', arguments: '{}' }],
    })
    assert.deepEqual(read('a < b <tool and \n\n <tool_call'), says('a < b <tool and \n\n <tool_call'))
    assert.deepEqual(read('a \n'), says('a \n'))
    assert.deepEqual(
      read(`${hermes('unknown', '{}')} b`),
      says(`${hermes('unknown', '{}')} b`),
      'text that is not a call stays text',
    )
  })
}

test('Mistral’s list of calls is parsed', () => {
  const text = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"place": "]["}}, {"name": "now", "arguments": {}}]'
  const calls = [
    { name: 'get_weather', arguments: '{"place": "]["}' },
    { name: 'now', arguments: '{}' },
  ]
  assert.deepEqual(everyCut(parserOf('mistral-nemo'), text), { ...says(''), calls })
  assert.deepEqual(everyCut(parserOf('mistral-nemo'), `Well. ${text}`), { ...says('Well.'), calls })
  assert.deepEqual(everyCut(parserOf('mistral-nemo'), 'A list: [TOOL, [1]'), says('A list: [TOOL, [1]'))
})

test('an answer that is a single call is parsed, and JSON inside other text stays text', () => {
  const text = '{"name": "get_weather", "parameters": {"place": "Rome"}}'
  const calls = [{ name: 'get_weather', arguments: '{"place": "Rome"}' }]
  assert.deepEqual(everyCut(parserOf('llama-like'), text), { ...says(''), calls })
  assert.deepEqual(everyCut(parserOf('llama-like'), `\n${text}\n${text}`), { ...says(''), calls })
  assert.deepEqual(everyCut(parserOf('llama-like'), `So: ${text}`), says(`So: ${text}`))
})

test('calls beyond the allowed number are dropped', () => {
  const two = `${hermes('now', '{}')}\n${hermes('now', '{}')}`
  for (const fields of [
    { parallel_tool_calls: false },
    { tool_choice: { type: 'function', function: { name: 'now' } } },
  ])
    assert.equal(everyCut(parserOf('qwen2.5', { tools: [weather, now], ...fields }), two).calls.length, 1)
})

test('reasoning is separated from the answer, whether the prompt or the model opened it', () => {
  const plain = parserOf('qwen3', {})
  assert.deepEqual(everyCut(plain, '<think>\nOne < two.\n\n</think>\n\n Yes.\n'), {
    content: ' Yes.\n',
    reasoning: 'One < two.',
    calls: [],
  })
  assert.deepEqual(everyCut(plain, '\n<think>\n\n</think>\n\nYes <think>.'), says('Yes <think>.'))
  assert.deepEqual(everyCut(plain, ' <thin air'), says(' <thin air'))
  assert.deepEqual(everyCut(plain, '<think>cut </thi'), { ...says(''), reasoning: 'cut </thi' })
  const begun = parserOf('begun-thoughts', {})
  assert.deepEqual(everyCut(begun, 'Hm.\n</think>\n\nYes.'), { content: 'Yes.', reasoning: 'Hm.', calls: [] })
  assert.deepEqual(everyCut(begun, '<think>\nHm.\n\nWell.'), { ...says(''), reasoning: 'Hm.\n\nWell.' })
  const ended = parserOf('qwen3', { chat_template_kwargs: { enable_thinking: false } })
  assert.deepEqual(everyCut(ended, '<think>x'), says('<think>x'))
  assert.deepEqual(everyCut(parserOf('qwen2.5', {}), '<think>x</think>'), says('<think>x</think>'))
})

test('calls are parsed after the reasoning, not inside it', () => {
  const text = `<think>\nShall I ${hermes('now', '{}')}?\n</think>\n\n${hermes('get_weather', '{}')}`
  const read = everyCut(parserOf('qwen3'), text)
  assert.deepEqual(read, {
    content: '',
    reasoning: `Shall I ${hermes('now', '{}')}?`,
    calls: [{ name: 'get_weather', arguments: '{}' }],
  })
})

test('a truncated answer keeps its text so far and shows no partial tag', () => {
  const cut = (name: TemplateName, text: string) => everyCut(parserOf(name), text, true)
  assert.deepEqual(cut('qwen2.5', 'Well.\n<tool_call>\n{"na'), says('Well.'))
  assert.deepEqual(cut('qwen2.5', hermes('get_weather', '{"place": "Pa').slice(0, -14)), {
    ...says(''),
    calls: [{ name: 'get_weather', arguments: '{"place": "Pa' }],
  })
  assert.deepEqual(cut('mistral-nemo', '[TOOL_CALLS][{"name": "n'), says(''))
  assert.deepEqual(cut('llama-like', '{"name": "get_'), says(''))
  for (const [name, marker] of [
    ['qwen2.5', '<tool_call>'],
    ['smollm2', '<tool_call>'],
    ['mistral-nemo', '[TOOL_CALLS]'],
  ] as const)
    for (let length = 1; length <= marker.length; length++)
      assert.deepEqual(cut(name, `Well.\n${marker.slice(0, length)}`), says('Well.'))
  for (let length = 1; length < 8; length++) {
    assert.deepEqual(cut('qwen3', '<think>'.slice(0, length)), says(''))
    assert.deepEqual(cut('qwen3', `<think>Hm.\n${'</think>'.slice(0, length)}`), { ...says(''), reasoning: 'Hm.' })
  }
})

test('stop sequences end the content, and neither a call nor the thoughts before it', () => {
  const stopping = (name: TemplateName, stop: string | string[], text: string) =>
    everyCut(parserOf(name, { tools: [weather, now], parallel_tool_calls: true, stop }), text)
  const both = `${hermes(paris.name, paris.arguments)}\n${hermes('now', '{}')}`
  const calls = [paris, { name: 'now', arguments: '{}' }]
  for (const stop of ['}', '"', '\n', '{', '<', 'tool', '<tool_call>', 'Paris', [': ', 'arguments']]) {
    assert.deepEqual(stopping('qwen2.5', stop, both), { ...says(''), calls })
    assert.deepEqual(stopping('smollm2', stop, both), { ...says(''), calls })
    assert.deepEqual(stopping('qwen3', stop, `<think>\n} " { <\nPar: is\n</think>\n\n${both}`), {
      content: '',
      reasoning: '} " { <\nPar: is',
      calls,
    })
  }
  assert.deepEqual(stopping('llama-like', '"', '{"name": "now", "parameters": {}}'), {
    ...says(''),
    calls: [{ name: 'now', arguments: '{}' }],
  })
  assert.deepEqual(stopping('mistral-nemo', ', ', '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1, "b": 2}}]'), {
    ...says(''),
    calls: [{ name: 'now', arguments: '{"a": 1, "b": 2}' }],
  })
  assert.deepEqual(stopping('qwen2.5', 'END', `One EN${both}`), { ...says('One EN'), calls })
  assert.deepEqual(stopping('qwen2.5', 'END', `One END two ${both}`), says('One '))
  assert.deepEqual(stopping('qwen2.5', '\n', 'One\n'), says('One'))
  assert.deepEqual(stopping('qwen3', 'wo', '<think>\nTwo.\n</think>\n\nOne, two, three'), {
    ...says('One, t'),
    reasoning: 'Two.',
  })
})

test('a stop sequence is found at the token that ends it', () => {
  const parser = parserOf('qwen2.5', { tools: [weather], stop: ['END', '\n\n'] })()
  assert.deepEqual(parser.push('One E'), [{ kind: 'content', text: 'One ' }])
  assert.deepEqual([parser.push('N'), parser.stopped()], [[], false])
  assert.deepEqual([parser.push('D two'), parser.stopped()], [[], true])
  assert.deepEqual([parser.push(' three'), parser.finish(false)], [[], []])
})

test('an answer without parts leaves its stop sequences to the text', () => {
  const stopOf = (name: TemplateName, fields: Record<string, unknown>) =>
    prepareConversation(modelOf(name), ask({ stop: 'x', ...fields })).stop
  assert.deepEqual(stopOf('qwen2.5', {}), ['x'])
  assert.deepEqual(stopOf('qwen2.5', { tools: [now] }), [])
  assert.deepEqual(stopOf('qwen3', {}), [])
})

test('arguments stream as they are written', () => {
  const parser = parserOf('qwen2.5')()
  parser.push('<tool_call>\n{"name": "get_weather", "arguments": ')
  assert.deepEqual(parser.push('{"place": "P'), [{ kind: 'tool_call', index: 0, arguments: '{"place": "P' }])
})

test('any text parses the same however it is split, and text without a tag is all content', () => {
  const words = [
    '<think>',
    '</think>',
    '<tool_call>',
    '</tool_call>',
    '[TOOL_CALLS][',
    '{"name": "now", "arguments": ',
    '{"name": "now", "parameters": ',
  ]
  const signs = ['{', '}', '[', ']', ', ', '"', '\\', '\n', ' ', 'a', '1', '<', '</', '{"na', '🦊', '\u2028']
  const random = seededNumbers(11)
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({ length: 1 + random(14) }, () =>
      random(2) ? words[random(words.length)] : signs[random(signs.length)],
    ).join('')
    for (const name of ['qwen2.5', 'qwen3', 'mistral-nemo', 'llama-like', 'begun-thoughts'] as const) {
      const createParser = cached(name)
      const whole = assemble(createParser(), [text])
      assert.deepEqual(assemble(createParser(), cutAtRandom(text, random)), whole, `${name}: ${JSON.stringify(text)}`)
      assert.deepEqual(assemble(createParser(), text.split('')), whole, `${name}: ${JSON.stringify(text)}`)
      if (name === 'qwen2.5' && !text.includes('<tool_call>')) assert.deepEqual(whole, says(text))
    }
  }
})

const parsers = new Map<TemplateName, () => ReplyParser>()
function cached(name: TemplateName): () => ReplyParser {
  const createParser = parsers.get(name) ?? parserOf(name)
  parsers.set(name, createParser)
  return createParser
}
