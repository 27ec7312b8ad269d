// Graders, their templates and formulas, and the statistics of a result.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mock, test } from 'node:test'
import { z } from 'zod'
import type { ApiError } from '../../contract/errors.ts'
import { Evaluation, samplingDefaults } from '../../contract/evaluations.ts'
import type { Grader } from '../../contract/graders.ts'
import { checkGraders } from '../../server/features/evaluations/check.ts'
import { createCompileCheck } from '../../server/features/evaluations/graders/compile-check.ts'
import { compileFormula, FormulaError } from '../../server/features/evaluations/graders/formula.ts'
import { compile, gradeLocally, type LocalGrader } from '../../server/features/evaluations/graders/local.ts'
import { similarity } from '../../server/features/evaluations/graders/similarity.ts'
import { fill, GraderError, templateProblem } from '../../server/features/evaluations/graders/template.ts'
import { createGradingThread, GraderTooSlow } from '../../server/features/evaluations/graders/thread.ts'
import { drawnRows } from '../../server/features/evaluations/items.ts'
import { resultOf, sumGraders } from '../../server/features/evaluations/result.ts'
import { meanInterval, t975 } from '../../server/features/evaluations/statistics.ts'
import { allowed } from '../support/allowed-time.ts'
import { full } from '../support/full.ts'

const item = { text: 'a', list: [{ name: 'b' }], object: { x: 1 }, empty: null }
const near = (actual: number, expected: number, within = 1e-3) =>
  assert.ok(Math.abs(actual - expected) <= within, `${actual}, not ${expected}`)

test('templates read fields of the row and the answer, and nothing else', () => {
  const sample = { output_text: 'out', output_json: { city: 'Oslo' } }
  const values = { item, sample }
  assert.equal(fill('{{item.text}} {{ item.list.0.name }} {{item.object}}', values), 'a b {"x":1}')
  assert.equal(fill('{{sample.output_text}}, {{sample.output_json.city}}', values), 'out, Oslo')
  assert.equal(fill('$& $1 {single}', values), '$& $1 {single}')
  for (const name of ['item.constructor', 'item.__proto__.x', 'item.text.length', 'item.nothing', 'item.empty'])
    assert.throws(() => fill(`{{${name}}}`, values), GraderError, name)
  const long = { item: { text: 'x'.repeat(200_000) } }
  assert.throws(() => fill('{{item.text}}'.repeat(6), long), /longer than/)
  for (const name of ['process.env', 'items.x', 'sample.', 'item..x', ''])
    assert.ok(templateProblem(`{{${name}}}`), name)
  assert.equal(templateProblem('{{item.x}} {{sample}}'), undefined)
})

test('an evaluation with tools can be written into an answer', () => {
  const tools = [{ type: 'function', function: { name: 'weather', parameters: {} } }]
  const sampling = { ...samplingDefaults, tools }
  const written = z.encode(Evaluation.shape.sampling, sampling as never)
  assert.equal(written.tools?.[0]?.function.name, 'weather')
})

test('formulas are arithmetic over the scores', () => {
  const scores = { a: 0.5, b: 2 }
  for (const [text, value] of [
    ['a + b * 2', 4.5],
    ['(a + b) * 2', 5],
    ['2 ** 3 ** 2', 512],
    ['-a - -b', 1.5],
    ['max(a, b, 3) / min(a, 1)', 6],
    ['1e-2 * 0.5 * b', 0.01],
    ['round(sqrt(b + 7))', 3],
  ] as const)
    assert.equal(compileFormula(text, ['a', 'b'])(scores), value, text)
  for (const text of ['c', 'a +', 'a b', 'constructor(a)', 'eval(a)', 'a; b', '"a"', '('.repeat(60), 'a.b', ''])
    assert.throws(() => compileFormula(text, ['a', 'b']), FormulaError, text)
})

