// Rows in the forms of OpenAI's fine-tuning API: what is taken, and what is wrong with the rest.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rowMaker } from '../../server/datasets/reader/columns.ts'
import { rowProblem } from '../../server/datasets/rows.ts'

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
    [changed(1, { role: 'user', content: [{ type: 'image_url' }] }), 'content_not_text', /messages\[1\]/],
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

test('a row of preferences is checked, and is not one to learn an answer from', () => {
  const preferences = {
    input: { messages: [{ role: 'user', content: 'hi' }], tools: [] },
    preferred_output: [{ role: 'assistant', content: 'Hello.' }],
    non_preferred_output: [{ role: 'assistant', content: 'What?' }],
  }
  assert.equal(rowProblem(preferences)?.[0], 'preference_row')
  assert.equal(rowProblem({ ...preferences, non_preferred_output: [] })?.[0], 'preference_invalid')
  assert.equal(rowProblem({ ...preferences, input: {} })?.[0], 'preference_invalid')
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
