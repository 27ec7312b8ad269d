// Python graders in their real sandboxes: what they score, and what hostile ones cannot do.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { after, test } from 'node:test'
import { root } from '../../lib/root.ts'
import {
  createPythonGraders,
  type PythonGraders,
  type PythonSource,
  type PythonValues,
} from '../../server/features/evaluations/graders/python/pool.ts'
import { GraderFailure } from '../../server/features/evaluations/graders/template.ts'
import { allowed } from '../support/allowed-time.ts'

const python = createPythonGraders({ processes: 2 })
const strict = createPythonGraders({ processes: 1, limits: { call_ms: 1000, memory_mb: 700 } })
after(() => {
  python.close()
  strict.close()
})
const { signal } = new AbortController()
const values = { sample: { output_text: '42' }, item: { reference: '42', n: 3 } }

const grader = (body: string, account_id = 'acc_a') => ({ account_id, source: `def grade(sample, item):\n    ${body}` })
const gradeBy = (pool: PythonGraders, body: string) => scoreOf(pool, grader(body), values)
const scoreOf = async (pool: PythonGraders, it: PythonSource, given: PythonValues = values) =>
  (await pool.grade(it, given, signal)).score

async function failureOf(work: Promise<unknown>): Promise<GraderFailure> {
  const error = await work.then(
    (score) => assert.fail(`it scored ${score}`),
    (error: Error) => error,
  )
  assert.ok(error instanceof GraderFailure, String(error.stack))
  return error
}

test('a grader scores with the standard library; its errors have Python’s message and line', async () => {
  const source = [
    'import re, json, math, difflib',
    'from fractions import Fraction',
    'def grade(sample, item):',
    '    close = difflib.SequenceMatcher(None, sample["output_text"], item["reference"]).ratio()',
    '    return 0.5 * close + float(Fraction(item["n"], 12)) + (item["missing"] if item["n"] > 3 else 0)',
  ].join('\n')
  const it = { account_id: 'acc_a', source }
  assert.equal(await scoreOf(python, it), 0.75)
  const failure = await failureOf(python.grade(it, { ...values, item: { ...values.item, n: 4 } }, signal))
  assert.deepEqual([failure.kind, failure.message], ['runtime', "KeyError: 'missing' (line 5)"])
  // One source for all: each has a process of its own.
  const runner = {
    account_id: 'acc_a',
    source: 'def grade(sample, item):\n    return eval(item["code"])\ndef leave():\n    raise SystemExit(0)',
  }
  for (const [code, kind, message] of [
    ['"high"', 'form', /value of the type str, not a number/],
    ['float("nan")', 'form', /no finite number/],
    ['10 ** 400', 'form', /no finite number/],
    ['leave()', 'runtime', /^SystemExit: 0 \(line 4\)$/],
    [
      '__import__("numpy")',
      'runtime',
      /No module named 'numpy': graders have Python's standard library alone \(line 2\)/,
    ],
    ['grade(sample, item)', 'runtime', /^RecursionError: /],
  ] as const) {
    const { kind: actual, message: text } = await failureOf(python.grade(runner, { ...values, item: { code } }, signal))
    assert.equal(actual, kind, code)
    assert.match(text, message)
  }
})

test('a source that defines no grade, or is no Python, is refused before it is used', async () => {
  await python.check(grader('return 1'))
  for (const [source, message] of [
    ['def score(sample, item): return 1', /write def grade\(sample, item\)/],
    ['def grade(sample, item)\n    return 1', /^SyntaxError: .* \(line 1\)$/],
    ['x = 1 / 0\ndef grade(sample, item): return 1', /^ZeroDivisionError: .* \(line 1\)$/],
  ] as const)
    assert.match((await failureOf(python.check({ account_id: 'acc_a', source }))).message, message)
})