test('similarities have their known values', () => {
  assert.equal(similarity('fuzzy_match', 'kitten', 'kitten'), 1)
  near(similarity('fuzzy_match', 'kitten', 'sitting'), 8 / 13)
  near(similarity('rouge_1', 'the cat sat', 'the cat ate'), 2 / 3)
  near(similarity('rouge_2', 'the cat sat', 'the cat ate'), 1 / 2)
  near(similarity('rouge_l', 'the cat on the mat', 'the cat is on the mat'), 10 / 11)
  near(similarity('gleu', 'the cat sat', 'the cat ate'), 3 / 6)
  assert.equal(similarity('bleu', 'the cat is on the mat', 'the cat is on the mat'), 1)
  assert.ok(similarity('bleu', 'something else entirely', 'the cat is on the mat') < 0.1)
  for (const metric of ['fuzzy_match', 'bleu', 'gleu', 'rouge_3', 'rouge_l'] as const) {
    assert.equal(similarity(metric, '', ''), 1, metric)
    assert.equal(similarity(metric, '', 'words'), 0, metric)
  }
  assert.throws(() => similarity('fuzzy_match', 'x'.repeat(20_000), 'x'), GraderError)
})

test('each grader scores what it says', () => {
  const call = (name: string, args: object) => ({ function: { name, arguments: JSON.stringify(args) } })
  const values = (output_text: string, more: object = {}, row: object = {}) => ({
    item: { reference: '{"city":"Oslo","days":2}', ...row },
    sample: { output_text, output_tools: [], ...more },
  })
  const score = (grader: object, given: ReturnType<typeof values>) =>
    gradeLocally(
      { name: 'x', input: '{{sample.output_text}}', reference: '{{item.reference}}', ...grader } as LocalGrader,
      given,
    ).score
  const check = (operation: string, text: string) =>
    score({ type: 'string_check', reference: 'Oslo', operation }, values(text))
  assert.deepEqual(
    [check('eq', 'Oslo'), check('ne', 'Oslo'), check('like', 'in Oslo'), check('ilike', 'OSLO!')],
    [1, 0, 1, 1],
  )
  assert.equal(score({ type: 'json_equal' }, values('{"days":2,"city":"Oslo","more":1}')), 1)
  assert.equal(score({ type: 'json_equal' }, values('```json\n{"city":"Oslo","days":3}\n```')), 0.5)
  assert.equal(score({ type: 'json_equal', fields: ['city'] }, values('{"city":"Oslo","days":3}')), 1)
  assert.equal(score({ type: 'json_equal' }, values('no json')), 0)
  const schema = { type: 'object', required: ['city'], properties: { city: { enum: ['Oslo'] } } }
  assert.equal(score({ type: 'json_schema', schema }, values('{"city":"Oslo"}')), 1)
  assert.equal(score({ type: 'json_schema', schema }, values('{"city":"Lima"}')), 0)
  assert.equal(score({ type: 'regex', pattern: '^o', ignore_case: true, negate: false }, values('Oslo')), 1)
  assert.equal(score({ type: 'regex', pattern: 'x', ignore_case: false, negate: true }, values('Oslo')), 1)
  const output = { output_tools: [call('weather', { city: 'Oslo', unit: 'c' })] }
  const reference = { reference_calls: [call('weather', { city: 'Oslo' })] }
  assert.equal(score({ type: 'tool_call' }, values('', output, reference)), 1)
  assert.equal(score({ type: 'tool_call', function: 'weather', arguments: { city: 'Lima' } }, values('', output)), 0)
  assert.throws(() => score({ type: 'tool_call' }, values('', output)), GraderError)
})

test('templates and fences take time in proportion to their length, whatever they hold', { timeout: 10_000 }, () => {
  const long = 100_000
  const values = { item: { text: 'a' } }
  // A text that is short enough to end where the time grows with its cube.
  const before = process.threadCpuUsage().user
  templateProblem(`{{${' '.repeat(1500)}`)
  assert.ok(process.threadCpuUsage().user - before < 500_000)
  for (const piece of ['{{', ' ', '{{ ', '{{x', '}', '{', '{{ } ', '{{item.text}} ', '{{item.', '\n'])
    for (const template of [piece.repeat(long / piece.length), `{{${piece.repeat(long / piece.length)}`]) {
      templateProblem(template)
      try {
        fill(template, values)
      } catch (error) {
        assert.ok(error instanceof GraderError)
      }
    }
  const equal = { type: 'json_equal', name: 'x', input: '{{item.text}}', reference: '1' } as const
  for (const piece of ['\n', ' ', '```json\n', '```'])
    assert.equal(gradeLocally(equal, { item: { text: `\`\`\`json ${piece.repeat(long)}` } }).score, 0)
})

const regex = (pattern: string) =>
  ({ type: 'regex', name: 'x', input: '{{item.text}}', pattern, ignore_case: false, negate: false }) as const

