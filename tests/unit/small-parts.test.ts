// Small parts that many rooms use: values that are loaded once, expected errors, memory of processes.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { ApiError, undefinedIf } from '../../contract/errors.ts'
import { processMemoryMb } from '../../lib/child-process.ts'
import { parseJson } from '../../lib/json.ts'
import { lazy } from '../../lib/lazy.ts'

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
