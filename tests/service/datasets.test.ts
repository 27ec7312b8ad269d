// The structural check of uploads, and token counts that match the trainer and the engine.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { createRowChecker, maxPictureLineBytes } from '../../server/features/datasets/check-rows.ts'
import { createFingerprints, fingerprint } from '../../server/features/datasets/fingerprints.ts'
import { colourRows } from '../support/client.ts'

async function check(content: Buffer, chunk: number) {
  const checker = createRowChecker()
  for (let at = 0; at < content.length; at += chunk) await checker.add(content.subarray(at, at + chunk))
  return checker.end()
}

test('the result does not depend on how the file is split into chunks', async () => {
  const content = Buffer.from(
    `\uFEFF${colourRows(5)}\r\n\n{"messages":1}\n{"messages":[{"role":"user","content":"ü😀"}]}`,
  )
  const whole = await check(content, content.length)
  assert.equal(whole.rows, 7)
  assert.equal(whole.error_count, 2)
  for (const size of [1, 2, 3, 7, 100]) assert.deepEqual(await check(content, size), whole)
})

test('an overlong line is an error of that line, is not buffered, and the next line is read', async () => {
  const checker = createRowChecker()
  await checker.add(Buffer.from(`${colourRows(1)}\n`))
  const before = process.memoryUsage().arrayBuffers
  const piece = Buffer.alloc(1 << 20, 'x')
  for (let written = 0; written < 4 * maxPictureLineBytes; written += piece.length) await checker.add(piece)
  assert.ok(process.memoryUsage().arrayBuffers - before < 2 * maxPictureLineBytes)
  await checker.add(Buffer.from(`\n${colourRows(1)}`))
  const result = await checker.end()
  assert.equal(result.rows, 3)
  assert.deepEqual(result.errors, [
    'line 2 is longer than 16 MB, or 32 MB with pictures. Split the example, shorten its text, or make its pictures ' +
      'smaller.',
  ])
})

test('duplicates are listed with the line that they repeat, in line order, for any chunking', async () => {
  const row = (text: string) =>
    JSON.stringify({
      messages: [
        { role: 'user', content: text },
        { role: 'assistant', content: 'a' },
      ],
    })
  const lines = ['one', 'two', 'one', ' ', 'three', 'two', 'one'].map(row)
  for (const size of [10, 1 << 20]) {
    const { duplicates, warnings, warning_count } = await check(Buffer.from(lines.join('\n')), size)
    assert.equal(duplicates, 3)
    assert.equal(warning_count, 4)
    assert.deepEqual(
      warnings.map(({ line, code, first_line }) => [line, code, first_line]),
      [
        [3, 'duplicate', 1],
        [4, 'question_empty', undefined],
        [6, 'duplicate', 2],
        [7, 'duplicate', 1],
      ],
    )
    assert.equal(warnings[0]!.message, 'is an exact duplicate of line 1.')
  }
})

test('a prompt with two answers is reported with both lines; equal or unlearned rows do not conflict', async () => {
  const row = (...messages: [string, string, number?][]) =>
    JSON.stringify({
      messages: messages.map(([role, content, weight]) => ({ role, content, ...(weight !== undefined && { weight }) })),
    })
  const conversation = (question: string, answer: string) =>
    row(['system', 'Be short.'], ['user', question], ['assistant', answer])
  const rows = [
    conversation('sky?', 'blue'),
    conversation('grass?', 'green'),
    conversation('sky?', 'grey'),
    conversation('sky?', 'grey'),
    conversation('sky?', 'blue').replace('{', '{ '),
    row(['user', 'sky?'], ['assistant', 'black']),
    row(['system', 'Be short.'], ['user', 'sky?'], ['assistant', 'red', 0]),
    row(['user', 'sky?'], ['assistant', 'black'], ['user', 'and now?'], ['assistant', 'white']),
    row(['assistant', 'one']),
    row(['assistant', 'two']),
    row(['user', 'a'], ['assistant', 'bc']),
    row(['user', 'ab'], ['assistant', 'c']),
    // The longest texts that this line can have.
    row(['user', 'ü😀'.repeat(300_000)], ['assistant', 'x']),
    row(['user', 'ü😀'.repeat(300_000)], ['assistant', 'y']),
  ]
  const { conflicts, duplicates, warnings, error_count } = await check(Buffer.from(rows.join('\n')), 1000)
  // A row whose answer is not learned is an error by itself.
  assert.deepEqual([conflicts, duplicates, error_count], [2, 1, 1])
  const conflictWarnings = warnings.filter(({ code }) => code === 'conflicting_answer')
  assert.deepEqual(
    conflictWarnings.map(({ line, first_line }) => [line, first_line]),
    [
      [3, 1],
      [14, 13],
    ],
  )
  assert.match(conflictWarnings[0]!.message, /the prompt of line 1 with another answer/)
})

test('among two hundred thousand rows each first line is found', () => {
  const seen = createFingerprints(2)
  const bytes = (index: number) => Buffer.from(`row ${index}`)
  const count = 200_000
  for (let index = 0; index < count; index++)
    assert.equal(seen.firstOrAdd(fingerprint(bytes(index)), index + 1, [index, 7]), undefined)
  for (let index = 0; index < count; index += 997)
    assert.deepEqual(Array.from(seen.firstOrAdd(fingerprint(bytes(index)), 1, [0, 0])!), [index + 1, index, 7])
})

test('a million invalid rows list the first hundred and count the rest', async () => {
  const result = await check(Buffer.from('{}\n'.repeat(100_000)), 65_536)
  assert.equal(result.error_count, 100_000)
  assert.equal(result.errors.length, 100)
})

test('all example rows of the demo are valid, and no held-out ticket is among them', async () => {
  const read = (file: string) => readFileSync(path.join(root, 'examples', file))
  const [train, heldOut] = [read('ticket-triage.jsonl'), read('ticket-triage.heldout.jsonl')]
  assert.equal((await check(train, 65_536)).error_count, 0)
  const heldOutCheck = await check(heldOut, 65_536)
  assert.deepEqual([heldOutCheck.rows, heldOutCheck.error_count], [100, 0])
  const tickets = (content: Buffer) =>
    content
      .toString()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).messages.at(-2).content as string)
  const trained = new Set(tickets(train))
  assert.deepEqual(
    tickets(heldOut).filter((ticket) => trained.has(ticket)),
    [],
  )
})
