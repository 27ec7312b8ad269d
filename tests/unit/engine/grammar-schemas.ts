// Schemas that use every supported keyword.
import { ApiError } from '../../../contract/errors.ts'

export const object = (properties: Record<string, unknown>, more: Record<string, unknown> = {}) => ({
  type: 'object',
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
  ...more,
})

export const enforced: Record<string, Record<string, unknown>> = {
  anything: {},
  'any object': { type: 'object' },
  'any array': { type: 'array' },
  'a string alone': { type: 'string' },
  'a number alone': { type: 'number' },
  'types in a list': object({
    a: { type: ['string', 'null'] },
    b: { type: ['integer', 'boolean'] },
    c: { type: ['array', 'null'], items: { type: 'null' } },
  }),
  'integers between bounds': object({
    a: { type: 'integer', minimum: 2 },
    b: { type: 'integer', maximum: -7 },
    c: { type: 'integer', minimum: -12, maximum: 105 },
    d: { type: 'integer', exclusiveMinimum: 98, exclusiveMaximum: 1002 },
    e: { type: 'integer', minimum: 0.5, maximum: 3.5 },
    f: { type: 'integer', minimum: -9007199254740991, maximum: 9007199254740991 },
    g: { type: 'integer', minimum: 17, maximum: 17 },
  }),
  'numbers between bounds': object({
    a: { type: 'number', minimum: -2.5, exclusiveMaximum: 3.25 },
    b: { type: 'number', exclusiveMinimum: 0, exclusiveMaximum: 1 },
    c: { type: 'number', minimum: 0.125, maximum: 0.13 },
    d: { type: 'number', maximum: -0.5 },
    e: { type: 'number', minimum: 10 },
    f: { type: 'number', exclusiveMinimum: 3, exclusiveMaximum: 5 },
    g: { type: 'number', minimum: 1e-7, maximum: 2e-7 },
    h: { type: 'number', minimum: -180, maximum: 180 },
  }),
  'bounded strings': object({
    a: { type: 'string', maxLength: 3 },
    b: { type: 'string', minLength: 2 },
    c: { type: 'string', minLength: 2, maxLength: 6 },
  }),
  'names that need escapes': object({
    'a"b': { type: 'integer' },
    'c\\d': { type: 'null' },
    'e\nf': { type: 'boolean' },
    'g/h': { type: 'null' },
    é漢: { type: 'null' },
    '': { type: 'null' },
  }),
  'values in a list': object({
    a: { enum: ['x', 'y"z', 'k/l\n', 5, 1.5, null, true, { b: [1, { c: 2 }], d: 'e' }, [], {}] },
    b: { const: 'only' },
    c: { type: ['string', 'null'], enum: ['p', null, 3] },
  }),
  'optional properties': {
    type: 'object',
    properties: Object.fromEntries(Array.from({ length: 12 }, (_, index) => [`p${index}`, { type: 'integer' }])),
    required: ['p4', 'p9'],
  },
  'only optional properties': {
    properties: { a: { type: 'integer' }, b: { type: 'boolean' } },
    additionalProperties: false,
  },
  'other properties of a type': {
    type: 'object',
    properties: { name: { type: 'integer' }, nam: { type: 'boolean' }, 'né"w': { type: 'null' } },
    required: ['name'],
    additionalProperties: { type: 'string', maxLength: 4 },
  },
  'a record': { type: 'object', propertyNames: { type: 'string' }, additionalProperties: { type: 'integer' } },
  'required without being named': {
    type: 'object',
    properties: { a: { type: 'null' } },
    required: ['b'],
    additionalProperties: { type: 'integer' },
  },
  arrays: object({
    a: { type: 'array', items: { type: 'integer' }, minItems: 2, maxItems: 4 },
    b: { type: 'array', items: { type: 'boolean' }, maxItems: 1 },
    c: { type: 'array', maxItems: 0 },
    d: { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'null' }], items: false },
    e: { type: 'array', prefixItems: [{ type: 'integer' }], items: { type: 'boolean' }, minItems: 3, maxItems: 5 },
    f: { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'null' }], maxItems: 1 },
    g: { type: 'array', items: false },
    h: { type: 'array', prefixItems: [{ const: 1 }], minItems: 2 },
  }),
  alternatives: {
    type: 'array',
    minItems: 2,
    items: { anyOf: [{ type: 'integer', minimum: 100 }, object({ a: { type: 'null' } }), { enum: ['x'] }, false] },
  },
  'cases that are apart': {
    type: 'array',
    minItems: 3,
    items: {
      oneOf: [{ $ref: '#/$defs/cat' }, { $ref: '#/$defs/dog' }, { type: 'integer' }, { type: ['string', 'null'] }],
      discriminator: { propertyName: 'kind' },
    },
    $defs: {
      cat: object({ kind: { const: 'cat' }, lives: { type: 'integer', maximum: 9 } }),
      dog: object({ kind: { enum: ['dog', 'hound'] }, name: { type: 'string' } }),
    },
  },
  'a schema in itself': {
    $ref: '#/$defs/node',
    $defs: {
      node: object({
        value: { type: 'integer' },
        next: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] },
        more: { allOf: [{ $ref: '#/definitions/a~1b%25' }] },
      }),
    },
    definitions: {
      'a/b%': {
        type: 'boolean',
        title: 'Odd',
        description: 'A name that is escaped.',
        default: true,
        examples: [true],
      },
    },
  },
  'long strings': object({ a: { type: 'string', minLength: 130, maxLength: 150 } }),
}

for (const format of ['date', 'time', 'date-time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid', 'uri'])
  enforced[`the format ${format}`] = { type: 'string', format }

const patterns = [
  '^[A-Z]{2}-[0-9]{4,6}$',
  '^(foo|ba[rz])?$|^\\d+\\.\\d{2}$',
  '^[^a-z@]{1,3}$',
  '^"q\\\\\\n\\t"$',
  '^[\\w+-]{1,4}@\\S\\.é$',
  '^.{2,3}$',
  '^(?:a|b(?<n>c))*\\u0041\\x42$',
  '^[^é-ü]{2}$',
]
for (const pattern of patterns) enforced[`the pattern ${pattern}`] = object({ a: { type: 'string', pattern } })

export const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
}

/** For assert.rejects: the schema cannot be enforced, because of the part at this JSON pointer if one is given. */
export const refused = (path?: string) => (error: unknown) =>
  error instanceof ApiError &&
  error.code === 'schema_not_enforceable' &&
  (path === undefined || error.details?.path === path)
