// Prompts and answer grammars of chat requests, with the templates of published models.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ApiError } from '../../../contract/errors.ts'
import { prepareConversation, renderChat } from '../../../engine/chat/conversation.ts'
import { stripMarkers } from '../../../engine/tokenizer/tokenizer.ts'
import { full } from '../../support/full.ts'
import { ask, call, history, modelOf, now, place, type TemplateName, weather } from './chat-models.ts'

const prompt = (name: TemplateName, fields: Record<string, unknown> = {}) =>
  stripMarkers(prepareConversation(modelOf(name), ask(fields)).prompt)
function format(name: TemplateName, fields: Record<string, unknown>) {
  const { grammar } = prepareConversation(modelOf(name), ask(fields))
  assert.equal(grammar?.kind, 'structural_tag')
  // biome-ignore lint/suspicious/noExplicitAny: read as the JSON that it becomes
  return (grammar as any).tag.format
}
function refused(name: TemplateName, fields: Record<string, unknown>, code: string, param: string, message = /./) {
  assert.throws(
    () => prepareConversation(modelOf(name), ask(fields)),
    (error) => {
      assert.ok(error instanceof ApiError)
      assert.deepEqual([error.code, error.param], [code, param])
      assert.match(error.message, message)
      return true
    },
  )
}

