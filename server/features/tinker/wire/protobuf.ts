// The wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding), as far as Tinker's messages
// use it: fields of a message one after another, each with its number and how it is written.
import { ApiError } from '../../../../contract/errors.ts'

const varint = 0
const fixed64 = 1
const delimited = 2
const fixed32 = 5

/** How many more fields a message and those within it may have. */
interface Budget {
  fields: number
}

/** A field of a message: a number, or the bytes of a text, of packed numbers or of a message within. */
export interface ProtoField {
  number: number
  value: number | Buffer
  budget: Budget
}

/** Fields of a body, those of messages within counted: its bytes alone would allow many millions. */
const fieldsMax = 300_000

/** The message cannot be read: it is cut off, or no Protocol Buffer. */
export const malformed = (why: string): ApiError =>
  new ApiError('invalid_request', `The body is not the Protocol Buffer that this operation takes: ${why}.`)

/** A whole number of 64 bits at `at`, and where it ends. Beyond 2^53 it loses its last digits. */
function readVarint(bytes: Buffer, at: number): { value: number; end: number } {
  const first = bytes[at]
  if (first !== undefined && first < 0x80) return { value: first, end: at + 1 }
  let value = 0n
  for (let index = 0; index < 10; index++) {
    const byte = bytes[at + index]
    if (byte === undefined) throw malformed('it is cut off')
    value |= BigInt(byte & 0x7f) << BigInt(7 * index)
    if (byte < 0x80) return { value: Number(BigInt.asIntN(64, value)), end: at + index + 1 }
  }
  throw malformed('a number has more than 64 bits')
}

/** The fields of a message in order. Throws invalid_request for what is malformed, and for too many fields. */
export function* readFields(bytes: Buffer, budget: Budget = { fields: fieldsMax }): Generator<ProtoField> {
  let at = 0
  while (at < bytes.length) {
    if (--budget.fields < 0) throw malformed(`it has more than ${fieldsMax} fields`)
    const tag = readVarint(bytes, at)
    const number = Math.floor(tag.value / 8)
    if (number < 1) throw malformed('a field has the number 0')
    at = tag.end
    let end: number
    switch (tag.value % 8) {
      case varint: {
        const read = readVarint(bytes, at)
        at = read.end
        yield { number, value: read.value, budget }
        continue
      }
      case delimited: {
        const length = readVarint(bytes, at)
        at = length.end
        end = at + length.value
        break
      }
      case fixed64:
        end = at + 8
        break
      case fixed32:
        end = at + 4
        break
      default:
        throw malformed('a field is of a kind that there is not')
    }
    if (end < at || end > bytes.length) throw malformed('it is cut off')
    yield { number, value: bytes.subarray(at, end), budget }
    at = end
  }
}

/** The bytes of a field that is a text, a message or packed numbers. */
export function bytesOf({ number, value }: Pick<ProtoField, 'number' | 'value'>): Buffer {
  if (typeof value === 'number') throw malformed(`the field ${number} is a number`)
  return value
}

/** The fields of a message within another. */
export const fieldsOf = (field: ProtoField): Generator<ProtoField> => readFields(bytesOf(field), field.budget)

const utf8 = new TextDecoder('utf-8', { fatal: true })

export function textOf(field: ProtoField): string {
  try {
    return utf8.decode(bytesOf(field))
  } catch {
    throw malformed(`the text of the field ${field.number} is not UTF-8`)
  }
}

export function numberOf({ number, value }: ProtoField): number {
  if (typeof value !== 'number') throw malformed(`the field ${number} is not a number`)
  return value
}

export function doubleOf(field: ProtoField): number {
  const bytes = bytesOf(field)
  if (bytes.length !== 8) throw malformed(`the field ${field.number} is not a number of 64 bits`)
  return bytes.readDoubleLE()
}

/** Whole numbers, packed into one field or one in a field; `most` at most. */
export function numbersOf({ number, value }: ProtoField, most: number): number[] {
  if (typeof value === 'number') return [value]
  const numbers: number[] = []
  for (let at = 0; at < value.length; ) {
    if (numbers.length === most) throw malformed(`the field ${number} has more than ${most} numbers`)
    const read = readVarint(value, at)
    numbers.push(read.value)
    at = read.end
  }
  return numbers
}

/** Key and value of an entry of a map, whose key is a text. `value`: undefined where it is left out. */
export function entryOf(field: ProtoField): { key: string; value: ProtoField | undefined } {
  let key = ''
  let value: ProtoField | undefined
  for (const part of fieldsOf(field)) {
    if (part.number === 1) key = textOf(part)
    if (part.number === 2) value = part
  }
  return { key, value }
}

/** Collects the fields of a message. */
export class ProtoWriter {
  private readonly parts: Buffer[] = []

  private tag(number: number, kind: number): void {
    this.parts.push(varintBytes(number * 8 + kind))
  }

  /** A number of 0 or more; 0 is left out, as Protocol Buffers do. */
  number(field: number, value: number): this {
    if (value === 0) return this
    this.tag(field, varint)
    this.parts.push(varintBytes(value))
    return this
  }

  double(field: number, value: number): this {
    const bytes = Buffer.alloc(8)
    bytes.writeDoubleLE(value)
    this.tag(field, fixed64)
    this.parts.push(bytes)
    return this
  }

  bytes(field: number, value: Buffer): this {
    this.tag(field, delimited)
    this.parts.push(varintBytes(value.length), value)
    return this
  }

  text(field: number, value: string): this {
    return this.bytes(field, Buffer.from(value))
  }

  message(field: number, value: ProtoWriter): this {
    return this.bytes(field, value.finish())
  }

  packed(field: number, values: readonly number[]): this {
    return this.bytes(field, Buffer.concat(values.map(varintBytes)))
  }

  finish(): Buffer {
    return Buffer.concat(this.parts)
  }
}

function varintBytes(value: number): Buffer {
  const bytes: number[] = []
  let rest = value
  while (rest >= 0x80) {
    bytes.push((rest % 0x80) + 0x80)
    rest = Math.floor(rest / 0x80)
  }
  bytes.push(rest)
  return Buffer.from(bytes)
}
