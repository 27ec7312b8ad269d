// Rows in the forms of OpenAI's fine-tuning API: what is taken, and what is wrong with the rest.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rowMaker } from '../../server/datasets/reader/columns.ts'
import { createRowChecker, rowProblem } from '../../server/datasets/rows.ts'

const call = {
  id: 'call_1',
  type: 'function',
  function: { name: 'weather', arguments: '{"city":"Oslo"}' },
}
const tool = { type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } }
const row = {
  messages: [
    { role: 'developer', content: [{ type: 'text', text: 'Be short.' }] },
    { role: 'user', content: 'Weather?', name: 'ann' },
    { role: 'assistant', content: null, tool_calls: [call], weight: 0 },
    { role: 'tool', tool_call_id: 'call_1', content: '12 degrees' },
    { role: 'assistant', content: 'Mild.' },
  ],
  tools: [tool],
  parallel_tool_calls: false,
}
/** The row with a message replaced. */
const changed = (index: number, message: object) => ({ ...row, messages: row.messages.with(index, message as never) })

test('tools, calls, parts of text, developer messages and weights are taken', () => {
  assert.equal(rowProblem(row), undefined)
  const ending = changed(2, { ...row.messages[2]!, weight: 1 })
  assert.equal(rowProblem({ ...ending, messages: ending.messages.slice(0, 3) }), undefined)
})

test('a wrong tool or call is reported with its place', () => {
  const calling = (change: object) => changed(2, { role: 'assistant', tool_calls: [{ ...call, ...change }] })
  const found: [object, string, RegExp][] = [
    [calling({ id: '' }), 'call_invalid', /messages\[2\]\.tool_calls\[0\]\.id/],
    [calling({ type: 'custom' }), 'call_invalid', /\.type/],
    [
      calling({ function: { name: 'weather', arguments: { city: 'Oslo' } } }),
      'call_invalid',
      /arguments must be a JSON/,
    ],
    [calling({ function: { name: 'weather', arguments: 'Oslo' } }), 'call_invalid', /arguments must be a JSON/],
    [changed(1, { role: 'user', content: 'hi', tool_calls: [call] }), 'calls_invalid', /messages\[1\]\.tool_calls/],
    [changed(3, { role: 'tool', tool_call_id: 'call_2', content: '' }), 'call_unknown', /messages\[3\]/],
    [changed(2, { role: 'assistant', content: null }), 'content_not_text', /messages\[2\]\.content/],
    [changed(1, { role: 'user', content: [{ type: 'image_url' }] }), 'picture_invalid', /messages\[1\]\.content\[0\]/],
    [changed(2, { role: 'assistant', function_call: {} }), 'functions_outdated', /tool_calls/],
    [{ ...row, tools: {} }, 'tools_invalid', /list/],
    [{ ...row, tools: [{ type: 'function' }] }, 'tools_invalid', /tools\[0\]/],
  ]
  for (const [given, code, message] of found) {
    const problem = rowProblem(given)
    assert.equal(problem?.[0], code, JSON.stringify(problem))
    assert.match(problem![1], message)
  }
})