test('patterns of clients are of RE2: no text takes more than linear time', { timeout: 10_000 }, () => {
  const text = `${'a'.repeat(200_000)}!`
  const score = (pattern: string, of = text) => gradeLocally(regex(pattern), { item: { text: of } }).score
  for (const pattern of ['^(a+)+$', '(a|a)*b', '(.*a){20}b', 'a*a*a*a*a*b']) assert.equal(score(pattern), 0, pattern)
  assert.equal(score('^a+!$'), 1)
  // As JavaScript writes them, in evaluations that are stored.
  assert.equal(score('^caf\\u00e9 (?<n>\\d+)/$', 'café 12/'), 1)
  for (const pattern of ['(?=a)b', '(a)\\1', '(?<!a)b', '(a{1000}){1000}', '['])
    assert.throws(() => score(pattern), /is no pattern of RE2/, pattern)
})

test('a schema that is too large to compile is refused, and writes nothing to the log', full, () => {
  const properties = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`p${index}`, { minLength: 1 }]))
  const error = mock.method(console, 'error', () => {})
  assert.throws(() => compile({ schema: { properties } }), /The schema cannot be used/)
  error.mock.restore()
  assert.equal(error.mock.callCount(), 0)
})

test('a grader that takes too long costs its thread, and the next one has another', async () => {
  const thread = createGradingThread()
  const slow = (pattern: string) =>
    ({
      type: 'json_schema',
      name: 'x',
      input: '{"text":"{{item.text}}"}',
      schema: { properties: { text: { pattern } } },
    }) as const
  const values = { item: { text: `${'a'.repeat(40)}!` } }
  await assert.rejects(thread.grade(slow('^(a+)+$'), values), GraderTooSlow)
  assert.equal((await thread.grade(slow('^a+!$'), values)).score, 1)
  await assert.rejects(thread.grade(regex('x'), { item: {} }), GraderError)
  // Its validator fails after the thread has answered; the process must not end by it.
  const late = { type: 'json_schema', name: 'x', input: '{}', schema: { $async: true, required: ['a'] } } as const
  for (let count = 0; count < 5; count++) await thread.grade(late, { item: {} }).catch(() => {})
  assert.equal((await thread.grade(regex('^a+!$'), values)).score, 1)
  await thread.close()
})

test('a thread that gets no core is not too slow: its CPU time counts', full, async () => {
  const thread = createGradingThread()
  const schema = { properties: Object.fromEntries(Array.from({ length: 400 }, (_, index) => [`p${index}`, {}])) }
  const bounds = { left_ms: 2000 }
  await thread.compile({ schema }, bounds)
  const alone_ms = 2000 - bounds.left_ms
  const loops = Array.from({ length: 20 }, () => spawn('sh', ['-c', 'while :; do :; done'], { stdio: 'ignore' }))
  try {
    const beside = { left_ms: 2000 }
    const began = performance.now()
    await thread.compile({ schema: { ...schema, title: 'another' } }, beside)
    const spent_ms = 2000 - beside.left_ms
    assert.ok(spent_ms < 3 * alone_ms + 50, `${spent_ms} ms of ${performance.now() - began}, alone ${alone_ms}`)
  } finally {
    for (const loop of loops) loop.kill('SIGKILL')
    await thread.close()
  }
})

test('graders of one answer share a time, and end with what waits for them', async () => {
  const thread = createGradingThread()
  const values = { item: { text: `${'a'.repeat(40)}!` } }
  const endless = {
    ...regex('x'),
    type: 'json_schema',
    input: '"{{item.text}}"',
    schema: { pattern: '^(a+)+$' },
  } as const
  const control = new AbortController()
  const waiting = Array.from({ length: 8 }, () =>
    thread.grade(endless, values, { signal: control.signal, left_ms: 10_000 }),
  )
  // An error that is not the grader's counts for nothing.
  const ended = Promise.all(
    waiting.map((grade) => assert.rejects(grade, (error: Error) => !(error instanceof GraderError))),
  )
  await new Promise((resolve) => setTimeout(resolve, 100))
  control.abort()
  const began = performance.now()
  await ended
  assert.ok(performance.now() - began < allowed(1000), 'all ended at once, not after two seconds each')

  const bounds = { signal: new AbortController().signal, left_ms: 1500 }
  assert.equal((await thread.grade(regex('^a+!$'), values, bounds)).score, 1)
  assert.ok(bounds.left_ms <= 1500)
  await assert.rejects(thread.grade(endless, values, bounds), /takes too long, together with what came before it/)
  assert.ok(bounds.left_ms <= 0)
  await assert.rejects(thread.grade(endless, values, bounds), GraderTooSlow)
  await thread.close()
})

