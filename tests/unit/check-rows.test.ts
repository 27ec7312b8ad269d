// Rows in the forms of OpenAI's fine-tuning API: what is taken, and what is wrong with the rest.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import type { Columns } from '../../contract/datasets.ts'
import { root } from '../../lib/root.ts'
import { type CanonicalRow, canonicalOf } from '../../server/features/datasets/canonical.ts'
import { createRowChecker } from '../../server/features/datasets/check-rows.ts'
import { rowMaker } from '../../server/features/datasets/reader/columns.ts'

const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Oslo"}' } }
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
/** The code and the message of the first problem of a row, as an upload reports it. */
async function problemOf(row: object): Promise<[string, string] | undefined> {
  const issue = (await read(JSON.stringify(row))).check.issues[0]
  return issue && [issue.code, issue.message]
}
/** The row with a message replaced. */
const changed = (index: number, message: object) => ({ ...row, messages: row.messages.with(index, message as never) })

test('tools, calls, parts of text, developer messages and weights are taken', async () => {
  assert.equal(await problemOf(row), undefined)
  const ending = changed(2, { ...row.messages[2]!, weight: 1 })
  assert.equal(await problemOf({ ...ending, messages: ending.messages.slice(0, 3) }), undefined)
})

test('a wrong tool or call is reported with its place', async () => {
  const calling = (change: object) => changed(2, { role: 'assistant', tool_calls: [{ ...call, ...change }] })
  const cases: [object, string, RegExp][] = [
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
  for (const [given, code, message] of cases) {
    const problem = await problemOf(given)
    assert.equal(problem?.[0], code, JSON.stringify(problem))
    assert.match(problem![1], message)
  }
})

test('rows of preferences are checked in each of their forms', async () => {
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
  for (const row of good) assert.equal(await problemOf(row), undefined, JSON.stringify(row))
  const bad: [object, string, RegExp][] = [
    [{ ...preferences, non_preferred_output: [] }, 'answer_invalid', /non_preferred_output/],
    [{ ...preferences, input: {} }, 'prompt_missing', /input\.messages/],
    [{ prompt: 'hi', chosen: 'Hello.' }, 'answer_invalid', /rejected/],
    [{ chosen: 'Hello.', rejected: 'What?' }, 'prompt_missing', /prompt/],
    [{ prompt: 'hi', chosen: [{ role: 'user', content: 'x' }], rejected: 'x' }, 'answer_invalid', /chosen/],
    [{ chosen: [...prompt, ...chosen], rejected: [...chosen, ...rejected] }, 'prompts_differ', /prompt/],
    [{ prompt: 'hi', chosen: ' ', rejected: 'What?' }, 'answer_empty', /'chosen' is empty/],
    [{ prompt: 'hi', completion: 'x', label: 'good' }, 'label_invalid', /true.*false/],
    [{ prompt: 'hi' }, 'messages_missing', /messages/],
    [{ prompt, input: 'more', completion: 'x' }, 'prompt_invalid', /'input'/],
  ]
  for (const [row, code, message] of bad) {
    const problem = await problemOf(row)
    assert.deepEqual([problem?.[0], message.test(problem?.[1] ?? '')], [code, true], JSON.stringify([row, problem]))
  }
})

test('a dataset has rows of one kind; rows that fit two are of the kind that all have', async () => {
  const talk = { messages: [row.messages[0], { role: 'assistant', content: 'x' }] }
  const pair = { prompt: 'hi', chosen: 'a', rejected: 'b' }
  const check = async (...rows: object[]) => {
    const checker = createRowChecker()
    await checker.add(Buffer.from(rows.map((row) => `${JSON.stringify(row)}\n`).join('')))
    return checker.end()
  }
  assert.deepEqual((await check(talk, talk)).objectives, ['sft'])
  assert.deepEqual((await check({ ...talk, ...pair }, pair)).objectives, ['dpo'])
  assert.deepEqual((await check({ ...talk, label: true })).objectives, ['sft', 'kto'])
  const rated = (completion: string, label = true) => ({ prompt: 'hi', completion, label })
  assert.equal((await check(rated('a'), rated('a', false))).answers_equal, true, 'kto has nothing to compare')
  assert.equal((await check(rated('a'), rated('b'), rated('a'))).answers_equal, false)
  assert.equal((await check({ ...talk, label: true }, talk)).answers_equal, undefined, 'not all rows are rated')
  const prompt = { messages: [{ role: 'user', content: 'hi' }], answer: 4 }
  assert.deepEqual((await check(prompt, prompt)).objectives, ['reinforcement'])
  const unanswered = await check(talk, prompt)
  assert.deepEqual([unanswered.error_count, unanswered.issues[0]!.code], [1, 'no_answer_at_end'], 'among answered rows')
  const answered = await check(prompt, talk)
  assert.deepEqual([answered.error_count, answered.issues[0]!.code], [1, 'kind_differs'])
  const mixed = await check(talk, pair)
  assert.deepEqual([mixed.error_count, mixed.issues[0]!.line, mixed.issues[0]!.code], [1, 2, 'kind_differs'])
  const same = await check({ ...pair, rejected: 'a' })
  assert.deepEqual(
    same.warnings.map(({ code }) => code),
    ['answers_equal'],
  )
})

/** A table's record in the canonical form, or its problem. */
const ofTable = (record: Record<string, unknown>) => {
  const uploaded = rowMaker(Object.keys(record))!(record)
  const valid = Array.isArray(uploaded) ? uploaded : canonicalOf(uploaded)
  return Array.isArray(valid) ? valid : valid.row
}
const user = (content: string) => ({ role: 'user', content })
const assistant = (content: string) => ({ role: 'assistant', content })

test('tables may have preferences as texts or messages, and labels as numbers', () => {
  assert.deepEqual(ofTable({ prompt: 'hi', chosen: JSON.stringify([assistant('a')]), rejected: 'b' }), {
    prompt: [user('hi')],
    chosen: assistant('a'),
    rejected: assistant('b'),
  })
  for (const [label, expected] of [
    ['TRUE', true],
    [0n, false],
    ['1', true],
  ])
    assert.deepEqual(ofTable({ prompt: 'hi', completion: 'x', label }), {
      messages: [user('hi'), assistant('x')],
      label: expected,
    })
  assert.equal((ofTable({ prompt: 'hi', completion: 'x', label: 'no' }) as string[])[0], 'label_invalid')
})

test('tables may have tools in a column, as JSON or as values without their nulls', async () => {
  const messages = [{ role: 'assistant', content: 'x', tool_calls: null }]
  const read = { messages: [assistant('x')], tools: [tool] }
  assert.deepEqual(ofTable({ messages, tools: JSON.stringify([tool]) }), read)
  assert.deepEqual(ofTable({ messages, tools: [{ ...tool, extra: null }] }), read)
  assert.deepEqual(ofTable({ messages, tools: null }), { messages: read.messages })
  assert.equal((ofTable({ messages, tools: '{' }) as string[])[0], 'invalid_json')
})

/** The check of rows as JSON lines, and the canonical rows that it writes. */
async function read(lines: string, columns?: Columns) {
  const rows: CanonicalRow[] = []
  const checker = createRowChecker({ columns, write: (line) => rows.push(JSON.parse(line)) })
  await checker.add(Buffer.from(lines))
  return { check: await checker.end(), rows }
}
const fixture = (name: string) => readFileSync(path.join(root, 'tests/fixtures/cases', name), 'utf8')

test('null is the same as absent, in every field of a row', async () => {
  const { check, rows } = await read(fixture('nulls.jsonl'))
  assert.deepEqual([check.errors, check.warnings], [[], []])
  const { fields: _, ...row } = rows[0]!
  assert.deepEqual(row, {
    messages: [
      { role: 'user', content: 'When?' },
      { role: 'assistant', content: 'At five.', weight: 0 },
      { role: 'user', content: 'Sure?' },
      { role: 'assistant', content: 'Yes.' },
    ],
  })
  // The schema of a tool's arguments is the uploader's own: null is a value there.
  const parameters = { type: 'object', properties: { unit: { enum: ['km', null] } } }
  const named = { type: 'function', function: { name: 'f', description: null, parameters, strict: null } }
  const noisy = { messages: [user('a'), assistant('b')], tools: [named], chosen: null, label: null, prompt: null }
  assert.deepEqual((await read(JSON.stringify(noisy))).rows[0], {
    messages: noisy.messages,
    tools: [{ type: 'function', function: { name: 'f', parameters } }],
    fields: { chosen: null, label: null, prompt: null },
  })
})

test('reports name the line of the uploaded file, and unknown fields of a row mean nothing', async () => {
  const { check, rows } = await read(`\n${fixture('own-source-line.jsonl')}`)
  assert.deepEqual([check.errors, check.warnings], [[], []])
  assert.deepEqual(
    rows.map(({ line, fields }) => [line, fields]),
    [
      [2, undefined],
      [3, { source_line: 9000 }],
    ],
  )
  const canonical = { line: 7, fields: { messages: 'x' }, weight: 0, messages: [user('a'), assistant('b')] }
  const [row] = (await read(JSON.stringify(canonical))).rows
  assert.deepEqual(row, { messages: canonical.messages, fields: { line: 7, fields: { messages: 'x' }, weight: 0 } })
})

test('each unknown field of a message is a warning with its line, and train: false is obeyed', async () => {
  const { check, rows } = await read(fixture('unknown-fields.jsonl'))
  assert.deepEqual(check.warnings, [
    {
      line: 1,
      code: 'field_unknown',
      message: "messages[3] has the field 'wieght', which nothing reads. Is 'weight' meant?",
    },
  ])
  assert.deepEqual(
    rows[0]!.messages!.map(({ weight }) => weight),
    [undefined, 0, undefined, undefined],
  )
  const quiet = { role: 'assistant', content: 'x', refusal: null, annotations: [], name: 'bot', reasoning: 'Hm.' }
  assert.deepEqual((await read(JSON.stringify({ messages: [user('a'), quiet] }))).check.warnings, [])
  const asked = { role: 'user', content: 'a', reasoning: 'Mine.' }
  assert.equal((await read(JSON.stringify({ messages: [asked, quiet] }))).check.warnings[0]!.code, 'field_unknown')
  const both = { ...quiet, weight: 1, train: false }
  assert.equal((await read(JSON.stringify({ messages: [user('a'), both] }))).check.issues[0]!.code, 'weight_invalid')
})

test('thoughts have one name in the canonical form', async () => {
  const { rows } = await read(fixture('thoughts.jsonl'))
  assert.equal(rows[0]!.messages![1]!.reasoning_content, 'Twelve and thirty are forty-two.')
  assert.equal(rows[1]!.messages![1]!.content, '<think>\nOnly 1 and 7 divide it.\n</think>\n\nYes.')
  for (const name of ['reasoning', 'thinking'])
    assert.deepEqual((await read(JSON.stringify({ messages: [user('a'), { ...assistant('b'), [name]: 'c' }] }))).rows, [
      { messages: [user('a'), { ...assistant('b'), reasoning_content: 'c' }] },
    ])
})

test('a prompt with its answer is a conversation under the usual names, with or without system, input', async () => {
  for (const [prompt, completion] of [
    ['prompt', 'completion'],
    ['instruction', 'output'],
    ['question', 'answer'],
  ] as const) {
    const { check, rows } = await read(
      [
        { [prompt]: 'Add.', [completion]: '3', input: '1 and 2', system: 'Be short.' },
        { [prompt]: 'Hi', [completion]: 'Hello.', input: '', system: null },
        { [prompt]: 'Hi', [completion]: ' ' },
        { [prompt]: 7, [completion]: true },
      ]
        .map((row) => JSON.stringify(row))
        .join('\n'),
    )
    assert.deepEqual(
      rows.map(({ messages }) => messages),
      [
        [{ role: 'system', content: 'Be short.' }, user('Add.\n\n1 and 2'), assistant('3')],
        [user('Hi'), assistant('Hello.')],
        [user('7'), assistant('true')],
      ],
    )
    assert.deepEqual(check.errors, [`line 3: '${completion}' is empty; an answer to learn needs text.`])
  }
  const { check, rows } = await read(fixture('prompt-completion.jsonl'))
  assert.deepEqual([check.errors, check.objectives, rows.length], [[], ['sft'], 2])
  const talk = { prompt: [user('a'), assistant('b'), user('c')], completion: [assistant('d')] }
  assert.deepEqual((await read(JSON.stringify(talk))).rows[0]!.messages, [
    user('a'),
    { ...assistant('b'), weight: 0 },
    user('c'),
    assistant('d'),
  ])
})

test('a pair may have an input, and its prompt any of the usual names', async () => {
  const { check, rows } = await read(fixture('pair-with-input.jsonl'))
  assert.deepEqual([check.errors, check.objectives, rows.length], [[], ['dpo'], 4])
  assert.deepEqual(rows[1]!.prompt, [user('Question 1 about the kiosk?')])
  const named = { system: 'Be short.', question: 'a', input: 'b', chosen: 'c', rejected: 'd' }
  assert.deepEqual((await read(JSON.stringify(named))).rows[0]!.prompt, [
    { role: 'system', content: 'Be short.' },
    user('a\n\nb'),
  ])
})

test('columns of other names are read as the uploader says, and the rest is not', async () => {
  const columns = { prompt: 'Frage', completion: 'Antwort' }
  const record = { Frage: 'Wann?', Antwort: 'Um fünf.', prompt: 'x', system: 'y', label: true }
  const { check, rows } = await read(JSON.stringify(record), columns)
  assert.deepEqual(check.errors, [])
  assert.deepEqual(rows, [{ messages: [user('Wann?'), assistant('Um fünf.')], fields: record }])
  const empty = await read(JSON.stringify({ Frage: 'Wann?', Antwort: '' }), columns)
  assert.deepEqual(empty.check.errors, ["line 1: 'Antwort' is empty; an answer to learn needs text."])
})

test('halves of characters are errors wherever the trainer would read them', async () => {
  const half = '\ud800'
  const calling = (text: string, id = 'c') => ({
    role: 'assistant',
    content: '',
    tool_calls: [{ id, type: 'function', function: { name: 'f', arguments: text } }],
  })
  for (const messages of [
    [user(half), assistant('b')],
    [user('a'), { ...assistant('b'), reasoning_content: half }],
    [user('a'), calling(JSON.stringify({ a: half }))],
    [user('a'), calling('{}', half)],
  ])
    assert.equal((await read(JSON.stringify({ messages }))).check.error_count, 1, JSON.stringify(messages))
  const offered = { type: 'function', function: { name: 'f', parameters: { [half]: 1 } } }
  assert.ok(await problemOf({ messages: [user('a'), assistant('b')], tools: [offered] }))
})
