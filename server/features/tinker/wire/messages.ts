// Tinker's messages in Protocol Buffers (tinker_public.proto of the SDK): the data of a training request, and the
// answers that hold tensors. Numbers within are arrays in little-endian order.
import { ApiError } from '../../../../contract/errors.ts'
import {
  bytesOf,
  doubleOf,
  entryOf,
  fieldsOf,
  malformed,
  numberOf,
  numbersOf,
  type ProtoField,
  ProtoWriter,
  readFields,
  textOf,
} from './protobuf.ts'

/** Media type of messages. */
export const protoType = 'application/x-protobuf'

/** Most texts of one request. */
export const dataMax = 1024
/** Most names of a map: of what a loss reads, or is set to. */
const namesMax = 64
/** Most numbers of a tensor's shape. */
const shapeMax = 16

const float32 = 1
const int64 = 2

/** A dense tensor of a datum. */
export interface Tensor {
  dtype: 'float32' | 'int64'
  shape: number[]
  values: number[]
}

/** One text and what its loss needs. */
export interface Datum {
  tokens: number[]
  inputs: Map<string, Tensor>
}

export interface TrainingRequest {
  model_id: string
  seq_id: number
  data: Datum[]
  loss_fn: string
  loss_fn_config: Map<string, number | string>
  forward_only: boolean
}

/** Reads a ForwardBackwardRequest. Throws invalid_request, parameter_not_supported. */
export function readTrainingRequest(body: Buffer): TrainingRequest {
  const request: TrainingRequest = {
    model_id: '',
    seq_id: 0,
    data: [],
    loss_fn: '',
    loss_fn_config: new Map(),
    forward_only: false,
  }
  for (const field of readFields(body)) {
    if (field.number === 1) request.model_id = textOf(field)
    else if (field.number === 2) request.seq_id = numberOf(field)
    else if (field.number === 3) {
      if (request.data.length === dataMax)
        throw new ApiError(
          'invalid_request',
          `More than ${dataMax} data are sent at once; ${dataMax} at most are taken.`,
        )
      request.data.push(readDatum(field, request.data.length))
    } else if (field.number === 4) request.loss_fn = textOf(field)
    else if (field.number === 5) {
      const { key, value } = entryOf(field)
      if (!request.loss_fn_config.has(key)) request.loss_fn_config.set(key, value ? doubleOf(value) : 0)
    } else if (field.number === 6) request.forward_only = numberOf(field) !== 0
    else if (field.number === 7) {
      const { key, value } = entryOf(field)
      request.loss_fn_config.set(key, value ? readConfigValue(value) : 0)
    }
    if (request.loss_fn_config.size > namesMax) throw malformed(`its loss has more than ${namesMax} settings`)
  }
  return request
}

function readConfigValue(field: ProtoField): number | string {
  for (const part of fieldsOf(field)) {
    if (part.number === 1) return doubleOf(part)
    if (part.number === 2) return textOf(part)
  }
  return 0
}

function readDatum(field: ProtoField, place: number): Datum {
  const datum: Datum = { tokens: [], inputs: new Map() }
  for (const part of fieldsOf(field)) {
    if (part.number === 1) for (const token of readChunk(part, place)) datum.tokens.push(token)
    else if (part.number === 2) {
      if (datum.inputs.size === namesMax) throw malformed(`data[${place}] has more than ${namesMax} tensors`)
      const { key, value } = entryOf(part)
      if (value) datum.inputs.set(key, readTensor(value, `data[${place}].loss_fn_inputs.${key}`))
    } else if (part.number === 3 || part.number === 4)
      throw new ApiError(
        'parameter_not_supported',
        `data[${place}] says which samples its tokens are from (provenance spans), for 'stable_reinforce' alone. ` +
          'Leave them out.',
      )
  }
  return datum
}

function readChunk(field: ProtoField, place: number): number[] {
  for (const part of fieldsOf(field)) {
    if (part.number !== 1)
      throw new ApiError(
        'parameter_not_supported',
        `data[${place}] has a picture or audio; only tokens are trained on.`,
      )
    for (const inner of fieldsOf(part)) if (inner.number === 1) return int32s(bytesOf(inner))
  }
  return []
}

function readTensor(field: ProtoField, name: string): Tensor {
  let dtype = 0
  let dense: Buffer | undefined
  let sparse: Buffer | undefined
  const shape: number[] = []
  for (const part of fieldsOf(field)) {
    if (part.number === 1) dense = bytesOf(part)
    else if (part.number === 2) sparse = bytesOf(part)
    else if (part.number === 3) dtype = numberOf(part)
    else if (part.number === 4) shape.push(...numbersOf(part, shapeMax))
  }
  if (sparse)
    throw new ApiError(
      'parameter_not_supported',
      `'${name}' is a sparse tensor of several tokens for each position; one token for each is trained on here.`,
    )
  if (dtype !== float32 && dtype !== int64)
    throw new ApiError('invalid_request', `'${name}' must be a tensor of float32 or int64.`)
  const bytes = dense ?? Buffer.alloc(0)
  const values = dtype === float32 ? float32s(bytes) : int64s(bytes)
  if (shape.length > 1)
    throw new ApiError(
      'parameter_not_supported',
      `'${name}' has the shape [${shape.slice(0, 8).join(', ')}]; it must have one number for each position.`,
    )
  if (shape.length === 1 && shape[0] !== values.length)
    throw new ApiError('invalid_request', `'${name}' has ${values.length} numbers, and its shape is [${shape[0]}].`)
  return { dtype: dtype === float32 ? 'float32' : 'int64', shape, values }
}

