// Small parts that many rooms use: values that are loaded once, expected errors, memory of processes.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { createBar } from '../../cli/support/output.ts'
import { bar, table } from '../../cli/support/text.ts'
import { ApiError, undefinedIf } from '../../contract/errors.ts'
import { processMemoryMb } from '../../lib/child-process.ts'
import { parseJson } from '../../lib/json.ts'
import { lazy } from '../../lib/lazy.ts'
import { removeUnlessCommitted } from '../../server/platform/storage/durable-files.ts'

test('a value is loaded once for all who ask, and again after a failure', async () => {
  let loads = 0
  const value = lazy(async () => {
    if (++loads === 1) throw new Error('the disk is away')
    return loads
  })
  const failed = await Promise.allSettled([value(), value()])
  assert.deepEqual(
    failed.map(({ status }) => status),
    ['rejected', 'rejected'],
  )
  assert.deepEqual([await value(), await value()], [2, 2])
})

test('only the expected errors become undefined', async () => {
  const isGone = undefinedIf('file_not_found', 'dataset_not_found')
  assert.equal(isGone(new ApiError('file_not_found', 'gone')), undefined)
  for (const error of [new ApiError('overloaded', 'later'), new Error('disk I/O error')])
    await assert.rejects(Promise.reject(error).catch(isGone), error)
})

test('the memory of a process does not depend on the size of a page', (context) => {
  const proc = mkdtempSync(path.join(os.tmpdir(), 'tunery-proc-'))
  context.after(() => rmSync(proc, { recursive: true }))
  mkdirSync(path.join(proc, '7'))
  // As on a machine with pages of 64 KiB: 1,000 of them.
  writeFileSync(path.join(proc, '7', 'statm'), '2000 1000 500 10 0 900 0\n')
  writeFileSync(path.join(proc, '7', 'status'), 'Name:\tnode\nVmHWM:\t   70000 kB\nVmRSS:\t   64000 kB\nThreads:\t1\n')
  assert.equal(processMemoryMb(7, proc), 65.536)
  assert.equal(processMemoryMb(8, proc), 0)
  const measured = processMemoryMb(process.pid) * 1e6
  assert.ok(Math.abs(measured / process.memoryUsage.rss() - 1) < 0.2)
})

test('a large seed keeps its digits, and everything else is parsed as usual', () => {
  const text =
    '{"seed": 9007199254740993, "n": 9007199254740993, "inner": [{"seed": -9223372036854775808}, {"seed": 1.5e300}]}'
  assert.equal(
    JSON.stringify(parseJson(text)),
    '{"seed":9007199254740993,"n":9007199254740992,"inner":[{"seed":-9223372036854775808},{"seed":1.5e+300}]}',
  )
  assert.deepEqual(parseJson('{"seed": 42}'), { seed: 42 })
  assert.throws(() => parseJson('{"seed": 9007199254740993'), SyntaxError)
})

test('in a narrow terminal a table becomes blocks, and a progress line keeps its numbers', () => {
  const written: string[] = []
  const terminal = (columns: number) =>
    Object.assign(new PassThrough(), {
      isTTY: true,
      columns,
      write: (text: string) => written.push(text) > 0,
    }) as unknown as NodeJS.WriteStream
  const rows = [{ id: 'HuggingFaceTB/SmolLM2-1.7B-Instruct', methods: 'lora, qlora, full', license: 'apache-2.0' }]
  const columns = (['id', 'methods', 'license'] as const).map((head) => ({
    head,
    value: (row: (typeof rows)[0]) => row[head],
    flexible: head === 'license',
  }))
  const before = process.env.TERM
  Object.assign(process.env, { TERM: 'xterm', NO_COLOR: '1' })
  try {
    assert.equal(table(rows, columns, terminal(80)).split('\n').length, 2)
    const narrow = table(rows, columns, terminal(40))
    assert.ok(
      narrow.split('\n').every((line) => line.length <= 40),
      narrow,
    )
    for (const text of Object.values(rows[0]!)) assert.ok(narrow.replace(/\n +/g, ' ').includes(text), narrow)
    createBar(terminal(40), (share) => bar(share, 28, terminal(40))).show(0.42, '1.2 GB of 3.4 GB')
    assert.match(written.at(-1)!, /█+░+ {2}42 % {2}1\.2 GB of 3\.4 GB$/)
  } finally {
    process.env.TERM = before
    delete process.env.NO_COLOR
  }
})

test('files of a failed transaction are removed where the database says that it was not committed', async () => {
  let removals = 0
  const remove = async () => {
    removals++
  }
  await removeUnlessCommitted(async () => ({ id: 'model_1' }), remove)
  await removeUnlessCommitted(() => Promise.reject(new Error('the database is away')), remove)
  assert.equal(removals, 0)
  await removeUnlessCommitted(async () => undefined, remove)
  assert.equal(removals, 1)
})
