// The generated part of the client library: types of every request and response, and the table of operations.
import { compile, type JSONSchema } from 'json-schema-to-typescript'
import { z } from 'zod'
import { ChatChunk } from '../../contract/chat.ts'
import { CompletionResponse } from '../../contract/completions.ts'
import { itemSchemas } from '../../contract/lists.ts'
import type { Route } from '../../contract/route.ts'
import { bodyOf, contractNames } from '../../server/platform/http/schema-names.ts'
import { type Resources, resources } from './sdk-resources.ts'

type Json = Record<string, unknown>

const note = '// Written by `npm run docs` from the contract. Do not edit.\n'

interface Operation {
  route: Route
  /** Such as ['chat', 'completions', 'create']. */
  path: string[]
}

/** Every operation of the client library. */
export function operationsOf(tree: Resources = resources, path: string[] = []): Operation[] {
  return Object.entries(tree).flatMap(([name, each]) =>
    'method' in each && typeof each.method === 'string'
      ? [{ route: each as Route, path: [...path, name] }]
      : operationsOf(each as Resources, [...path, name]),
  )
}

/** What is sent besides the path: one object, or nothing. */
function inputOf(route: Route): { schema: z.core.$ZodType; in: 'query' | 'body' | 'form' } | undefined {
  if (route.form) return { schema: route.form, in: 'form' }
  const body = bodyOf(route)
  if (body && route.query) throw new Error(`${route.method} ${route.path} has a query and a body`)
  if (body) return { schema: body, in: 'body' }
  return route.query && { schema: route.query, in: 'query' }
}

/** How a response is read. */
function kindOf(route: Route): 'page' | 'list' | 'lines' | 'events' | 'file' | 'json' {
  if (route.produces === 'application/x-ndjson') return 'lines'
  if (route.produces === 'application/octet-stream') return 'file'
  if (route.produces === 'text/event-stream' || route.path === '/responses') return 'events'
  const shape = z.toJSONSchema(successOf(route), { unrepresentable: 'any' }).properties ?? {}
  if ('items' in shape && 'has_more' in shape) return 'page'
  return route.method === 'GET' && 'data' in shape && 'has_more' in shape ? 'list' : 'json'
}

const successOf = (route: Route) => Object.values(route.responses)[0]!
const pascal = (words: string[]) => words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('')

/** JSON schemas by name; a reference is written `#/definitions/NAME`. */
function schemasOf(named: Map<z.core.$ZodType, string>, io: 'input' | 'output'): Map<string, Json> {
  const registry = z.registry<{ id: string }>()
  for (const [schema, id] of named) registry.add(schema as never, { id })
  const { schemas } = z.toJSONSchema(registry, {
    io,
    uri: (id) => `#/definitions/${id}`,
    unrepresentable: 'any',
    // A list describes its items inline; here they have their name.
    override({ zodSchema, jsonSchema }) {
      const item = itemSchemas.get(zodSchema)
      if (item && named.has(item)) jsonSchema.items = { $ref: `#/definitions/${named.get(item)}` }
    },
  }) as { schemas: Record<string, Json> }
  return new Map(Object.entries(schemas).map(([id, schema]) => [id, clean(schema) as Json]))
}

/** Leaves out what changes no type, and the descriptions of defaults that a client need not repeat. */
function clean(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(clean)
  if (typeof value !== 'object' || value === null) return value
  const ignored = ['$schema', '$id', 'id', 'pattern', 'minimum', 'maximum', 'minLength', 'maxLength', 'format']
  const { oneOf, minItems: _, maxItems: __, ...rest } = value as Json
  // The generator reads tuples as JSON Schema wrote them before 2020.
  if (Array.isArray(rest.prefixItems)) {
    const items = rest.prefixItems.map(clean)
    const { prefixItems: _prefixItems, items: others = false, ...described } = rest
    return { ...described, items, minItems: items.length, maxItems: items.length, additionalItems: clean(others) }
  }
  // The generator would make a second type of a reference that has a description beside it.
  if (rest.$ref && Object.keys(rest).length > 1)
    return { allOf: [{ $ref: rest.$ref }], ...(rest.description ? { description: rest.description } : {}) }
  return Object.fromEntries(
    Object.entries({ ...rest, ...(oneOf ? { anyOf: oneOf } : {}) })
      .filter(([name, each]) => !(ignored.includes(name) && typeof each !== 'object'))
      .map(([name, each]) => [name, clean(each)]),
  )
}

/** Names that a schema refers to. */
const referencesIn = (schema: Json) =>
  [...JSON.stringify(schema).matchAll(/"#\/definitions\/(\w+)"/g)].map(([, name]) => name!)

