// A collector of traces: takes OTLP over HTTP in protobuf, as the real exporter sends it, and keeps the spans.
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { gunzipSync } from 'node:zlib'

export interface CollectedSpan {
  service: string
  trace_id: string
  span_id: string
  /** Empty at a root. */
  parent_id: string
  name: string
  attributes: Record<string, string | number | boolean>
  events: { name: string; attributes: Record<string, string | number | boolean> }[]
  start_ms: number
  end_ms: number
  failed: boolean
}

export type Collector = Awaited<ReturnType<typeof startCollector>>

/** `answer` is its status at each request; it may be changed, and `hold` keeps requests unanswered. */
export async function startCollector() {
  const spans: CollectedSpan[] = []
  const headers: http.IncomingHttpHeaders[] = []
  const behaviour = { status: 200, hold: false }
  const bodies: Buffer[] = []
  const server = http.createServer(async (request, response) => {
    const parts: Buffer[] = []
    for await (const part of request as AsyncIterable<Buffer>) parts.push(part)
    headers.push(request.headers)
    if (behaviour.hold) return
    if (behaviour.status === 200) {
      const bytes = Buffer.concat(parts)
      const body = request.headers['content-encoding'] === 'gzip' ? gunzipSync(bytes) : bytes
      bodies.push(body)
      spans.push(...decode(body))
    }
    response.writeHead(behaviour.status, { 'content-type': 'application/x-protobuf' }).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    headers,
    behaviour,
    /** Everything that was sent, as text. */
    text: () => Buffer.concat(bodies).toString('latin1'),
    of: (trace_id: string) => spans.filter((span) => span.trace_id === trace_id),
    async close() {
      const closed = new Promise<void>((resolve) => void server.close(() => resolve()))
      server.closeAllConnections()
      await closed
    },
  }
}

/** Whether each span's parent is among them, but for the parents that are outside. */
export function isConnected(spans: readonly CollectedSpan[], outside = ''): boolean {
  const ids = new Set([...spans.map(({ span_id }) => span_id), outside])
  return spans.every(({ parent_id }) => ids.has(parent_id))
}

/** The names from the root to a span. */
export function pathTo(spans: readonly CollectedSpan[], span: CollectedSpan): string[] {
  const parent = spans.find(({ span_id }) => span_id === span.parent_id)
  return [...(parent ? pathTo(spans, parent) : []), span.name]
}

type Field = { number: number; value: bigint | Buffer }

/** The fields of a protobuf message. */
function fieldsOf(bytes: Buffer): Field[] {
  const fields: Field[] = []
  let at = 0
  const varint = () => {
    let value = 0n
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++]!
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return value
    }
  }
  while (at < bytes.length) {
    const tag = Number(varint())
    const number = tag >> 3
    const wire = tag & 7
    if (wire === 0) fields.push({ number, value: varint() })
    else {
      const length = wire === 1 ? 8 : wire === 5 ? 4 : Number(varint())
      fields.push({ number, value: bytes.subarray(at, at + length) })
      at += length
    }
  }
  return fields
}
const all = (fields: Field[], number: number) =>
  fields.filter((field) => field.number === number).map(({ value }) => value as Buffer)
const text = (fields: Field[], number: number) => all(fields, number)[0]?.toString('utf8') ?? ''
const hex = (fields: Field[], number: number) => all(fields, number)[0]?.toString('hex') ?? ''
const ms = (fields: Field[], number: number) => Number(all(fields, number)[0]!.readBigUInt64LE()) / 1e6

function attributesOf(fields: Field[], number: number): CollectedSpan['attributes'] {
  return Object.fromEntries(
    all(fields, number).map((each) => {
      const pair = fieldsOf(each)
      const [value] = fieldsOf(all(pair, 2)[0] ?? Buffer.of())
      const bytes = value?.value
      if (value?.number === 4) return [text(pair, 1), (bytes as Buffer).readDoubleLE()]
      if (value?.number === 2) return [text(pair, 1), bytes === 1n]
      return [text(pair, 1), typeof bytes === 'bigint' ? Number(bytes) : String(bytes ?? '')]
    }),
  )
}

function decode(body: Buffer): CollectedSpan[] {
  return all(fieldsOf(body), 1).flatMap((each) => {
    const resourceSpans = fieldsOf(each)
    const resource = attributesOf(fieldsOf(all(resourceSpans, 1)[0]!), 1)
    return all(resourceSpans, 2).flatMap((scope) =>
      all(fieldsOf(scope), 2).map((bytes) => {
        const span = fieldsOf(bytes)
        const status = fieldsOf(all(span, 15)[0] ?? Buffer.of())
        return {
          service: String(resource['service.name']),
          trace_id: hex(span, 1),
          span_id: hex(span, 2),
          parent_id: hex(span, 4),
          name: text(span, 5),
          attributes: attributesOf(span, 9),
          events: all(span, 11).map((event) => {
            const fields = fieldsOf(event)
            return { name: text(fields, 2), attributes: attributesOf(fields, 3) }
          }),
          start_ms: ms(span, 7),
          end_ms: ms(span, 8),
          failed: status.some(({ number, value }) => number === 3 && value === 2n),
        }
      }),
    )
  })
}
