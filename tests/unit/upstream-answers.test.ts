// What of an upstream's answer reaches a client, and what is metered of it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ChatChunk, ChatResponse } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import { createWaitingList } from '../../server/features/serving/replicas/waiting-list.ts'
import { wholeAnswer } from '../../server/features/serving/upstreams/answer.ts'
import { upstreamError } from '../../server/features/serving/upstreams/error.ts'
import { EventReader } from '../../server/features/serving/upstreams/stream.ts'
import { firstByteLimit_ms, Silence, startTimeLimit } from '../../server/features/serving/upstreams/time-limits.ts'
import { allowanceOf } from '../../server/features/serving/upstreams/usage.ts'

type Body = Record<string, unknown>
const messages = [{ role: 'user', content: 'Say something.' }]
const requestFor = (body: Body = {}, kind: 'chat' | 'completion' | 'embedding' = 'chat') => ({
  kind,
  model: 'mine',
  body: { ...(kind === 'chat' && { messages }), max_tokens: 8, ...body },
})
const allowed = (request: ReturnType<typeof requestFor>) => allowanceOf(request, JSON.stringify(request.body), true)
const readerFor = (body: Body = {}, kind: 'chat' | 'completion' = 'chat') => {
  const request = requestFor(body, kind)
  return new EventReader(request, allowed(request))
}
const piece = (fields: object, more: object = {}) =>
  `data: ${JSON.stringify({ id: 'x', model: 'theirs', choices: [{ index: 0, ...fields }], ...more })}\n\n`
const text = (content: string, more: object = {}) => piece({ delta: { content } }, more)
const done = 'data: [DONE]\n\n'
/** What a client reads: its events, and whether [DONE] came. */
function read(out: string) {
  const events = out
    .split('\n\n')
    .filter((event) => event.startsWith('data: ') && event !== 'data: [DONE]')
    .map((event) => JSON.parse(event.slice('data: '.length)))
  const chunks = events.filter(({ choices }) => choices?.length > 0)
  for (const chunk of chunks) if (chunk.object === 'chat.completion.chunk') ChatChunk.parse(chunk)
  return {
    events,
    text: chunks.map(({ choices }) => choices[0].delta?.content ?? choices[0].text ?? '').join(''),
    finish: chunks.map(({ choices }) => choices[0].finish_reason).findLast((each) => each !== null),
    usage: events.at(-1)?.usage,
    error: events.at(-1)?.error,
    isDone: out.endsWith(done),
  }
}
const feed = (reader: ReturnType<typeof readerFor>, ...sent: (string | Buffer)[]) =>
  sent.map((each) => reader.feed(Buffer.from(each))).join('')

test('events are read in any spelling, split anywhere, and get our model name and one id', () => {
  const plain = `{"model":"theirs","choices":[{"index":0,"delta":{"content":"ä"}}]}`
  for (const spelling of [
    `data: ${plain}\n\n`,
    `data:${plain}\r\n\r\n`,
    `event: message\nid: 7\ndata: ${plain}\n\n`,
    `: comment\ndata:${plain}\n\n\n\n`,
    `data: ${plain.replace(',"choices"', ',\ndata: "choices"')}\n\n`,
  ]) {
    const bytes = Buffer.from(text('a') + spelling + done)
    for (let cut = 1; cut < bytes.length; cut += 5) {
      const { events, text: got, isDone } = read(feed(readerFor(), bytes.subarray(0, cut), bytes.subarray(cut)))
      assert.deepEqual([got, isDone], ['aä', true], spelling)
      assert.deepEqual(new Set(events.map(({ model }) => model)), new Set(['mine']))
      assert.equal(new Set(events.map(({ id }) => id)).size, 1)
      assert.notEqual(events[0].id, 'x')
    }
  }
})