test('rows of preferences are checked in each of their forms', () => {
  const preferences = {
    input: { messages: [{ role: 'user', content: 'hi' }], tools: [] },
    preferred_output: [{ role: 'assistant', content: 'Hello.' }],
    non_preferred_output: [{ role: 'assistant', content: 'What?' }],
  }
  const { input, preferred_output: chosen, non_preferred_output: rejected } = preferences
  const prompt = input.messages
  const good: object[] = [
    preferences,
    { prompt: 'hi', chosen: 'Hello.', rejected: 'What?' },
    { system: 'Be short.', prompt: 'hi', chosen, rejected },
    { prompt, chosen, rejected },
    { chosen: [...prompt, ...chosen], rejected: [...prompt, ...rejected] },
    { prompt: 'hi', completion: 'Hello.', label: true },
    { prompt, completion: chosen, label: false },
    { messages: [...prompt, ...chosen], label: false },
    { messages: [...prompt, ...chosen], label: 'a field that nothing reads' },
  ]
  for (const row of good) assert.equal(rowProblem(row), undefined, JSON.stringify(row))
  const bad: [object, string, RegExp][] = [
    [{ ...preferences, non_preferred_output: [] }, 'answer_invalid', /non_preferred_output/],
    [{ ...preferences, input: {} }, 'prompt_missing', /input\.messages/],
    [{ prompt: 'hi', chosen: 'Hello.' }, 'answer_invalid', /rejected/],
    [{ chosen: 'Hello.', rejected: 'What?' }, 'prompt_missing', /prompt/],
    [{ prompt: 'hi', chosen: [{ role: 'user', content: 'x' }], rejected: 'x' }, 'answer_invalid', /chosen/],
    [{ chosen: [...prompt, ...chosen], rejected: [...chosen, ...rejected] }, 'prompts_differ', /prompt/],
    [{ prompt: 'hi', chosen: ' ', rejected: 'What?' }, 'answer_empty', /chosen\[0\]/],
    [{ prompt: 'hi', completion: 'x', label: 'good' }, 'label_invalid', /true.*false/],
    [{ prompt: 'hi', completion: 'x' }, 'messages_missing', /messages/],
  ]
  for (const [row, code, message] of bad) {
    const problem = rowProblem(row)
    assert.deepEqual([problem?.[0], message.test(problem?.[1] ?? '')], [code, true], JSON.stringify([row, problem]))
  }
})

test('a dataset has rows of one kind; rows that fit two are of the kind that all have', async () => {
  const talk = { messages: [row.messages[0], { role: 'assistant', content: 'x' }] }
  const pair = { prompt: 'hi', chosen: 'a', rejected: 'b' }
  const check = async (...rows: object[]) => {
    const checker = createRowChecker()
    await checker.add(Buffer.from(rows.map((each) => `${JSON.stringify(each)}\n`).join('')))
    return checker.end()
  }
  assert.deepEqual((await check(talk, talk)).objectives, ['sft'])
  assert.deepEqual((await check({ ...talk, ...pair }, pair)).objectives, ['dpo'])
  assert.deepEqual((await check({ ...talk, label: true })).objectives, ['sft', 'kto'])
  const mixed = await check(talk, pair)
  assert.deepEqual([mixed.error_count, mixed.issues[0]!.line, mixed.issues[0]!.code], [1, 2, 'kind_differs'])
  const same = await check({ ...pair, rejected: 'a' })
  assert.deepEqual(
    same.warnings.map(({ code }) => code),
    ['answers_equal'],
  )
})

test('tables may have preferences as texts or messages, and labels as numbers', () => {
  const make = rowMaker(['prompt', 'chosen', 'rejected'])!
  const answer = [{ role: 'assistant', content: 'a' }]
  assert.deepEqual(make({ prompt: 'hi', chosen: JSON.stringify(answer), rejected: 'b' }), {
    prompt: 'hi',
    chosen: answer,
    rejected: 'b',
  })
  const rated = rowMaker(['prompt', 'completion', 'label'])!
  for (const [label, expected] of [
    ['TRUE', true],
    [0n, false],
    ['1', true],
    ['no', 'no'],
  ])
    assert.deepEqual(rated({ prompt: 'hi', completion: 'x', label }), {
      prompt: 'hi',
      completion: 'x',
      label: expected,
    })
})

test('tables may have tools in a column, as JSON or as values without their nulls', () => {
  const make = rowMaker(['messages', 'tools'])!
  const messages = [{ role: 'assistant', content: 'x', tool_calls: null }]
  const read = { messages: [{ role: 'assistant', content: 'x' }], tools: [tool] }
  assert.deepEqual(make({ messages, tools: JSON.stringify([tool]) }), read)
  assert.deepEqual(make({ messages, tools: [{ ...tool, extra: null }] }), read)
  assert.deepEqual(make({ messages, tools: null }), { messages: read.messages })
  assert.equal((make({ messages, tools: '{' }) as string[])[0], 'invalid_json')
})