test('a picture of Gemma stands between empty lines, and a written mark is text', () => {
  const base = modelOf('smollm2')
  const mark = { token: 99, text: '<start_of_image>', control: true, lstrip: false, rstrip: false }
  const template = (written: string) =>
    "{% for message in messages %}{{ message['role'] }}\n{% if message['content'] is string %}{{ " +
    "message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ " +
    `'${written}' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}`
  const content = [
    { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
    { type: 'text', text: 'Is <start_of_image> a mark?' },
  ]
  const vocab = { ...base.vocab, special_tokens: [...base.vocab.special_tokens, mark] }
  const shown = (written: string) => {
    const model = { ...base, chat_template: template(written), vocab }
    const conversation = prepareConversation(model, ask({ messages: [{ role: 'user', content }] }), true)
    return [stripMarkers(conversation.prompt), conversation.pictures.marker]
  }
  const end = 'Is <start_of_image> a mark?'
  assert.deepEqual(shown('<start_of_image>'), [`user\n\n\n<start_of_image>\n\n${end}`, [99]])
  assert.deepEqual(shown('<|im_start|>')[0], `user\n<|im_start|>${end}`, 'the mark of another family')
})

const qwenTools = `# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "get_weather", "description": "The weather of a place", "parameters": \
{"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"], "additionalProperties": false}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
`
const qwenHistory = `<|im_start|>user
Weather in Paris and Rome?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"place": "Paris"}}
</tool_call>
<tool_call>
{"name": "get_weather", "arguments": {"place": "Rome"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
Sun
</tool_response>
<tool_response>
Rain
</tool_response><|im_end|>
<|im_start|>assistant
`

test('Qwen’s templates render tools, calls and results in the trained format', () => {
  const fields = { messages: history, tools: [weather] }
  assert.equal(
    prompt('qwen2.5', fields),
    `<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n` +
      `${qwenTools}${qwenHistory}`,
  )
  assert.equal(prompt('qwen3', fields), `<|im_start|>system\n${qwenTools}${qwenHistory}`)
})

test('Mistral’s template gets valid call ids, the same for a call and its result', () => {
  const text = prompt('mistral-nemo', { messages: history, tools: [weather, now] })
  const ids = [...text.matchAll(/"(?:id|call_id)": "([a-zA-Z0-9]*)"/g)].map(([, id]) => id!)
  assert.equal(ids.length, 4)
  for (const id of ids) assert.match(id, /^[a-zA-Z0-9]{9}$/)
  assert.notEqual(ids[0], ids[1])
  assert.deepEqual(ids.slice(2), ids.slice(0, 2))
  assert.ok(text.startsWith('<s>[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "get_weather"'))
  assert.ok(text.includes(`[TOOL_CALLS][{"name": "get_weather", "arguments": {"place": "Paris"}, "id": "${ids[0]}"}, `))
  assert.ok(text.endsWith(`[TOOL_RESULTS]{"content": Rain, "call_id": "${ids[1]}"}[/TOOL_RESULTS]`))
  const nine = [
    { role: 'user', content: 'a' },
    { role: 'assistant', tool_calls: [call('abcDEF123', 'Paris')] },
    { role: 'tool', tool_call_id: 'abcDEF123', content: 'b' },
  ]
  assert.ok(prompt('mistral-nemo', { messages: nine }).includes('"id": "abcDEF123"'), 'a valid id stays')
})

test('a template that allows one call per message gets each call with its result', () => {
  const text = prompt('llama-like', { messages: history })
  const head = (role: string) => `<|start_header_id|>${role}<|end_header_id|>\n\n`
  const turn = (where: string, result: string) =>
    `${head('assistant')}{"name": "get_weather", "parameters": {"place": "${where}"}}<|eot_id|>` +
    `${head('ipython')}${result}<|eot_id|>`
  assert.equal(
    text,
    `<s>${head('user')}Weather in Paris and Rome?<|eot_id|>` +
      `${turn('Paris', 'Sun')}${turn('Rome', 'Rain')}${head('assistant')}`,
  )
})

const described = `You can call tools. Each line between <tools> and </tools> describes one of them as JSON, \
with the schema of its arguments:
<tools>
{"name":"now","description":"","parameters":{"type":"object","properties":{}}}
</tools>
To call a tool, write exactly this, with the name of the tool and a JSON object of its arguments:
<tool_call>
{"name": "the name", "arguments": {"an argument": "its value"}}
</tool_call>
The results then come between <tool_response> and </tool_response>. Where no tool is needed, answer in plain text.`

test('a template without tools gets them in a system message, and calls as text', () => {
  const messages = [{ role: 'developer', content: 'Be brief.' }, ...history, { role: 'user', content: 'Thanks' }]
  assert.equal(
    prompt('smollm2', { messages, tools: [now] }),
    `<|im_start|>system
Be brief.

${described}<|im_end|>
<|im_start|>user
Weather in Paris and Rome?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"place":"Paris"}}
</tool_call>
<tool_call>
{"name": "get_weather", "arguments": {"place":"Rome"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
Sun
</tool_response>
<tool_response>
Rain
</tool_response>

Thanks<|im_end|>
<|im_start|>assistant
`,
  )
  assert.ok(
    prompt('smollm2', { tools: [now] }).startsWith(`<|im_start|>system\n${described}<|im_end|>\n<|im_start|>user\n`),
  )
})

test('a template without a system role gets the tools in the user message', () => {
  assert.equal(
    prompt('no-system', { tools: [now] }),
    `<s><turn>user\n${described}\n\nWeather in Paris?</turn>\n<turn>assistant\n`,
  )
  refused(
    'no-system',
    {
      messages: [
        { role: 'system', content: 'a' },
        { role: 'user', content: 'b' },
      ],
      tools: [now],
    },
    'invalid_request',
    'messages',
    /No system/,
  )
})

test('tool_choice none leaves tools out of the prompt, with every template', () => {
  for (const name of ['qwen2.5', 'qwen3', 'mistral-nemo', 'smollm2', 'llama-like'] as const) {
    assert.equal(prompt(name, { tools: [weather], tool_choice: 'none' }), prompt(name))
    assert.equal(prepareConversation(modelOf(name), ask({ tools: [weather], tool_choice: 'none' })).grammar, null)
  }
})

test('developer becomes system, parts are joined, and template code in messages stays text', () => {
  const hostile = '{{ messages }}{% for i in range(9) %}{{ raise_exception("x") }}'
  const text = [
    { type: 'text', text: 'a' },
    { type: 'text', text: hostile },
  ]
  const expected =
    `<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na${hostile}<|im_end|>\n` +
    '<|im_start|>assistant\nno<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n'
  const messages = [
    { role: 'developer', content: 'S' },
    { role: 'user', content: text },
    { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] },
    { role: 'user', content: 'b' },
  ]
  assert.equal(prompt('smollm2', { messages }), expected)
  assert.equal(
    stripMarkers(renderChat(modelOf('smollm2'), ask({ messages }).messages)),
    expected,
    'scoring and answering use the same prompt',
  )
})

