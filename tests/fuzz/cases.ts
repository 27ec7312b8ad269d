// One test case: a valid body, one with a few mutations, or mangled bytes.
import { body, type Path, paths } from './bodies.ts'
import { edgeCase, stringify } from './odd.ts'
import { type Draw, draw } from './random.ts'

export interface Case {
  number: number
  path: Path
  headers: Record<string, string>
  bytes: Buffer
  /** Whether the body requests a stream. */
  stream: boolean
}

type Position = { holder: Record<string | number, unknown>; key: string | number }

/** All positions in a value that can be mutated, up to a depth. */
function positions(value: unknown, depth = 0): Position[] {
  if (typeof value !== 'object' || value === null || depth > 8) return []
  const holder = value as Record<string, unknown>
  const keys = Array.isArray(value) ? [...value.slice(0, 20).keys()] : Object.keys(value).slice(0, 40)
  return keys.flatMap((key) => [{ holder, key }, ...positions(holder[key as string], depth + 1)])
}

const hugeFields = (draw: Draw) => {
  const name = draw.pick([
    'max_tokens',
    'n',
    'seed',
    'temperature',
    'top_k',
    'logprobs',
    'top_logprobs',
    'dimensions',
    'prompt',
    'messages',
    'input',
    'tools',
    'stop',
    'model',
    'requests',
    'stream',
  ])
  return { [name]: edgeCase(draw) }
}

function mutate(value: Record<string, unknown>, draw: Draw): void {
  const places = positions(value)
  if (places.length === 0) return
  const { holder, key } = draw.pick(places)
  switch (draw.int(0, 4)) {
    case 0:
      if (Array.isArray(holder)) holder.splice(Number(key), 1)
      else delete holder[key]
      break
    case 1:
      Object.assign(value, hugeFields(draw))
      break
    case 2: {
      const now = holder[key]
      // Change the type of the value.
      holder[key] =
        typeof now === 'number' ? String(now) : typeof now === 'string' ? [now] : Array.isArray(now) ? now[0] : [now]
      break
    }
    default:
      holder[key] = edgeCase(draw)
  }
}

/** Limits the answer's length, as a mutation may have removed the limit or set a large one. */
function keepShort(value: Record<string, unknown>): void {
  const long = (limit: unknown) =>
    limit === undefined || limit === null || (Number.isInteger(limit) && Number(limit) > 8 && Number(limit) <= 4096)
  if (long(value.max_tokens)) value.max_tokens = 8
  if (value.max_completion_tokens !== undefined && long(value.max_completion_tokens)) value.max_completion_tokens = 8
  if (Array.isArray(value.requests))
    for (const request of value.requests)
      if (typeof request === 'object' && request !== null && !Array.isArray(request)) keepShort(request)
}

/** Bytes that no JSON serializer would write. */
function mangle(text: string, draw: Draw): Buffer {
  const cut = draw.int(0, text.length)
  switch (draw.int(0, 9)) {
    case 0:
      return Buffer.from(text.slice(0, cut))
    case 1:
      return Buffer.from(
        text.replace('{', '{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}},'),
      )
    case 2:
      return Buffer.from(text.replace('{', `{"model":"other","max_tokens":"x","stream":${draw.chance(0.5)},`))
    case 3:
      return Buffer.concat([
        Buffer.from(text.slice(0, cut)),
        Buffer.from([0xff, 0xfe, 0xc0, 0x80]),
        Buffer.from(text.slice(cut)),
      ])
    case 4:
      return Buffer.from(Array.from({ length: draw.int(0, 400) }, () => draw.int(0, 255)))
    case 5:
      return Buffer.from(`﻿${text}`)
    case 6:
      return Buffer.from(text, 'utf16le')
    case 7:
      return Buffer.from('['.repeat(draw.pick([10, 10_000, 1_000_000])))
    case 8:
      return Buffer.from(`${text}${text}`)
    default:
      return Buffer.from(
        draw.pick([
          '',
          'null',
          '0',
          '"x"',
          '[]',
          '{}',
          'true',
          '{"model":}',
          "{'model':1}",
          `"${'\\ud800'.repeat(100)}"`,
        ]),
      )
  }
}

export function makeCase(seed: number, number: number, models: { text: string; embedding: string }): Case {
  const random = draw(seed, number)
  const path = random.pick(paths)
  const request = body(path, random, path === '/embeddings' ? models.embedding : models.text)
  const kind = random.next()
  // Some stay valid: these must be answered despite all the invalid ones.
  if (kind > 0.3) for (let count = random.int(1, 3); count > 0; count--) mutate(request, random)
  if (path !== '/embeddings') keepShort(request)
  const text = stringify(request)
  const bytes = kind > 0.85 ? mangle(text, random) : Buffer.from(text)
  const types = [
    'text/plain',
    'application/x-www-form-urlencoded',
    'multipart/form-data; boundary=x',
    'application/json; charset=utf-16',
    '',
    'x',
    'application/jsonp',
  ]
  const type = random.chance(0.04) ? random.pick(types) : 'application/json'
  return { number, path, headers: { 'content-type': type }, bytes, stream: request.stream === true }
}
