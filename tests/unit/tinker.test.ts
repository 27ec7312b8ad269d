// Parts of Tinker's API alone: Protocol Buffers, the order of requests, and what is kept of results.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { ApiError } from '../../contract/errors.ts'
import { Futures, kept_ms } from '../../server/features/tinker/futures.ts'
import { trainingWork } from '../../server/features/tinker/losses.ts'
import { parsePath, requireName, tinkerPath } from '../../server/features/tinker/names.ts'
import { Sequence } from '../../server/features/tinker/sequence.ts'
import { readTrainingRequest, writeTrainingOutput } from '../../server/features/tinker/wire/messages.ts'
import { ProtoWriter } from '../../server/features/tinker/wire/protobuf.ts'
import { floats, ints, readTrainingOutput, textDatum, trainingMessage } from '../support/tinker-client.ts'

test('a training request is read as it was written, and so is an answer', () => {
  const datum = textDatum([7, 8, 9, 2], 2)
  const message = trainingMessage('run', 3, [datum, datum], { loss_fn: 'ppo', config: { clip_low_threshold: 0.5 } })
  const read = readTrainingRequest(message)
  assert.deepEqual([read.model_id, read.seq_id, read.loss_fn, read.forward_only], ['run', 3, 'ppo', false])
  assert.deepEqual(read.loss_fn_config, new Map([['clip_low_threshold', 0.5]]))
  assert.deepEqual(read.data[1]!.tokens, [7, 8, 9])
  assert.deepEqual(read.data[1]!.inputs.get('target_tokens')!.values, [8, 9, 2])
  assert.deepEqual(read.data[1]!.inputs.get('weights')!.values, [0, 1, 1])
  const bytes = writeTrainingOutput({ logprobs: [[-1, -2], [], [-3]] }, { 'loss:sum': 6 }, 3)
  assert.deepEqual(readTrainingOutput(bytes), { metrics: { 'loss:sum': 6 }, logprobs: [[-1, -2], [], [-3]] })
})

test('a message that is cut or changed anywhere is read or refused with a sentence, and nothing else', () => {
  const message = trainingMessage('run', 3, [textDatum([7, 8, 9, 2])])
  const read = (bytes: Buffer) => {
    try {
      trainingWork(readTrainingRequest(bytes))
    } catch (error) {
      assert.ok(error instanceof ApiError && error.status < 500, String(error))
    }
  }
  for (let end = 0; end < message.length; end++) read(message.subarray(0, end))
  for (let at = 0; at < message.length; at++)
    for (const byte of [0, 0x7f, 0x80, 0xff]) {
      const changed = Buffer.from(message)
      changed[at] = byte
      read(changed)
    }
  for (let round = 0; round < 200; round++) read(randomBytes(round))
})

test('a datum becomes a text with its last target, and other targets are its labels', () => {
  const read = (inputs: object, loss_fn = 'importance_sampling') =>
    trainingWork({
      model_id: 'run',
      seq_id: 1,
      loss_fn,
      loss_fn_config: new Map(),
      forward_only: false,
      data: [{ tokens: [7, 8, 9], inputs: new Map(Object.entries(inputs)) }],
    })
  const tensor = ({ values, dtype }: ReturnType<typeof floats | typeof ints>) => ({ values, dtype, shape: [3] })
  const given = (targets: number[]) => ({
    target_tokens: tensor(ints(targets)),
    logprobs: tensor(floats([0, -1, -2])),
    advantages: tensor(floats([0, 1, 1])),
  })
  const datum = (work: ReturnType<typeof read>) => (work.fields.data as object[])[0]
  const plain = { ids: [7, 8, 9, 2], start: 1, old: [0, -1, -2], advantages: [0, 1, 1] }
  assert.deepEqual(datum(read(given([8, 9, 2]))), plain)
  assert.deepEqual(datum(read(given([0, 9, 2]))), { ...plain, labels: [0, 9, 2] })
  const masked = { ...given([0, 9, 2]), sequence_ratio_mask: tensor(floats([0, 1, 1])) }
  const { start: _, ...rest } = plain
  assert.deepEqual(datum(read(masked, 'gspo')), {
    ...rest,
    start: 1,
    trained: [2, 3],
    old: [-1, -2],
    advantages: [1, 1],
    labels: [9, 2],
  })
})

test('requests run in the order of their numbers, and the next one also after a failure', async () => {
  const sequence = new Sequence(1)
  const order: number[] = []
  const run = (seq: number, fails = false) =>
    sequence.run(
      seq,
      async () => {
        order.push(seq)
        if (fails) throw new Error('no')
      },
      async () => {},
    )
  const third = run(3)
  assert.throws(() => sequence.require(3), /made before/)
  const second = run(2, true)
  await run(1)
  await assert.rejects(second, /no/)
  await third
  assert.deepEqual(order, [1, 2, 3])
  assert.throws(() => sequence.require(2), /Next is 4/)
})

