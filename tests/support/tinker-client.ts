// A client of Tinker's API as its SDK sends requests: JSON, and training data as Protocol Buffers.
import assert from 'node:assert/strict'
import { ProtoWriter, readFields } from '../../server/features/tinker/wire/protobuf.ts'

type Json = Record<string, unknown>
export interface TestDatum {
  tokens: number[]
  inputs: Record<string, { dtype: 'float32' | 'int64'; values: number[]; shape?: number[] }>
}

export const floats = (values: number[]) => ({ dtype: 'float32' as const, values })
export const ints = (values: number[]) => ({ dtype: 'int64' as const, values })

/** A text whose tokens after the first `from` are learned. */
export function textDatum(text: number[], from = 1): TestDatum {
  const tokens = text.slice(0, -1)
  return {
    tokens,
    inputs: { target_tokens: ints(text.slice(1)), weights: floats(tokens.map((_, at) => (at + 1 >= from ? 1 : 0))) },
  }
}

function bytesOf({ dtype, values }: TestDatum['inputs'][string]): Buffer {
  const bytes = Buffer.alloc((dtype === 'float32' ? 4 : 8) * values.length)
  for (const [at, value] of values.entries())
    if (dtype === 'float32') bytes.writeFloatLE(value, 4 * at)
    else bytes.writeBigInt64LE(BigInt(value), 8 * at)
  return bytes
}

function datumMessage({ tokens, inputs }: TestDatum): ProtoWriter {
  const ids = Buffer.alloc(4 * tokens.length)
  for (const [at, token] of tokens.entries()) ids.writeInt32LE(token, 4 * at)
  const datum = new ProtoWriter().message(1, new ProtoWriter().message(1, new ProtoWriter().bytes(1, ids)))
  for (const [name, tensor] of Object.entries(inputs)) {
    const message = new ProtoWriter()
      .bytes(1, bytesOf(tensor))
      .number(3, tensor.dtype === 'float32' ? 1 : 2)
      .packed(4, tensor.shape ?? [tensor.values.length])
    datum.message(2, new ProtoWriter().text(1, name).message(2, message))
  }
  return datum
}

interface TrainOptions {
  loss_fn?: string
  forward_only?: boolean
  config?: Record<string, number>
}

export function trainingMessage(
  model_id: string,
  seq_id: number,
  data: TestDatum[],
  { loss_fn = 'cross_entropy', forward_only = false, config = {} }: TrainOptions = {},
): Buffer {
  const message = new ProtoWriter().text(1, model_id).number(2, seq_id)
  for (const datum of data) message.message(3, datumMessage(datum))
  message.text(4, loss_fn)
  for (const [name, value] of Object.entries(config))
    message.message(5, new ProtoWriter().text(1, name).double(2, value))
  return message.number(6, forward_only ? 1 : 0).finish()
}

const floatsIn = (bytes: Buffer) => Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readFloatLE(4 * at))
const int32sIn = (bytes: Buffer) => Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readInt32LE(4 * at))
const within = (bytes: Buffer) => [...readFields(bytes)]
const find = (bytes: Buffer, number: number) => within(bytes).find((field) => field.number === number)?.value

/** The log-probabilities of each datum, and the figures of a ForwardBackwardOutput. */
export function readTrainingOutput(bytes: Buffer) {
  const metrics: Record<string, number> = {}
  let logprobs: number[][] = []
  for (const { number, value } of readFields(bytes)) {
    if (number === 3) metrics[String(find(value as Buffer, 1))] = (find(value as Buffer, 2) as Buffer).readDoubleLE()
    if (number !== 2) continue
    const batched = find(find(value as Buffer, 2) as Buffer, 2) as Buffer
    const all = floatsIn(find(batched, 1) as Buffer)
    const offsets = find(batched, 2) as Buffer
    const places = Array.from({ length: offsets.length / 8 }, (_, at) => Number(offsets.readBigInt64LE(8 * at)) / 4)
    logprobs = places.slice(1).map((end, at) => all.slice(places[at], end))
  }
  return { metrics, logprobs }
}