test('earlier reasoning reaches only templates that render it', () => {
  const messages = [
    { role: 'user', content: 'a' },
    { role: 'assistant', content: null, reasoning_content: 'SECRET', tool_calls: [call('1', 'Rome')] },
    { role: 'tool', tool_call_id: '1', content: 'b' },
  ]
  assert.ok(prompt('qwen3', { messages }).includes('<think>\nSECRET\n</think>\n\n<tool_call>'))
  assert.ok(!prompt('qwen2.5', { messages }).includes('SECRET'))
})

test('an image for a text model and a result without a call are rejected with their path', () => {
  const image = [
    { role: 'user', content: 'a' },
    { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] },
  ]
  refused('qwen2.5', { messages: image }, 'parameter_not_supported', 'messages.1.content', /reads text only/)
  refused(
    'qwen2.5',
    { messages: [...history, { role: 'tool', tool_call_id: 'call_9', content: 'x' }] },
    'invalid_request',
    'messages.4.tool_call_id',
    /call_9/,
  )
})

test('a tool_choice that contradicts the tools is rejected', () => {
  const named = { type: 'function', function: { name: 'other' } }
  refused(
    'qwen2.5',
    { tools: [weather], tool_choice: named },
    'invalid_request',
    'tool_choice.function.name',
    /'other'/,
  )
  const allowed = { type: 'allowed_tools', allowed_tools: { mode: 'auto', tools: [now, named] } }
  refused(
    'qwen2.5',
    { tools: [weather, now], tool_choice: allowed },
    'invalid_request',
    'tool_choice.allowed_tools.tools',
    /'other'/,
  )
  refused('qwen2.5', { tool_choice: 'required' }, 'invalid_request', 'tool_choice')
  refused('qwen2.5', { tools: [], tool_choice: named }, 'invalid_request', 'tool_choice')
  refused('qwen2.5', { tools: [weather, now, weather] }, 'invalid_request', 'tools.2.function.name', /Two tools/)
  const text = { type: 'function', function: { name: 'a', parameters: { type: 'string' } } }
  refused('qwen2.5', { tools: [text] }, 'invalid_request', 'tools.0.function.parameters')
  refused(
    'llama-like',
    { tools: [weather], response_format: { type: 'json_object' } },
    'parameter_not_supported',
    'response_format',
  )
  refused(
    'qwen2.5',
    { response_format: { type: 'json_schema', json_schema: { name: 'a' } } },
    'invalid_request',
    'response_format.json_schema.schema',
  )
})

test('chat_template_kwargs reach the template, cannot set reserved names, and are bounded in size', () => {
  assert.ok(prompt('qwen3', { chat_template_kwargs: { enable_thinking: false } }).endsWith('<think>\n\n</think>\n\n'))
  for (const name of ['messages', 'tools', 'add_generation_prompt', 'bos_token', 'eos_token', 'range', '__proto__.x'])
    refused('qwen3', { chat_template_kwargs: { [name]: [] } }, 'invalid_request', `chat_template_kwargs.${name}`)
  let deep: unknown = 1
  for (let level = 0; level < 50_000; level++) deep = [deep]
  for (const kwargs of [{ a: 1e9 }, { a: 'x'.repeat(70_000) }, { a: Array(3000).fill(0) }, { a: deep }])
    refused('qwen3', { chat_template_kwargs: kwargs }, 'invalid_request', 'chat_template_kwargs')
  refused(
    'qwen3',
    { tools: [{ type: 'function', function: { name: 'a', parameters: { properties: { deep } } } }] },
    'invalid_request',
    'tools',
  )
})