/** `types.ts` and `operations.ts`, by name. */
export async function sdkFiles(): Promise<Record<string, string>> {
  const operations = operationsOf()
  const { schemas: outputs } = await contractNames()
  const inputs = new Map(outputs)
  for (const { route, path } of operations) {
    const response = successOf(route)
    if (!outputs.has(response)) outputs.set(response, `${pascal(path)}Response`)
    const input = inputOf(route)
    if (input && !inputs.has(input.schema))
      inputs.set(input.schema, `${pascal(path)}${{ query: 'Query', body: 'Body', form: 'Fields' }[input.in]}`)
  }
  const outputSchemas = schemasOf(outputs, 'output')
  const inputSchemas = schemasOf(inputs, 'input')

  // A schema that reads otherwise in requests has a name of its own there.
  const differs = (name: string, seen: string[] = []): boolean => {
    if (seen.includes(name)) return false
    const [input, output] = [inputSchemas.get(name)!, outputSchemas.get(name)]
    if (!output) return false
    const strict = (schema: Json) => JSON.stringify(schema).replaceAll(/,?"additionalProperties":false/g, '')
    return strict(input) !== strict(output) || referencesIn(input).some((each) => differs(each, [...seen, name]))
  }
  const inputName = (name: string) => (outputSchemas.has(name) && differs(name) ? `${name}Input` : name)

  const used = new Map<string, Json>()
  /** Names of the types that a request has, and maybe also a response. */
  const sent = new Set<string>()
  function send(name: string): string {
    if (!sent.has(name)) {
      sent.add(name)
      for (const each of referencesIn(used.get(name)!)) send(each)
    }
    return name
  }
  function use(name: string, from: Map<string, Json>, rename: (name: string) => string): string {
    const own = rename(name)
    if (used.has(own)) return own
    const text = JSON.stringify(from.get(name)).replaceAll(
      /"#\/definitions\/(\w+)"/g,
      (_, each) => `"#/definitions/${rename(each)}"`,
    )
    used.set(own, JSON.parse(text) as Json)
    for (const each of referencesIn(from.get(name)!)) use(each, from, rename)
    return own
  }
  const output = (schema: z.core.$ZodType) => use(outputs.get(schema)!, outputSchemas, (name) => name)
  const input = (schema: z.core.$ZodType) => send(use(inputs.get(schema)!, inputSchemas, inputName))
  const item = (schema: z.core.$ZodType, list: string) => {
    const lists = outputSchemas.get(outputs.get(schema)!)!.properties as Record<string, { items: Json }>
    const [name] = referencesIn({ $ref: lists[list]!.items.$ref })
    return name ? use(name, outputSchemas, (each) => each) : `${output(schema)}['${list}'][number]`
  }

  const signatures = operations.map((operation) => ({
    ...operation,
    text: signature(operation.route, { output, input, item }),
  }))
  output(ChatChunk)
  const types = await compile(
    {
      title: 'All',
      type: 'object',
      properties: Object.fromEntries([...used.keys()].map((name) => [name, { $ref: `#/definitions/${name}` }])),
      definitions: Object.fromEntries(used),
    } as JSONSchema,
    'All',
    {
      additionalProperties: false,
      bannerComment: '',
      unreachableDefinitions: true,
      style: { semi: false, singleQuote: true, printWidth: 120, objectWrap: 'collapse', bracketSpacing: true },
    },
  )
  return {
    'sdk/generated/types.ts': `${note}\n${filled(withUndefined(withoutNotes(types), sent))}\n`,
    'sdk/generated/operations.ts': operationsModule(signatures),
  }
}

/**
 * Without the type of all types, the notes which say that it refers to each, and lengths that tuples have by their
 * type. A comment without a line break stands on one line.
 */
const withoutNotes = (types: string) =>
  types
    .replace(/export interface All \{[\s\S]*?\n\}\n/, '')
    .replace(/^\/\*\*\n \* This interface was referenced by[^/]*? \*\/\n/gm, '')
    .replace(/^ \*\n \* This interface was referenced by[^/]*?(?= \*\/)/gm, '')
    .replace(/^ *\*\n *\* @minItems.*\n *\* @maxItems.*\n/gm, '')
    .replace(/^( *)\/\*\*\n *\* (.*)\n *\*\/$/gm, '$1/** $2 */')
    .trim()

/** Types of requests take `undefined` for what may be left out: the client leaves it out. */
const withUndefined = (types: string, sent: Set<string>) =>
  types
    .split(/^(?=export )/m)
    .map((text) => (sent.has(/^export \w+ (\w+)/.exec(text)?.[1] ?? '') ? withUndefinedMembers(text) : text))
    .join('')

/** Adds it to the last line of each optional member: those that follow are indented more, or close a bracket. */
function withUndefinedMembers(text: string): string {
  const lines = text.split('\n')
  const whole = [...lines]
  for (const [index, line] of lines.entries()) {
    const indentation = /^( +)\w+\?:/.exec(line)?.[1]
    if (indentation === undefined) continue
    const belongs = new RegExp(`^${indentation}[ })\\]]`)
    let last = index
    while (belongs.test(lines[last + 1]!)) last++
    whole[last] += ' | undefined'
  }
  return whole.join('\n')
}