test('a result is its account’s own, is computed once, and is kept for an hour', async () => {
  let now = 0
  const futures = new Futures(() => now)
  const never = new AbortController().signal
  let computed = 0
  const work = async () => {
    computed++
    return { kind: 'json' as const, fields: { answer: 1 } }
  }
  futures.begin('one', 'run:1', work)
  futures.begin('one', 'run:1', work)
  assert.throws(() => futures.begin('two', 'run:1', work), /no request/)
  assert.deepEqual(await futures.result('one', 'run:1', 1000, never), { kind: 'json', fields: { answer: 1 } })
  await assert.rejects(futures.result('two', 'run:1', 0, never), /no request/)
  assert.equal(computed, 1)
  futures.begin('one', 'slow', () => new Promise(() => {}), { group: 'group' })
  assert.deepEqual(await futures.result('one', 'slow', 1, never), { state: 'active' })
  futures.begin(
    'one',
    'failing',
    async () => {
      throw new Error('a secret')
    },
    { group: 'group' },
  )
  const [done] = await futures.completions('one', 'group', 0, 1000, never)
  assert.deepEqual([done!.id, done!.failed], ['failing', true])
  assert.deepEqual(await futures.completions('one', 'group', done!.place, 1, never), [])
  assert.doesNotMatch(JSON.stringify(await futures.result('one', 'failing', 0, never)), /secret/)
  now = kept_ms + 2000
  futures.begin('one', 'later', work)
  await assert.rejects(futures.result('one', 'run:1', 0, never), /no request/)
})

test('results and requests of an account take a bounded memory, and another account has its own', async () => {
  const futures = new Futures(() => 0)
  const never = new AbortController().signal
  const message = { kind: 'message' as const, bytes: Buffer.alloc(1e6) }
  for (let at = 0; at < 300; at++) {
    futures.begin('one', `large:${at}`, async () => message)
    await futures.result('one', `large:${at}`, 1000, never)
  }
  await assert.rejects(futures.result('one', 'large:0', 0, never), /no request/)
  assert.equal(await futures.result('one', 'large:299', 0, never), message)
  // Results without anything in them take memory too.
  const nothing = { kind: 'json' as const, fields: {} }
  for (let at = 0; at < 300_000; at++) {
    futures.begin('many', `small:${at}`, async () => nothing)
    if (at % 1000 === 0) await futures.result('many', `small:${at}`, 1000, never)
  }
  await assert.rejects(futures.result('many', 'small:0', 0, never), /no request/)
  const work = () => new Promise<never>(() => {})
  for (let at = 0; at < 4; at++) futures.begin('one', `waits:${at}`, work, { bytes: 32e6 })
  assert.throws(() => futures.begin('one', 'waits:4', work, { bytes: 32e6 }), /memory/)
  futures.begin('two', 'waits:5', work, { bytes: 32e6 })
})

test('a message of millions of fields is refused before it takes time and memory', () => {
  const fill = (unit: readonly number[]) => Buffer.alloc(30e6, Buffer.from(unit))
  const shape = new ProtoWriter().bytes(4, Buffer.alloc(2e6, 1)).number(3, 2)
  const tensor = new ProtoWriter().text(1, 'target_tokens').message(2, shape)
  const chunks = new ProtoWriter().bytes(3, fill([0x0a, 0]))
  for (const [body, expected] of [
    [fill([0x30, 0]), /300000 fields/],
    [fill([0x1a, 0]), /1024 at most/],
    [fill([0x2a, 0]), /300000 fields/],
    [chunks.finish(), /300000 fields/],
    [new ProtoWriter().message(3, new ProtoWriter().message(2, tensor)).finish(), /more than 16 numbers/],
  ] as const) {
    const began = performance.now()
    assert.throws(() => readTrainingRequest(body), expected)
    assert.ok(performance.now() - began < 1500, String(expected))
  }
})

test('a path names a checkpoint of a run, and no other file', () => {
  const at = { run_id: 'tns_1:train:0', kind: 'training', name: '000010' } as const
  assert.deepEqual(parsePath(tinkerPath(at.run_id, at.kind, at.name)), at)
  for (const path of ['', 'tinker://', 'tinker://run/weights/', 'tinker://run/other/x', 'tinker://run/weights/a/b'])
    assert.throws(() => parsePath(path), /not the path of a checkpoint/)
  for (const name of ['..', '.', 'a/b', 'a b', '', 'x'.repeat(129)]) assert.throws(() => requireName(name), /name/)
})