test('a template that does not end, or grows without end, is refused soon', () => {
  const grown = (from: string, step: string) =>
    `{% set s = namespace(x=${from}) %}{% for i in range(99) %}{% set s.x = ${step} %}{% endfor %}`
  for (const [source, why] of [
    ['{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}', /takes more than 2 s/],
    ['{% for i in range(10 ** 9) %}{% endfor %}', /counts to 1000000000/],
    ['{% for i in range(0, -10 ** 9, -1) %}{% endfor %}', /counts to 1000000000/],
    [grown('"ab"', 's.x ~ s.x'), /too large/],
    [grown('[1]', 's.x + s.x'), /too large/],
    [grown('[1]', 's.x.extend(s.x) or s.x'), /too large/],
    // Little memory, and text without end.
    ...(full.skip ? [] : [[`${grown('1', '[s.x, s.x]')}{{ s.x|tojson }}`, /takes more than 2 s/] as const]),
  ] as const) {
    const model = { ...modelOf('smollm2'), chat_template: source }
    // What a model's template is, is learned once: the next request is refused at once.
    for (const cpu_ms of [4_000, 100]) {
      const began = process.threadCpuUsage()
      assert.throws(() => prepareConversation(model, ask()), why)
      assert.ok(process.threadCpuUsage(began).user / 1000 < cpu_ms, source)
    }
  }
})

const qwenCall = {
  type: 'tag',
  begin: '<tool_call>\n{"name": "get_weather", "arguments": ',
  content: { type: 'json_schema', json_schema: place },
  end: '}\n</tool_call>',
}

test('the grammar of an answer follows from tool_choice and parallel_tool_calls', () => {
  const none = {
    ...qwenCall,
    begin: qwenCall.begin.replace('get_weather', 'now'),
    content: { type: 'json_schema', json_schema: { type: 'object', properties: {}, additionalProperties: false } },
  }
  const tools = [weather, now]
  const auto = {
    type: 'triggered_tags',
    triggers: ['<tool_call>'],
    tags: [qwenCall, none],
    at_least_one: false,
    stop_after_first: false,
  }
  assert.deepEqual(format('qwen2.5', { tools }), auto)
  // A model not trained on calls makes one call, unless parallel calls are requested.
  assert.deepEqual(format('smollm2', { tools, tool_choice: null }), { ...auto, stop_after_first: true })
  assert.deepEqual(format('smollm2', { tools, parallel_tool_calls: true }), auto)
  assert.deepEqual(format('qwen2.5', { tools, tool_choice: 'required' }), {
    type: 'tags_with_separator',
    tags: [qwenCall, none],
    separator: '\n',
    at_least_one: true,
    stop_after_first: false,
  })
  assert.deepEqual(format('qwen2.5', { tools, tool_choice: 'required', parallel_tool_calls: false }), {
    type: 'or',
    elements: [qwenCall, none],
  })
  // Allowed tools are those that may be called; all are shown, as with any choice.
  const allowed = (mode: string) => ({
    tools,
    tool_choice: {
      type: 'allowed_tools',
      allowed_tools: { mode, tools: [{ type: 'function', function: { name: 'now' } }] },
    },
  })
  assert.deepEqual(format('qwen2.5', allowed('auto')), { ...auto, tags: [none] })
  assert.deepEqual(format('qwen2.5', allowed('required')), format('qwen2.5', { tools: [now], tool_choice: 'required' }))
  assert.equal(prompt('qwen2.5', allowed('required')), prompt('qwen2.5', { tools }))
  assert.deepEqual(
    format('qwen2.5', { tools, tool_choice: { type: 'function', function: { name: 'get_weather' } } }),
    qwenCall,
  )
  const mistral = format('mistral-nemo', { tools })
  assert.deepEqual(
    [mistral.triggers, mistral.tags[0].begin, mistral.tags[0].end, mistral.tags[0].content.separator],
    [['[TOOL_CALLS]'], '[TOOL_CALLS][', ']', ', '],
  )
  assert.deepEqual(prepareConversation(modelOf('mistral-nemo'), ask({ tools })).control_texts, ['[TOOL_CALLS]'])
})

