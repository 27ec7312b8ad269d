// Texts that take long where something backtracks, begins again at each character, or recurses; and requests that have
// one of them in one string field.

/** What long texts are made of, after an opening that makes a parser look for an end. */
const pieces: [opening: string, piece: string][] = [
  ['', 'a'],
  ['', ' '],
  ['{{', ' '],
  ['', '{{'],
  ['', '{{item.'],
  ['', '['],
  ['', '{"a":'],
  ['', '('],
  ['', '<'],
  ['<|', '|'],
  ['', '<|im_start|>'],
  ['"', '\\'],
  ['', '/'],
  ['', '../'],
  ['', '\n'],
  ['a', '\n\t'],
  ['', 'a@'],
  ['a@', 'a.'],
  ['', '-'],
  ['', '0'],
  ['', '1.'],
  ['', '%20'],
  ['', '&a=b'],
  ['', '\u0300'],
  ['', '\ud83d\udc69\u200d'],
  ['', '\u202e'],
  ['', 'İ'],
  ['data:image/png;base64,', 'A'],
  ['```json ', '\n'],
  ['^', '(a+)+'],
  ['', '(a|'],
  ['https://', 'a.'],
  ['http://a:', '@'],
]

/** Ends on a character that nothing before it leads to expect. */
export const hostileTexts = (length: number): string[] =>
  pieces.map(([opening, piece]) => `${opening}${piece.repeat(Math.ceil(length / piece.length))}!`)

// biome-ignore lint/suspicious/noExplicitAny: an OpenAPI document
type Schema = Record<string, any>

export interface Operation {
  /** It takes a session of the dashboard, and no key. */
  bySession: boolean
  method: string
  path: string
  parameters: Schema[]
  body: Schema | undefined
}

/** The operations of an OpenAPI description, references resolved as they are met. */
export function operationsOf(document: Schema): Operation[] {
  return Object.entries<Schema>(document.paths).flatMap(([path, methods]) =>
    Object.entries<Schema>(methods).map(([method, { parameters = [], requestBody, security }]) => ({
      method: method.toUpperCase(),
      path,
      parameters,
      body: requestBody?.content?.['application/json']?.schema,
      bySession: security?.[0]?.session !== undefined,
    })),
  )
}

const depthMax = 7

/** Fields that shorten answers, where a body has one: the time of a request is not to be that of its answer. */
const lengthFields = ['max_tokens', 'max_output_tokens']

export function createMaker(document: Schema, known: Record<string, unknown>) {
  const resolve = (schema: Schema): Schema => {
    let found = schema
    while (found.$ref)
      found = found.$ref
        .split('/')
        .slice(1)
        .reduce((at: Schema, name: string) => at[name], document)
    if (!found.allOf) return found
    const parts: Schema[] = found.allOf.map(resolve)
    return {
      ...Object.assign({}, ...parts),
      properties: Object.assign({}, ...parts.map(({ properties }) => properties)),
      required: parts.flatMap(({ required }) => required ?? []),
    }
  }
  const choices = (schema: Schema): Schema[] | undefined => schema.anyOf ?? schema.oneOf

  /** A value that a schema takes, as short as possible. */
  function plain(given: Schema, name = '', depth = 0): unknown {
    const schema = resolve(given)
    if (name in known) return known[name]
    if (schema.enum) return schema.enum[0]
    const [first] = choices(schema) ?? []
    if (first) return plain(first, name, depth + 1)
    switch (schema.type) {
      case 'object':
        return depth > depthMax
          ? {}
          : Object.fromEntries(
              [
                ...(schema.required ?? []),
                ...lengthFields.filter((field) => depth === 0 && schema.properties?.[field]),
              ].map((each: string) => [each, plain(schema.properties?.[each] ?? {}, each, depth + 1)]),
            )
      case 'array':
        return Array.from({ length: Math.max(1, schema.minItems ?? 0) }, () => plain(schema.items ?? {}, '', depth + 1))
      case 'integer':
      case 'number':
        return schema.minimum ?? 1
      case 'boolean':
        return false
      case 'string':
        return 'x'.repeat(Math.max(1, schema.minLength ?? 0))
      default:
        return 'x'
    }
  }

  /** Values that have `text` in one of their string fields each, as a value or as a name. */
  function* withText(given: Schema, text: string, name = '', depth = 0): Generator<unknown> {
    if (depth > depthMax) return
    const schema = resolve(given)
    const branches = choices(schema)
    if (branches) {
      for (const each of branches) yield* withText(each, text, name, depth + 1)
    } else if (schema.type === 'object') {
      const base = plain(schema, name, depth) as object
      for (const [each, inner] of Object.entries<Schema>(schema.properties ?? {}))
        for (const value of withText(inner, text, each, depth + 1)) yield { ...base, [each]: value }
      const more = schema.additionalProperties
      if (typeof more === 'object') {
        yield { ...base, [text]: plain(more, '', depth + 1) }
        for (const value of withText(more, text, '', depth + 1)) yield { ...base, a: value }
      }
    } else if (schema.type === 'array') {
      for (const value of withText(schema.items ?? {}, text, name, depth + 1)) yield [value]
    } else if (schema.type === undefined) {
      yield text
      yield { a: text, [text]: 'a' }
    } else if (schema.type === 'string' && !schema.enum) yield text
  }
  return { plain, withText }
}