test('what a stream has beside one answer does not reach the client', () => {
  const reader = readerFor()
  const stop = piece({ delta: {}, finish_reason: 'eos' })
  const out = feed(
    reader,
    ': ping\n\n',
    text('a'),
    ': ping\n\n',
    piece({ index: 7, delta: { content: 'other' } }),
    text('b', { usage: { prompt_tokens: 3, completion_tokens: 2 } }),
    stop,
    stop,
    text('after the end'),
    'event: noise\n\nno line of SSE\n\n',
    'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'.repeat(2),
    done,
    text('after [DONE]'),
    done,
  )
  const { text: got, finish, usage, isDone, events } = read(out)
  assert.deepEqual([got, finish, isDone, out.split('[DONE]').length], ['ab', 'stop', true, 2])
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [3, 2, 5])
  assert.equal(events.filter((event) => event.usage).length, 1)
  assert.equal(out.split(': keepalive').length, 2, 'only within the answer')
})

test('an event that cannot be read ends the stream with an error of the server, after what came before', () => {
  for (const broken of [
    'data: {"choices":[{"in\n\n',
    'data: [1]\n\n',
    'data: <html>\n\n',
    'data: {"choices":{}}\n\n',
    'data: {"error":{"message":"died\\nhere"}}\n\n',
    'data: {"object":"error","message":"died"}\n\n',
    `data: ${'['.repeat(100_000)}\n\n`,
    `data: ${'x'.repeat(5_000_000)}`,
  ]) {
    const { text: got, error, isDone } = read(feed(readerFor(), text('a'), broken, text('b'), done))
    assert.deepEqual([got, error.code, isDone], ['a', 'upstream_failed', false], broken.slice(0, 50))
    assert.match(error.message, /^[^\n]*$/)
  }
  const bytes = Buffer.from(text('a?b'))
  bytes[bytes.indexOf('?')] = 0xff
  assert.equal(read(feed(readerFor(), bytes, done)).text, 'a\ufffdb', 'what is no UTF-8 is replaced')
})

test('an answer is cut at the length that was asked for, and what is left is not waited for', () => {
  const many = (content: string, count: number) => Array.from({ length: count }, () => text(content))
  for (const [sent, most] of [
    [many('word ', 30), 8 * 5],
    [many('a'.repeat(4000), 1), 8 * 4],
    [many('x', 300), 8 * 4 + 4],
    [many('字', 100), 8 * 3 * 4],
  ] as const) {
    const reader = readerFor()
    const { text: got, finish, usage, isDone } = read(feed(reader, ...sent))
    assert.deepEqual([finish, isDone, reader.hasEnded], ['length', true, true])
    assert.ok(Buffer.byteLength(got) <= most && got.length > 0, `${got.length} of ${most}`)
    assert.ok(usage.completion_tokens > 0 && usage.completion_tokens <= 8, String(usage.completion_tokens))
  }
  const whole = read(feed(readerFor(), ...many('word ', 8), piece({ delta: {}, finish_reason: 'stop' }), done))
  assert.deepEqual([whole.text, whole.finish, whole.usage.completion_tokens], ['word '.repeat(8), 'stop', 8])
  const two = readerFor({ n: 2 })
  const pieces = (index: number) => Array.from({ length: 12 }, () => piece({ index, delta: { content: 'word ' } }))
  feed(two, ...pieces(0))
  assert.ok(!two.hasEnded, 'the other choice is waited for')
  feed(two, ...pieces(1))
  assert.deepEqual([two.hasEnded, two.usage().completion_tokens], [true, 16])
  const calls = readerFor()
  const args = (given: string, name?: string) =>
    piece({ delta: { tool_calls: [{ index: 0, ...(name && { id: 'c' }), function: { name, arguments: given } }] } })
  const call = read(
    feed(calls, args('', 'paint'), ...'{"a": 12}'.match(/../g)!.map((two) => args(two)), args('}'), done),
  )
  assert.equal(call.finish ?? null, null)
})

test('a stream that never ends is ended', () => {
  const reader = readerFor()
  for (let count = 0; count < 12_000 && !reader.hasEnded; count++) feed(reader, piece({ delta: {} }))
  assert.equal(reader.error?.code, 'upstream_failed')
})