const whole = (bytes: Buffer, size: number) => {
  if (bytes.length % size !== 0) throw malformed('an array ends within a number')
  return bytes.length / size
}
const int32s = (bytes: Buffer) => Array.from({ length: whole(bytes, 4) }, (_, at) => bytes.readInt32LE(4 * at))
const float32s = (bytes: Buffer) => Array.from({ length: whole(bytes, 4) }, (_, at) => bytes.readFloatLE(4 * at))
const int64s = (bytes: Buffer) =>
  Array.from({ length: whole(bytes, 8) }, (_, at) => Number(bytes.readBigInt64LE(8 * at)))

function int32Bytes(values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * values.length)
  for (const [at, value] of values.entries()) bytes.writeInt32LE(value, 4 * at)
  return bytes
}

function floatBytes(values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * values.length)
  for (const [at, value] of values.entries()) bytes.writeFloatLE(value, 4 * at)
  return bytes
}

/** A ForwardBackwardOutput: one array of floats for each datum, by its name, and figures of the whole. */
export function writeTrainingOutput(
  outputs: Readonly<Record<string, readonly (readonly number[])[]>>,
  metrics: Readonly<Record<string, number>>,
  data: number,
): Buffer {
  const record = new ProtoWriter().text(1, 'ArrayRecord')
  for (const [name, arrays] of Object.entries(outputs)) {
    const offsets = Buffer.alloc(8 * (arrays.length + 1))
    let end = 0
    for (const [at, array] of arrays.entries()) {
      end += 4 * array.length
      offsets.writeBigInt64LE(BigInt(end), 8 * (at + 1))
    }
    const batched = new ProtoWriter().bytes(1, floatBytes(arrays.flat())).bytes(2, offsets).number(3, float32)
    record.message(2, new ProtoWriter().text(1, name).message(2, batched))
  }
  record.number(3, data)
  const output = new ProtoWriter().text(1, 'ArrayRecord').message(2, record)
  for (const [name, value] of Object.entries(metrics))
    output.message(3, new ProtoWriter().text(1, name).double(2, value))
  return output.finish()
}

/** The likeliest tokens at each position, likeliest first; null where there are none. */
export type TopTokens = readonly (readonly { token: number; logprob: number }[] | null)[]

export interface SampledSequence {
  stop_reason: 'stop' | 'length'
  tokens: readonly number[]
  logprobs: readonly number[]
  top?: TopTokens
}

export interface SampleOutput {
  sequences: readonly SampledSequence[]
  /** Log-probability of each token of the prompt; null where it is not known, as of the first one. */
  prompt_logprobs?: readonly (number | null)[] | undefined
  prompt_top?: TopTokens | undefined
  cached_tokens: number
}

/** What stands where a position has fewer tokens than were asked for. */
const noToken = { token: 0, logprob: -99_999 }

function topWriter(top: TopTokens, k: number): ProtoWriter {
  const rows = top.map((row) => Array.from({ length: k }, (_, at) => row?.[at] ?? noToken))
  return new ProtoWriter()
    .bytes(1, int32Bytes(rows.flat().map(({ token }) => token)))
    .bytes(2, floatBytes(rows.flat().map(({ logprob }) => logprob)))
    .number(3, k)
    .number(4, rows.length)
}

/** A SampleResponse. `k`: how many likeliest tokens were asked for, of sampled positions and of the prompt's. */
export function writeSampleOutput(output: SampleOutput, k: { sampled: number; prompt: number }): Buffer {
  const response = new ProtoWriter()
  for (const { stop_reason, tokens, logprobs, top } of output.sequences) {
    const sequence = new ProtoWriter()
      .number(1, stop_reason === 'stop' ? 0 : 1)
      .bytes(2, int32Bytes(tokens))
      .bytes(3, floatBytes(logprobs))
    if (top) sequence.message(4, topWriter(top, k.sampled))
    response.message(1, sequence)
  }
  if (output.prompt_logprobs) response.bytes(2, floatBytes(output.prompt_logprobs.map((value) => value ?? Number.NaN)))
  if (output.prompt_top) response.message(3, topWriter(output.prompt_top, k.prompt))
  return response.number(4, output.cached_tokens).finish()
}
