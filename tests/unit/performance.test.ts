// The records behind docs/performance.md: each names a machine, a day and a command that exists, and a missed target is
// called missed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { type Index, problemsOf, readCommands, readRecords, type Topic } from '../../scripts/docs/performance.ts'

const commands = readCommands(root)
const index: Index = { topics: ['a'], pages: [], machines: { Z: 'two cores' } }
const record = {
  claim: 'output, tokens/s',
  figure: '200',
  peer: '100',
  ratio: '2.0',
  target: '1.1',
  met: true,
  machine: 'Z',
  date: '2026-11-26',
  command: 'npm run bench -- serving --only throughput',
}
const problems = (change: object, ...more: (typeof record)[]) => {
  const topic: Topic = {
    title: 'T',
    about: [],
    breakdowns: [],
    bounds: [],
    records: [{ ...record, ...change }, ...more],
  }
  return problemsOf(index, [topic], commands)
}

test('the recorded results name machines and commands that exist, and say which targets were missed', () => {
  const { index, topics } = readRecords(root)
  assert.ok(topics.flatMap(({ records }) => records).length > 100)
  assert.deepEqual(problemsOf(index, topics, commands), [])
})

test('a record that cannot be right is refused', () => {
  assert.deepEqual(problems({}), [])
  assert.match(problems({ machine: 'Z, Q' }).join(), /no machine Q/)
  assert.match(problems({ command: 'npm run bench -- nothing' }).join(), /no bench nothing/)
  assert.match(problems({ command: 'npm run nothing' }).join(), /no command/)
  assert.match(problems({ command: 'npm run test:scale -- tests/scale/nothing.test.ts' }).join(), /no file/)
  assert.match(problems({ met: undefined }).join(), /belong together/)
  assert.match(problems({}, record).join(), /twice/)
})

test('a target is met where a speed is above it and a time below it', () => {
  assert.match(problems({ ratio: '1.0' }).join(), /met is true/)
  assert.match(problems({ ratio: '1.0', claim: 'first token' }).join(), /^$/)
  assert.match(problems({ ratio: '1.2', claim: 'first token' }).join(), /met is true/)
})