test('arguments whose schema can’t be enforced may be any object, unless the tool is strict', () => {
  const properties = Object.fromEntries(Array.from({ length: 6000 }, (_, index) => [`p${index}`, {}]))
  const tool = (strict: boolean) => ({
    type: 'function',
    function: { name: 'a', strict, parameters: { type: 'object', properties } },
  })
  const { content } = format('qwen2.5', { tools: [tool(false)], tool_choice: 'required', parallel_tool_calls: false })
  assert.deepEqual(content, { type: 'json_schema', json_schema: { type: 'object', additionalProperties: true } })
  const large = (name: string, length: number) => ({
    type: 'function',
    function: { name, parameters: { ...place, description: 'x'.repeat(length) } },
  })
  const { tags } = format('qwen2.5', { tools: [large('a', 30_000), large('b', 60_000), large('c', 20_000)] })
  const lengths = tags.map(
    (tag: { content: { json_schema: { description?: string } } }) => tag.content.json_schema.description?.length,
  )
  assert.deepEqual(lengths, [30_000, undefined, 20_000], 'the largest schema is relaxed first')
  refused('qwen2.5', { tools: [now, tool(true)] }, 'schema_not_enforceable', 'tools.1.function.parameters')
  const response_format = { type: 'json_schema', json_schema: { name: 'a', schema: { type: 'object', properties } } }
  refused('qwen2.5', { response_format }, 'schema_not_enforceable', 'response_format.json_schema.schema')
})

test('response_format constrains the answer, is an alternative to tool calls, and may follow reasoning', () => {
  const response_format = { type: 'json_schema', json_schema: { name: 'a', schema: place, strict: true } }
  assert.deepEqual(prepareConversation(modelOf('qwen2.5'), ask({ response_format })).grammar, {
    kind: 'json_schema',
    schema: place,
  })
  assert.deepEqual(prepareConversation(modelOf('qwen2.5'), ask({ response_format: { type: 'json_object' } })).grammar, {
    kind: 'json_object',
  })
  assert.equal(prepareConversation(modelOf('qwen3'), ask({ response_format: { type: 'text' } })).grammar, null)
  const value = { type: 'json_schema', json_schema: place }
  assert.deepEqual(format('qwen2.5', { response_format, tools: [weather], parallel_tool_calls: false }), {
    type: 'or',
    elements: [value, qwenCall],
  })
  const thoughts = (begin: string) => [
    { type: 'tag', begin, content: { type: 'any_text' }, end: '</think>' },
    { type: 'const_string', value: '\n\n' },
  ]
  const perhaps = {
    type: 'or',
    elements: [
      { type: 'sequence', elements: thoughts('<think>') },
      { type: 'regex', pattern: '()' },
    ],
  }
  assert.deepEqual(format('qwen3', { response_format }), { type: 'sequence', elements: [perhaps, value] })
  assert.deepEqual(format('begun-thoughts', { response_format }), {
    type: 'sequence',
    elements: [...thoughts(''), value],
  })
  const ended = prepareConversation(
    modelOf('qwen3'),
    ask({ response_format, chat_template_kwargs: { enable_thinking: false } }),
  )
  assert.deepEqual(ended.grammar, { kind: 'json_schema', schema: place })
})
