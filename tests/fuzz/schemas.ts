// JSON schemas for structured output and tools: good ones, unenforceable ones, and ones made to exhaust resources.
import { deep, edgeCase } from './odd.ts'
import type { Draw } from './random.ts'

type Schema = Record<string, unknown>

const good: Schema[] = [
  {
    type: 'object',
    properties: { a: { type: 'string' }, b: { type: 'integer' } },
    required: ['a', 'b'],
    additionalProperties: false,
  },
  { type: 'object', properties: { kind: { enum: ['x', 'y', null, 3, 'ü"\\'] } }, required: ['kind'] },
  { type: 'array', items: { type: 'number' }, minItems: 1, maxItems: 3 },
  { anyOf: [{ type: 'string', maxLength: 5 }, { type: 'boolean' }, { const: { a: [1] } }] },
  {
    $ref: '#/$defs/node',
    $defs: { node: { type: 'object', properties: { next: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] } } } },
  },
  { type: 'string', format: 'date-time' },
  { type: 'integer', minimum: -5, maximum: 12 },
  { type: 'object' },
  {},
]

const nested = (depth: number, inner: Schema = { type: 'string' }): Schema => {
  let nested = inner
  for (let level = 0; level < depth; level++) nested = { type: 'object', properties: { a: nested }, required: ['a'] }
  return nested
}
const wide = (count: number, required: boolean): Schema => {
  const names = Array.from({ length: count }, (_, index) => `field_${index}`)
  return {
    type: 'object',
    properties: Object.fromEntries(names.map((name) => [name, { type: 'string' }])),
    ...(required && { required: names }),
  }
}
const doubling = (depth: number): Schema => ({
  $ref: '#/$defs/l0',
  $defs: Object.fromEntries(
    Array.from({ length: depth }, (_, level) => [
      `l${level}`,
      level === depth - 1
        ? { type: 'null' }
        : { anyOf: [{ $ref: `#/$defs/l${level + 1}` }, { $ref: `#/$defs/l${level + 1}` }] },
    ]),
  ),
})

const hostile: (() => Schema)[] = [
  () => nested(60),
  () => nested(3000),
  () => wide(150, true),
  () => wide(5000, false),
  () => doubling(12),
  () => doubling(40),
  () => ({ $ref: '#' }),
  () => ({ $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } }),
  () => ({ $ref: 'https://example.com/schema.json' }),
  () => ({ $ref: '#/$defs/missing' }),
  () => ({ $ref: '#/__proto__' }),
  () => ({ type: 'string', pattern: '^(a+)+$' }),
  () => ({ type: 'string', pattern: '(((((x{1,99}){1,99}){1,99}){1,99}){1,99})' }),
  () => ({ type: 'string', pattern: '[' }),
  () => ({ type: 'string', pattern: `${'(a|b|'.repeat(200)}c${')'.repeat(200)}` }),
  () => ({ type: 'string', minLength: 1e9, maxLength: 1e9 }),
  () => ({ type: 'string', minLength: 10, maxLength: 5 }),
  () => ({ type: 'array', items: { type: 'array', items: { type: 'string' }, minItems: 1e6 }, minItems: 1e6 }),
  () => ({ type: 'array', uniqueItems: true, items: { type: 'integer' } }),
  () => ({ type: 'integer', minimum: -1e300, maximum: 1e300, multipleOf: 1e-300 }),
  () => ({ type: 'integer', minimum: 5, maximum: 4 }),
  () => ({ enum: Array.from({ length: 20_000 }, (_, index) => `value ${index}`) }),
  () => ({ enum: [] }),
  () => ({ enum: ['a'.repeat(100_000)] }),
  () => ({ not: {} }),
  () => ({ allOf: Array.from({ length: 300 }, () => ({ anyOf: good })) }),
  () => ({ oneOf: [{}, {}] }),
  () => JSON.parse('{"if":{"type":"string"},"then":false,"else":true}'),
  () => ({ type: ['string', 'null', 'whatever'] }),
  () => ({ type: 'frobnicate' }),
  () =>
    JSON.parse(
      '{"type":"object","properties":{"__proto__":{"type":"string"},"constructor":{"type":"string"}},' +
        '"required":["__proto__"]}',
    ),
  () => ({ type: 'object', patternProperties: { '^(.*)*$': { type: 'string' } } }),
  () => ({ type: 'object', properties: { '\ud800': { type: 'string' }, '"\\\n': {}, '': {} }, required: [''] }),
  () => ({ type: 'object', required: ['not_there'], additionalProperties: false }),
  () => ({ type: 'object', additionalProperties: { $ref: '#' }, minProperties: 1e9 }),
  () => ({ const: deep(2000) }),
  () => ({ dependentSchemas: { a: { $ref: '#' } }, unevaluatedProperties: false }),
]

export function schema(draw: Draw): unknown {
  if (draw.chance(0.4)) return draw.pick(good)
  return draw.chance(0.85) ? draw.pick(hostile)() : edgeCase(draw)
}

export function responseFormat(draw: Draw): unknown {
  if (draw.chance(0.2))
    return draw.pick([
      { type: 'text' },
      { type: 'json_object' },
      { type: 'grammar', grammar: 'root ::= root' },
      { type: 'json_schema' },
    ])
  return {
    type: 'json_schema',
    json_schema: { name: draw.chance(0.9) ? 'answer' : edgeCase(draw), strict: draw.chance(0.7), schema: schema(draw) },
  }
}

export function tools(draw: Draw): object {
  const names = ['get_weather', 'get_time', 'x', 'a-b_C9']
  const count = draw.chance(0.9) ? draw.int(1, 4) : draw.pick([0, 128, 129])
  const requests = Array.from({ length: count }, (_, index) => ({
    type: 'function',
    function: {
      name: draw.chance(0.95) ? `${draw.pick(names)}${count > 4 ? index : ''}` : edgeCase(draw),
      ...(draw.chance(0.6) && { description: draw.chance(0.9) ? 'Does something.' : edgeCase(draw) }),
      ...(draw.chance(0.9) && { parameters: schema(draw) }),
      ...(draw.chance(0.4) && { strict: draw.chance(0.5) }),
    },
  }))
  const choices = [
    'auto',
    'none',
    'required',
    null,
    { type: 'function', function: { name: 'get_weather' } },
    { type: 'function', function: { name: 'nobody' } },
  ]
  return {
    tools: requests,
    ...(draw.chance(0.8) && { tool_choice: draw.pick(choices) }),
    ...(draw.chance(0.3) && { parallel_tool_calls: draw.chance(0.5) }),
  }
}