const columns = 120

/** With as few lines as fit: a comment before its member, members of a union beside each other. */
function filled(types: string): string {
  const lines: string[] = []
  for (const line of types.split('\n')) {
    const last = lines.at(-1)
    const [, indentation = '', rest = ''] = /^( *)(.*)/.exec(line)!
    const joined = `${last} ${rest}`
    const follows =
      last !== undefined &&
      joined.length <= columns &&
      (new RegExp(`^${indentation}/\\*\\* .* \\*/$`).test(last)
        ? /^\w+\??: /.test(rest)
        : /^\| [^{}()[\]]*$/.test(rest) && new RegExp(`^${indentation}\\| [^{}()[\\]]*$`).test(last))
    if (follows) lines[lines.length - 1] = joined
    else lines.push(line)
  }
  return lines.join('\n')
}

interface Names {
  output(schema: z.core.$ZodType): string
  input(schema: z.core.$ZodType): string
  /** The type of the items of a list in a response. */
  item(schema: z.core.$ZodType, list: string): string
}

const pathParams = (route: Route) => [...route.path.matchAll(/\{(\w+)\*?\}/g)].map(([, name]) => name!)

/** The type of an operation's method. */
function signature(route: Route, names: Names): string {
  const params = pathParams(route).map((name) => `${name}: string`)
  const input = inputOf(route)
  const optional = input && z.safeParse(input.schema, input.in === 'query' ? {} : undefined).success
  if (input?.in === 'form') params.push('file: FileInput')
  const mayBeLeftOut = input && (optional || input.in === 'form')
  const typed = input && `${input.in}${mayBeLeftOut ? '?' : ''}: T.${names.input(input.schema)}`
  const rest = (text: string | undefined) => [...params, ...(text ? [text] : []), 'options?: RequestOptions'].join(', ')
  const kind = kindOf(route)
  const response = () => `T.${names.output(successOf(route))}`
  const item = (list: string) => `T.${names.item(successOf(route), list)}`
  if (kind === 'events' && input) {
    const body = `T.${names.input(input.schema)}`
    const event =
      successOf(route) === CompletionResponse
        ? response()
        : route.path === '/responses'
          ? 'ResponseEvent'
          : 'T.ChatChunk'
    return [
      '{',
      `  (${rest(`body: ${body} & { stream: true }`)}): Promise<EventStream<${event}>>`,
      `  (${rest(`body: ${body} & { stream?: false | null }`)}): Promise<${response()}>`,
      `  (${rest(`body: ${body}`)}): Promise<${response()} | EventStream<${event}>>`,
      '}',
    ].join('\n')
  }
  const returned = {
    page: () => `PagePromise<${item('items')}>`,
    list: () => `PagePromise<${item('data')}>`,
    lines: () => `AsyncGenerator<${response()}, void, undefined>`,
    file: () => 'Promise<FileResponse>',
    json: () => `Promise<${response()}>`,
    events: () => '',
  }[kind]()
  return `(${rest(typed)}) => ${returned}`
}

const indent = (text: string) => text.replace(/^(?=.)/gm, '  ')

function operationsModule(operations: { route: Route; path: string[]; text: string }[]): string {
  type Leaf = (operation: (typeof operations)[number]) => string
  const tree = (prefix: string[], end: string, leaf: Leaf): string => {
    const inside = operations.filter(({ path }) => prefix.every((name, index) => path[index] === name))
    const heads = [...new Set(inside.map(({ path }) => path[prefix.length]!))]
    const lines = heads.map((head) => {
      const found = inside.find(({ path }) => path.length === prefix.length + 1 && path[prefix.length] === head)
      return `${found ? leaf(found) : `${head}: ${tree([...prefix, head], end, leaf)}`}${end}\n`
    })
    const short = `{ ${lines.join('').trim().replaceAll('\n', ' ').replace(/,$/, '')} }`
    return end === ',' && short.length <= columns - 20 ? short : `{\n${indent(lines.join(''))}}`
  }
  const address = ({ path }: Route) => path.replace('*}', '}')
  const interfaces = tree(
    [],
    '',
    ({ route, path, text }) =>
      `/** ${route.summary}. \`${route.method} ${address(route)}\` */\n${path.at(-1)}: ${text}`,
  )
  const table = tree([], ',', ({ route, path }) => {
    const input = inputOf(route)?.in
    const form = input === 'form' && `form:${route.file_part ?? 'file'}`
    const flags = [kindOf(route), form || input].filter((flag) => flag && flag !== 'json')
    return `${path.at(-1)}: '${[route.method, address(route), ...flags].join(' ')}'`
  })
  return `${note}
import type { EventStream, FileInput, FileResponse, PagePromise, RequestOptions, ResponseEvent } from '../types.ts'
import type * as T from './types.ts'

export interface Operations ${interfaces}

/** Method, path, how the response is read, and where the last argument goes. */
export const operations = ${table}
`
}