test('new graders compile in a thread, and those that cannot be used are refused with their field', async () => {
  const unused = { check: () => assert.fail(), problem: () => assert.fail() }
  const check = { compile: createCompileCheck(), python: unused, endpoints: unused }
  const schema = (schema: object) => ({ type: 'json_schema', name: 's', input: 'x', schema }) as Grader
  const refused = (graders: Grader[], message: RegExp) =>
    assert.rejects(checkGraders(check, 'a', graders), (error: ApiError) => {
      assert.deepEqual([error.code, message.test(error.message)], ['invalid_request', true], error.message)
      return true
    })
  await checkGraders(check, 'a', [schema({ type: 'object' }), { ...regex('^a+$'), name: 'r' }])
  await refused([schema({ type: 'nothing' })], /^'graders.0.schema': The schema cannot be used/)
  await refused([schema({ pattern: '[' })], /^'graders.0.schema'/)
  await refused([regex('(?=a)b')], /^'graders.0.pattern': is no pattern of RE2: .*\(\?=/)
  const parts = Object.fromEntries(Array.from({ length: 50 }, (_, index) => [`p${index}`, schema({})]))
  const multi = { type: 'multi', name: 'm', graders: parts, calculate_output: 'p0', pass_threshold: 0.5 } as Grader
  await checkGraders(check, 'a', [multi])
  await refused([multi, regex('a')], /'graders': has 51 graders with the parts of multi, and may have 50/)
  const large = (index: number) => ({ ...schema({ description: 'x'.repeat(99_000) }), name: `s${index}` }) as Grader
  await refused([0, 1, 2, 3].map(large), /'graders': is longer than 300000 characters/)
})

test('the interval is that of Student’s t, and the difference is paired', async () => {
  for (const [freedom, quantile] of [
    [1, 12.7062],
    [2, 4.3027],
    [3, 3.1824],
    [5, 2.5706],
    [10, 2.2281],
    [30, 2.0423],
    [1000, 1.9623],
  ] as const)
    near(t975(freedom), quantile, freedom < 5 ? 0.02 : 0.002)
  assert.deepEqual(meanInterval([]), null)
  assert.deepEqual(meanInterval([1]), { mean: 1, low: null, high: null })
  const { low, high } = meanInterval([0, 0, 1, 1])!
  near(low!, 0.5 - 0.9186, 0.01)
  near(high!, 0.5 + 0.9186, 0.01)
  const figure = (row: number, side: 'model' | 'baseline', score: number) => ({
    row,
    side,
    score,
    passed: score,
    ungraded: 0,
    latency_ms: 10 * row,
    prompt_tokens: 1,
    cached_tokens: 0,
    completion_tokens: 2,
    errors: 0,
  })
  const pairs = [1, 2, 3].flatMap((row) => [figure(row, 'model', 1), figure(row, 'baseline', row === 3 ? 1 : 0)])
  const figures = [...pairs, figure(4, 'model', 0)]
  const sums = await sumGraders(
    (async function* () {
      for (const { side, score } of figures)
        yield { side, graders_json: JSON.stringify({ same: { score, passed: score === 1 } }) }
    })(),
  )
  const result = resultOf(figures, sums, 'a', 'b')!
  assert.deepEqual([result.difference!.better, result.difference!.equal, result.difference!.worse], [2, 1, 0])
  near(result.difference!.mean, 2 / 3)
  near(result.model.pass_rate!, 3 / 4)
  assert.deepEqual(result.model.latency_ms, { p50: 30, p95: 40 })
})

test('the same rows are drawn each time, all of them different', () => {
  const rows = drawnRows(1000, 100)
  assert.equal(rows.size, 100)
  assert.deepEqual(rows, drawnRows(1000, 100))
  assert.ok(Math.min(...rows) >= 1 && Math.max(...rows) <= 1000)
  assert.equal(drawnRows(5, 5).size, 5)
})