test('usage that is impossible is counted here: of streams, of whole answers, and of clients that leave', () => {
  const answer = (usage: unknown) =>
    Buffer.from(
      JSON.stringify({
        model: 'theirs',
        choices: [{ index: 0, message: { role: 'assistant', content: 'twelve bytes' }, finish_reason: 'stop' }],
        usage,
      }),
    )
  const request = requestFor()
  const prompt = allowed(request).prompt_tokens
  assert.ok(prompt > 4 && prompt < 12)
  for (const [sent, expected] of [
    [{ prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } }, [9, 2, 4]],
    [{ prompt_tokens: Number.MAX_SAFE_INTEGER, completion_tokens: Number.MAX_SAFE_INTEGER }, [prompt, 3, 0]],
    [{ prompt_tokens: 9, completion_tokens: 9 }, [9, 3, 0]],
    [{ prompt_tokens: -1, completion_tokens: 1.5 }, [prompt, 3, 0]],
    [{ prompt_tokens: '9', completion_tokens: null, prompt_tokens_details: 7 }, [prompt, 3, 0]],
    [{ prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 10 } }, [9, 2, 0]],
    [{ prompt_tokens: 0, completion_tokens: 0 }, [prompt, 3, 0]],
    ['9', [prompt, 3, 0]],
    [undefined, [prompt, 3, 0]],
  ] as const) {
    const whole = wholeAnswer(answer(sent), request, allowed(request))
    const counts = ({ prompt_tokens, completion_tokens, cached_tokens }: typeof whole.usage) => [
      prompt_tokens,
      completion_tokens,
      cached_tokens,
    ]
    assert.deepEqual(counts(whole.usage), expected, JSON.stringify(sent))
    const told = ChatResponse.parse(JSON.parse(whole.body.toString('utf8'))).usage
    assert.deepEqual([told.prompt_tokens, told.completion_tokens], expected.slice(0, 2))
    const reader = readerFor()
    feed(reader, text('twelve bytes'))
    if (sent !== undefined) feed(reader, `data: ${JSON.stringify({ choices: [], usage: sent })}\n\n`)
    assert.deepEqual(counts(reader.usage()), expected, `streamed: ${JSON.stringify(sent)}`)
  }
  const completion = requestFor({ prompt: ['one', [1, 2, 3]], n: 2 }, 'completion')
  assert.deepEqual(
    [allowed(completion).prompt_tokens, allowed(completion).choices, allowed(completion).choice_tokens_max],
    [4, 4, 8],
  )
  const choices = [0, 1, 2, 3, 3, 9].map((index) => ({ index, text: 'twelve bytes', finish_reason: 'length' }))
  const whole = wholeAnswer(Buffer.from(JSON.stringify({ choices })), completion, allowed(completion))
  assert.deepEqual([whole.usage.prompt_tokens, whole.usage.completion_tokens], [4, 12])
  const embedding = requestFor({ input: ['one', 'two words'] }, 'embedding')
  const data = [0, 1].map((index) => ({ index, embedding: [1] }))
  const vectors = { data, usage: { prompt_tokens: 2 ** 60, total_tokens: -1 } }
  const vector = wholeAnswer(Buffer.from(JSON.stringify(vectors)), embedding, allowed(embedding))
  assert.deepEqual([vector.usage.prompt_tokens, vector.usage.completion_tokens], [4, 0])
  assert.deepEqual(JSON.parse(vector.body.toString('utf8')).usage, { prompt_tokens: 4, total_tokens: 4 })
})

test('a whole answer has the shape of the contract and the length that was asked for', () => {
  const read = (choices: unknown, usage?: unknown) => {
    const request = requestFor()
    const sent = Buffer.from(JSON.stringify({ id: 'x', object: 'other', model: 7, choices, usage }))
    return ChatResponse.parse(JSON.parse(wholeAnswer(sent, request, allowed(request)).body.toString('utf8')))
  }
  const call = { function: { name: 'paint', arguments: { colour: 'red' } } }
  const [choice] = read([{ message: { reasoning: 'hm', content: 4, tool_calls: [call, null] } }]).choices
  assert.deepEqual(choice, {
    index: 0,
    message: {
      role: 'assistant',
      content: null,
      refusal: null,
      reasoning_content: 'hm',
      tool_calls: [{ id: 'call_0', type: 'function', function: { name: 'paint', arguments: '{"colour":"red"}' } }],
    },
    logprobs: null,
    finish_reason: 'stop',
  })
  const long = [{ index: 0, message: { role: 'assistant', content: 'ä'.repeat(500) }, finish_reason: 'stop' }]
  const cut = read(long)
  assert.deepEqual([cut.choices[0]!.message.content, cut.choices[0]!.finish_reason], ['ä'.repeat(16), 'length'])
  const admitted = [{ index: 0, message: { content: 'x'.repeat(100) }, finish_reason: 'stop' }]
  assert.equal(read(admitted, { completion_tokens: 25 }).choices[0]!.message.content, 'x'.repeat(32))
  for (const none of [undefined, [], 'x', [7], [{ index: 9, message: {} }]])
    assert.throws(() => read(none), { code: 'upstream_failed', status: 502 })
})