test('a grader has no files, no network, no processes and no JavaScript', async () => {
  let reached = 0
  const server = createServer((_, response) => {
    reached++
    response.end('{}')
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address() as AddressInfo
  const secret = path.join(root, 'package.json')
  try {
    const runner = grader('exec(item["code"], {})\n    return 1')
    for (const code of [
      'import os; os.fork()',
      'import os; os.execv("/bin/sh", ["sh"])',
      'import subprocess; subprocess.run(["id"])',
      `open("${secret}").read()`,
      'import os; os.kill(os.getppid(), 9)',
      `import socket; socket.create_connection(("127.0.0.1", ${port})).sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")`,
      `import urllib.request; urllib.request.urlopen("http://127.0.0.1:${port}").read()`,
      'import threading; threading.Thread(target=print).start()',
      'import js',
      'from js import process',
      'import pyodide_js',
      'from pyodide.code import run_js; run_js("1")',
      'from pyodide.ffi import to_js',
      'import ctypes; ctypes.CDLL("libc.so.6").getpid()',
    ])
      await failureOf(python.grade(runner, { ...values, item: { code } }, signal))
    assert.equal(reached, 0, 'nothing came to the server')
  } finally {
    server.close()
  }
})

test('a grader that gets around the closed bridge still runs no code from text, and finds no way out', async () => {
  // It looks at every object of JavaScript that Python still holds, and takes what it can of each.
  const body = `
    import gc, sys
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "Closed"]
    import _pyodide_core
    found, seen = [o for o in gc.get_objects() if isinstance(o, _pyodide_core.JsProxy)], 0
    for proxy in found:
        seen += 1
        for escape in (
            lambda: proxy.constructor.constructor("return process")(),
            lambda: proxy.constructor.constructor("return this.process || globalThis.process")().pid,
            lambda: proxy.process.pid,
            lambda: proxy.require("fs"),
            lambda: _pyodide_core.run_js("1 + 1"),
        ):
            try:
                escape()
            except BaseException:
                continue
            return 1
    return 0`
  const work = gradeBy(python, body)
  const score = await work.catch((error: Error) => {
    assert.ok(error instanceof GraderFailure, String(error.stack))
    return 0
  })
  assert.equal(score, 0)
})

test('an endless loop and 10 GB cost the grader its time and its memory, and nobody else anything', async () => {
  const loop = await failureOf(gradeBy(strict, 'while True: pass'))
  assert.deepEqual([loop.kind, /takes longer than 1 s/.test(loop.message)], ['timeout', true], loop.message)
  const stubborn = grader(`
    while True:
        try:
            while True: pass
        except BaseException: pass`)
  assert.equal((await failureOf(strict.grade(stubborn, values, signal))).kind, 'timeout')
  for (const body of [
    'return len("x" * 10_000_000_000)',
    'return len(bytearray(300_000_000))',
    'x = [bytearray(10_000_000) for _ in range(1000)]; return len(x)',
  ])
    assert.match((await failureOf(gradeBy(strict, body))).message, /memory|OverflowError|no memory/i, body)
  assert.equal(await gradeBy(strict, 'return 1'), 1, 'the next grader is served')
})

test('graders of two accounts run at once, and neither sees what the other has left', async () => {
  const leaving = `
    import builtins, json
    builtins.left = getattr(builtins, "left", 0) + 1
    json.left = sample
    return builtins.left`
  const looking = `
    import builtins, json
    return 1 if hasattr(builtins, "left") or hasattr(json, "left") else 0`
  const graded = await Promise.all(
    Array.from({ length: 20 }, (_, index) =>
      scoreOf(python, index % 2 === 0 ? grader(leaving, 'acc_a') : grader(looking, 'acc_b'), {
        sample: `secret of ${index}`,
        item: {},
      }),
    ),
  )
  assert.ok(Math.max(...graded.filter((_, index) => index % 2 === 0)) >= 1)
  assert.deepEqual(new Set(graded.filter((_, index) => index % 2 === 1)), new Set([0]))
  // The same source, of another account.
  assert.equal(await scoreOf(python, grader(leaving, 'acc_c')), 1)
})

test('an answer that is too slow, fills the memory or breaks Python fails alone among others', async () => {
  const source = [
    'import ctypes',
    'def grade(sample, item):',
    '    n = item["n"]',
    '    while n == 3: pass',
    '    if n == 6: return len(bytearray(300_000_000))',
    '    if n == 9: ctypes.string_at(0xffffff00, 64)',
    '    return n',
  ].join('\n')
  const graded = await Promise.allSettled(
    Array.from({ length: 12 }, (_, n) => scoreOf(strict, { account_id: 'acc_a', source }, { sample: {}, item: { n } })),
  )
  const expected = Array.from({ length: 12 }, (_, n) => (n > 0 && n < 10 && n % 3 === 0 ? 'failed' : n))
  assert.deepEqual(
    graded.map((each) => (each.status === 'fulfilled' ? each.value : 'failed')),
    expected,
  )
  const kinds = graded.flatMap((each) => (each.status === 'rejected' ? [(each.reason as GraderFailure).kind] : []))
  assert.deepEqual(kinds, ['timeout', 'runtime', 'runtime'])
})

test('a warm sandbox takes milliseconds an answer, and ends what its run has given up', async () => {
  const it = grader('return len(sample["output_text"])')
  await python.grade(it, values, signal)
  const began = performance.now()
  await Promise.all(Array.from({ length: 256 }, () => python.grade(it, values, signal)))
  const each_ms = (performance.now() - began) / 256
  assert.ok(each_ms < allowed(10), `${each_ms} ms`)
  const run = new AbortController()
  const endless = python.grade(grader('while True: pass'), values, run.signal)
  setTimeout(() => run.abort(new Error('given up')), 200)
  await assert.rejects(endless, /given up/)
})

test('a sealed process opens nothing, reaches nothing, starts nothing, and signals nobody', () => {
  const script = `
    import { seal } from ${JSON.stringify(path.join(root, 'server/features/evaluations/graders/python/seal.ts'))}
    import { execSync } from 'node:child_process'
    import { readFileSync, writeFileSync, writeSync } from 'node:fs'
    import net from 'node:net'
    readFileSync('/proc/self/status')
    await new Promise((resolve) => setTimeout(resolve, 10))
    seal()
    const tries = {
      read: () => readFileSync('/proc/self/status'),
      write: () => writeFileSync('/dev/shm/sealed', ''),
      start: () => execSync('true'),
      signal: () => process.kill(process.ppid, 0),
    }
    const refused = Object.entries(tries).map(([name, work]) => {
      try { work(); return name + ' allowed' } catch (error) { return error.code }
    })
    net.connect(9, '127.0.0.1').on('error', (error) => {
      writeSync(1, JSON.stringify([...refused, error.code]))
      process.exit()
    })`
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', script], {
    encoding: 'utf8',
  })
  assert.equal(stdout.trim(), JSON.stringify(Array(5).fill('EPERM')), stderr)
})