export function readSamples(bytes: Buffer) {
  const sequences: { tokens: number[]; logprobs: number[]; stop: boolean; hasTop: boolean }[] = []
  let prompt_logprobs: number[] | undefined
  for (const { number, value } of readFields(bytes)) {
    if (number === 2) prompt_logprobs = floatsIn(value as Buffer)
    if (number !== 1) continue
    const sequence = value as Buffer
    sequences.push({
      stop: (find(sequence, 1) ?? 0) === 0,
      tokens: int32sIn(find(sequence, 2) as Buffer),
      logprobs: floatsIn(find(sequence, 3) as Buffer),
      hasTop: find(sequence, 4) !== undefined,
    })
  }
  return { sequences, prompt_logprobs }
}

/** Requests with a key, as the SDK sends it. */
export function tinkerClient(address: string, key: string) {
  async function send(method: string, path: string, body?: Json | Buffer) {
    const response = await fetch(`${address}/api/v1${path}`, {
      method,
      headers: {
        'x-api-key': `tml-${key}`,
        ...(body && { 'content-type': Buffer.isBuffer(body) ? 'application/x-protobuf' : 'application/json' }),
      },
      ...(body && { body: Buffer.isBuffer(body) ? new Uint8Array(body) : JSON.stringify(body) }),
    })
    const bytes = Buffer.from(await response.arrayBuffer())
    const isJson = response.headers.get('content-type')?.includes('json') ?? false
    // biome-ignore lint/suspicious/noExplicitAny: tests read whatever shape they expect
    const json: any = isJson ? JSON.parse(bytes.toString()) : undefined
    return { status: response.status, json, bytes }
  }
  /** The answer of a request that must be taken. */
  async function post(path: string, body: Json | Buffer) {
    const { status, json } = await send('POST', path, body)
    assert.equal(status, 200, `${path}: ${JSON.stringify(json)}`)
    return json
  }
  /** The result of a request that was taken: fields, or the bytes of a message. */
  async function result(request_id: string) {
    for (;;) {
      const answer = await send('POST', '/retrieve_future', { request_id, allow_metadata_only: true })
      assert.equal(answer.status, 200, JSON.stringify(answer.json))
      if (answer.json?.type !== 'try_again') return answer
    }
  }
  /** Sends a request and waits for its result, which must be no failure. */
  async function done(path: string, body: Json | Buffer) {
    const answer = await result((await post(path, body)).request_id)
    assert.ok(!answer.json?.error, `${path}: ${answer.json?.error}`)
    return answer
  }
  async function session(): Promise<string> {
    return (await post('/create_session', { tags: [], user_metadata: { who: 'test' }, sdk_version: '0.38.0' }))
      .session_id
  }
  return {
    send,
    post,
    result,
    done,
    session,
    /** A run with a fresh adapter: requests of it have numbers from 1. */
    async run(base_model: string, session_id: string, model_seq_id = 0, rank = 4): Promise<string> {
      const body = { session_id, model_seq_id, base_model, lora_config: { rank, seed: 1 }, type: 'create_model' }
      return (await done('/create_model', body)).json.model_id
    },
    train: async (id: string, seq: number, data: TestDatum[], options?: TrainOptions) =>
      readTrainingOutput((await done('/forward_backward', trainingMessage(id, seq, data, options))).bytes),
    step: async (model_id: string, seq_id: number, learning_rate = 0.01) =>
      (await done('/optim_step', { model_id, seq_id, adam_params: { learning_rate } })).json.metrics,
    async sample(fields: Json) {
      const { prompt, ...rest } = fields as { prompt: number[] }
      const body = { prompt: { chunks: [{ type: 'encoded_text', tokens: prompt }] }, ...rest }
      return readSamples((await done('/asample', body)).bytes)
    },
  }
}