test('errors of an upstream are errors of the server, except what is about the request itself', () => {
  const error = (status: number, body: unknown, retryAfter?: string) => {
    const text = typeof body === 'string' ? body : JSON.stringify(body)
    return upstreamError(status, text, { body: { messages, top_k: 3 }, retryAfter }).error
  }
  const openai = (message: string, fields: object = {}) => ({ error: { message, ...fields } })
  for (const [status, body, code] of [
    [400, openai('bad'), 'invalid_request'],
    [400, openai('bad', { param: 'messages[0].content' }), 'invalid_request'],
    [400, openai('the maximum context length is 9', { param: 'input_tokens' }), 'context_length_exceeded'],
    [422, { detail: [{ loc: ['body', 'top_k'], msg: 'must be positive' }] }, 'invalid_request'],
    [413, openai('too large'), 'body_too_large'],
    [400, openai('unknown', { param: 'cache_salt' }), 'upstream_failed'],
    [400, openai('no such model', { param: 'model' }), 'upstream_failed'],
    [422, { detail: [{ loc: ['body', 'top_p'], msg: 'not known' }] }, 'upstream_failed'],
    [400, openai('API key not valid'), 'upstream_failed'],
    [400, '<html>Bad Request</html>', 'upstream_failed'],
    [413, '<html>', 'upstream_failed'],
    [400, openai('x', { code: 'hasOwnProperty' }), 'invalid_request'],
    [302, '', 'upstream_failed'],
    [204, '', 'upstream_failed'],
    [401, openai('no'), 'upstream_failed'],
    [402, openai('no'), 'upstream_failed'],
    [404, openai('no such model'), 'upstream_failed'],
    [418, 'teapot', 'upstream_failed'],
    [500, openai('died'), 'upstream_failed'],
    [502, '<html>', 'upstream_failed'],
    [504, '<html>', 'upstream_timeout'],
    [429, openai('busy'), 'overloaded'],
    [503, '', 'engine_unavailable'],
  ] as const) {
    const got = error(status, body)
    assert.deepEqual([status, body, got.code], [status, body, code])
    assert.doesNotMatch(got.message, /html|[\n\r]/i)
    assert.ok(got instanceof ApiError && got.message.length < 700)
  }
  for (const [header, seconds] of [
    ['7', 7],
    ['0', 1],
    ['99999999', 3600],
    [new Date(Date.now() + 30_000).toUTCString(), 30],
    ['soon', undefined],
    ['-5', undefined],
  ] as const) {
    const found = error(503, '', header).details?.retry_after_seconds as number | undefined
    assert.ok(found === seconds || Math.abs(found! - seconds!) <= 1, header)
  }
})

test('waiting requests are served in turns of accounts, the one with the fewest in progress first', () => {
  const list = createWaitingList<{ account_id: string; background: boolean; name: string }>(4)
  const add = (account_id: string, name: string, background = false) => list.add({ account_id, background, name })?.name
  list.begin('a')
  list.begin('a')
  for (const name of ['a1', 'a2', 'a3']) assert.equal(add('a', name), undefined)
  add('b', 'b1', true)
  assert.equal(add('c', 'c1'), 'a3', 'the account with the most gives way')
  assert.equal(add('a', 'a4'), 'a4')
  const names = () => list.inOrder().map(({ name }) => name)
  assert.deepEqual(names(), ['c1', 'a1', 'a2', 'b1'])
  list.end('a')
  list.end('a')
  for (const account of ['c', 'c', 'c']) list.begin(account)
  assert.deepEqual(names(), ['a1', 'a2', 'c1', 'b1'])
})

test('a request has more time for a long prompt and a whole answer, and while its server answers others', async () => {
  const limit = (prompt_tokens: number, stream: boolean) =>
    firstByteLimit_ms(120, { ...allowed(requestFor()), prompt_tokens, choice_tokens_max: 960 }, stream) / 1000
  assert.deepEqual([limit(0, true), limit(2400, true), limit(2400, false)], [120, 240, 480])
  for (const [isAlive, least_ms] of [
    [false, 45],
    [true, 190],
  ] as const) {
    const started = performance.now()
    const { signal } = startTimeLimit(50, () => (isAlive ? performance.now() : 0))
    // The limit's own timer keeps no process alive.
    const alive = setInterval(() => {}, 10)
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    clearInterval(alive)
    const took_ms = performance.now() - started
    assert.ok(signal.reason instanceof Silence && took_ms >= least_ms, `${took_ms} ms`)
  }
})

const call = (index: unknown, more: object) => piece({ delta: { tool_calls: [{ index, ...more }] } })

test('calls of tools are counted by us, however an upstream counts them, and no answer has more than 128', () => {
  const out = feed(
    readerFor({ max_tokens: 4096 }),
    call(4_294_967_294, { id: 'a', function: { name: 'first', arguments: '' } }),
    call(-3, { id: 'b', function: { name: 'second', arguments: '{' } }),
    call(4_294_967_294, { function: { arguments: '{}' } }),
    call(-3, { function: { arguments: '}' } }),
    ...Array.from({ length: 300 }, (_, index) => call(10 + index, { function: { name: 'more', arguments: '{}' } })),
    done,
  )
  const calls = new Map<number, string>()
  for (const { choices } of read(out).events)
    for (const { index, function: made } of choices[0]?.delta.tool_calls ?? [])
      calls.set(index, (calls.get(index) ?? '') + (made.name ?? '') + made.arguments)
  assert.deepEqual([calls.get(0), calls.get(1), calls.get(2)], ['first{}', 'second{}', 'more{}'])
  assert.equal(calls.size, 128)
  assert.ok([...calls.keys()].every((index) => index < 128))

  const many = Array.from({ length: 5000 }, (_, index) => ({
    id: `${index}`,
    function: { name: 'f', arguments: '{}' },
  }))
  const choices = [{ index: 0, message: { content: null, tool_calls: many }, finish_reason: 'stop' }]
  for (const [max_tokens, most] of [
    [4096, 128],
    [4, 44],
  ] as const) {
    const request = requestFor({ max_tokens })
    const { body } = wholeAnswer(Buffer.from(JSON.stringify({ choices })), request, allowed(request))
    const kept = ChatResponse.parse(JSON.parse(body.toString())).choices[0]!.message.tool_calls!
    assert.ok(kept.length > 0 && kept.length <= most, `${kept.length} calls of ${max_tokens} tokens`)
  }
})

test('vectors are numbers, one for each text, in their order; log-probabilities are an object', () => {
  const request = requestFor({ input: ['one', 'two'] }, 'embedding')
  const embed = (data: unknown) => wholeAnswer(Buffer.from(JSON.stringify({ data })), request, allowed(request)).body
  const vectors = [{ embedding: [0.5, 1] }, { index: 1, embedding: 'AAAAPw==' }]
  assert.deepEqual(JSON.parse(embed(vectors).toString()).data, vectors)
  for (const wrong of [
    [],
    [vectors[0]],
    [...vectors, vectors[0]],
    [
      { index: 1, embedding: [1] },
      { index: 0, embedding: [1] },
    ],
    [{ embedding: [1, null] }, vectors[1]],
    [{ embedding: ['1'] }, vectors[1]],
    [{ embedding: 'not base64!' }, vectors[1]],
  ])
    assert.throws(() => embed(wrong), { code: 'upstream_failed' }, JSON.stringify(wrong))
  const chat = requestFor()
  const choices = [{ index: 0, message: { content: 'a' }, logprobs: 'certain' }]
  const { body } = wholeAnswer(Buffer.from(JSON.stringify({ choices })), chat, allowed(chat))
  assert.equal(JSON.parse(body.toString()).choices[0].logprobs, null)
})
