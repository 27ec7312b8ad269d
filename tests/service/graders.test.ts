// Graders of the user's own, and judges, in evaluations and by OpenAI's routes: real sandboxes, an endpoint on this
// machine, an upstream that judges.
import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import type { Evaluation } from '../../contract/evaluations.ts'
import { evaluationEnded } from '../support/evaluations.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { type FakeUpstream, json, startFakeUpstream } from '../support/upstream.ts'

interface Posted {
  headers: IncomingMessage['headers']
  text: string
  body: { grader: string; sample: { output_text: string }; item: { n: number } }
}

let app: TestApp
let judge: FakeUpstream
const posted: Posted[] = []
let answerPost: (posted: Posted, response: ServerResponse) => void
const endpoint = createServer((request, response) => {
  let text = ''
  request.on('data', (part) => {
    text += part
  })
  request.on('end', () => {
    const each = { headers: request.headers, text, body: JSON.parse(text) }
    posted.push(each)
    answerPost(each, response)
  })
})
let url: string

before(async () => {
  await new Promise<void>((resolve) => endpoint.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}/score`
  judge = await startFakeUpstream((_path, _body, response) => {
    const message = { role: 'assistant', content: '{"result": 0.5}' }
    json(response, 200, {
      choices: [{ index: 0, message, finish_reason: 'stop' }],
      usage: { prompt_tokens: 90, completion_tokens: 10, total_tokens: 100 },
    })
  })
  app = await startApp({
    TUNERY_UPSTREAMS: JSON.stringify([{ kind: 'openai', model: 'far/judge', url: judge.url }]),
    TUNERY_WEBHOOK_ALLOW: '127.0.0.1/32',
  })
})
after(async () => {
  await app.stop()
  judge.stop()
  endpoint.close()
})

const rowsOf = (count: number) =>
  Array.from({ length: count }, (_, n) => ({ item: { n, reference: `${n}` }, sample: { output_text: `${n % 4}` } }))
const python = (body: string, name = 'code') => ({
  type: 'python',
  name,
  source: `def grade(sample, item):\n    ${body}\n`,
})
const right = python('return 1.0 if sample["output_text"] == item["reference"] else 0')
const yours = () => ({ type: 'endpoint', name: 'yours', url })
const scoring = {
  type: 'score_model',
  name: 'judge',
  model: 'far/judge',
  input: [{ role: 'user', content: 'Rate {{sample.output_text}}' }],
}

/** Grades answers that rows bring, by an eval of OpenAI's API; resolves with the evaluation. */
async function evaluated(graders: object[], rows: object[] = rowsOf(8), it: Pick<TestApp, 'api'> = app) {
  const definition = await it.api('POST', '/evals', {
    data_source_config: { type: 'custom', item_schema: {}, include_sample_schema: true },
    testing_criteria: graders,
  })
  assert.equal(definition.status, 201, JSON.stringify(definition.body))
  const source = { type: 'file_content', content: rows }
  const run = await it.api('POST', `/evals/${definition.body.id}/runs`, { data_source: { type: 'jsonl', source } })
  assert.equal(run.status, 201, JSON.stringify(run.body))
  return evaluationEnded(it, run.body.id)
}
const side = (evaluation: Evaluation) => evaluation.result!.model

test('python, endpoint and judge grade together, alone and in a formula, and what they took is reported', async () => {
  answerPost = ({ body }, response) => json(response, 200, { score: body.item.n / 10 })
  const together = {
    type: 'multi',
    name: 'all',
    graders: { code: right, yours: yours(), judge: scoring },
    calculate_output: '0.5 * code + 0.25 * yours + 0.25 * judge',
  }
  const evaluation = await evaluated([right, yours(), together])
  assert.equal(evaluation.status, 'completed', JSON.stringify(evaluation.error))
  const { graders, grader_figures, judges, ungraded } = side(evaluation)
  const near = (actual: number | undefined, expected: number) =>
    assert.ok(Math.abs(actual! - expected) < 1e-9, `${actual}, not ${expected}`)
  near(graders.code, 0.5)
  near(graders.yours, 0.35)
  near(graders.all, 0.25 + 0.0875 + 0.125)
  assert.equal(ungraded, 0)
  assert.deepEqual([judges!.requests, judges!.prompt_tokens, judges!.completion_tokens], [8, 720, 80])
  for (const name of ['code', 'yours', 'all']) {
    const { answers, errors, latency_ms } = grader_figures![name]!
    assert.deepEqual([answers, errors], [8, 0], name)
    assert.ok(latency_ms!.mean > 0 && latency_ms!.p95 >= latency_ms!.mean / 2, name)
  }
  const { body } = await app.api('GET', `/evaluations/${evaluation.id}/rows`)
  assert.deepEqual(Object.keys(body.items[0].model.graders.all.parts), ['code', 'yours', 'judge'])
})

test('requests to an endpoint are signed as webhooks are, and retried with the same id', async () => {
  posted.length = 0
  answerPost = ({ body }, response) => {
    const again = posted.filter((other) => other.body.item.n === body.item.n).length > 1
    json(response, again ? 200 : 503, { score: 1 })
  }
  const evaluation = await evaluated([yours()], rowsOf(2))
  assert.deepEqual(
    [evaluation.status, side(evaluation).score!.mean],
    ['completed', 1],
    JSON.stringify(evaluation.error),
  )
  const { secret } = (await app.api('GET', '/graders/secrets/default')).body
  assert.equal(posted.length, 4)
  for (const { headers, text } of posted) new Webhook(secret).verify(text, headers as Record<string, string>)
  assert.equal(new Set(posted.map(({ headers }) => headers['webhook-id'])).size, 2)
  const other = (await app.api('GET', '/graders/secrets/second')).body.secret
  assert.notEqual(other, secret)
  assert.notEqual((await app.other.api('GET', '/graders/secrets/default')).body.secret, secret)
})

test('a grader that fails gives no score, is counted with its error, and stops the run above a share', async () => {
  const seldom = python('if item["n"] == 3: raise ValueError("no three")\n    return 1')
  const some = await evaluated([seldom, { ...right, name: 'right' }], rowsOf(12))
  assert.equal(some.status, 'completed')
  const { score, ungraded, errors, grader_figures, rows } = side(some)
  assert.deepEqual([rows, ungraded, errors], [12, 1, 1])
  assert.equal(grader_figures!.code!.last_error, 'ValueError: no three (line 2)')
  // Eleven rows with a score of 1 and 0 or 1: of these three are right.
  assert.ok(Math.abs(score!.mean - (11 + 3) / 22) < 1e-9, `${score!.mean}`)
  const { items } = (await app.api('GET', `/evaluations/${some.id}/rows?limit=100`)).body
  const failed = items.find(({ row }: { row: number }) => row === 4).model
  assert.deepEqual([failed.score, failed.graders.code.score, failed.graders.code.failure], [null, null, 'runtime'])
  assert.match(failed.error.message, /'code' failed: ValueError: no three/)

  const often = python('return item["missing"]')
  const stopped = await evaluated([often], rowsOf(40))
  assert.deepEqual([stopped.status, stopped.error!.code], ['failed', 'graders_failed'])
  assert.match(stopped.error!.message, /failed on \d+ of \d+ answers, more than the 20 % .*KeyError: 'missing'/)
  assert.ok(stopped.done < 40, `${stopped.done} of 40`)

  answerPost = (_posted, response) => json(response, 200, { score: 'high' })
  const wrong = await evaluated([yours()], rowsOf(12))
  assert.deepEqual([wrong.status, wrong.error!.code], ['failed', 'graders_failed'])
  assert.match(wrong.error!.message, /did not answer with \{"score": …\}/)
})

test('judges end with their budget of tokens', async () => {
  const { status, body } = await app.api('POST', '/evaluations', {
    model: 'far/judge',
    dataset: (
      await app.upload(
        rowsOf(40)
          .map(({ item }) => JSON.stringify(messagesOf(item)))
          .join('\n'),
      )
    ).body.id,
    graders: [scoring],
    grading: { judge_tokens_max: 1000 },
  })
  assert.equal(status, 201, JSON.stringify(body))
  const evaluation = await evaluationEnded(app, body.id)
  assert.deepEqual([evaluation.status, evaluation.error!.code], ['failed', 'judge_budget_spent'])
  assert.match(evaluation.error!.message, /judge_tokens_max/)
  // Ten judgements, those in flight, and the answers.
  const { requests } = side(evaluation).judges!
  assert.ok(requests <= 18, `${requests}`)
})
const messagesOf = ({ n, reference }: { n: number; reference: string }) => ({
  messages: [
    { role: 'user', content: `number ${n}` },
    { role: 'assistant', content: reference },
  ],
})

test('OpenAI’s routes run a grader on one answer, and check it', async () => {
  const run = (grader: object, model_sample: string, item: object = {}) =>
    app.api('POST', '/fine_tuning/alpha/graders/run', { grader, model_sample, item })
  const good = await run(right, '7', { reference: '7' })
  assert.deepEqual([good.status, good.body.reward, good.body.metadata.type], [200, 1, 'python'])
  const bad = await run(right, '7', {})
  assert.deepEqual([bad.status, bad.body.reward], [200, null])
  assert.deepEqual(
    [
      bad.body.metadata.errors.python_grader_runtime_error,
      bad.body.metadata.errors.python_grader_runtime_error_details,
    ],
    [true, "KeyError: 'reference' (line 2)"],
  )
  const both = { type: 'multi', name: 'both', graders: { right, judge: scoring }, calculate_output: 'right + judge' }
  const summed = (await run(both, '7', { reference: '7' })).body
  assert.deepEqual([summed.reward, summed.sub_rewards], [1.5, { right: 1, judge: 0.5 }])
  assert.equal(summed.model_grader_token_usage_per_model['far/judge'].total_tokens, 100)
  assert.deepEqual([summed.metadata.token_usage, summed.metadata.sampled_model_name], [100, 'far/judge'])

  const validate = (grader: object) => app.api('POST', '/fine_tuning/alpha/graders/validate', { grader })
  assert.deepEqual((await validate(right)).body.grader.source, right.source)
  for (const [grader, code, message] of [
    [{ ...right, source: 'def grade(sample item): pass' }, 'invalid_request', /SyntaxError/],
    [{ ...right, source: 'import js\ndef grade(s, i): return 1' }, 'invalid_request', /No module named 'js'.*line 1/],
    [{ ...yours(), url: 'http://169.254.169.254/latest' }, 'address_blocked', /metadata service/],
    [{ ...yours(), url: 'https://10.0.0.8/score' }, 'address_blocked', /may not be reached/],
    [{ ...scoring, model: 'none' }, 'model_not_found', /none/],
  ] as const) {
    const { status, body } = await validate(grader)
    assert.deepEqual([status >= 400, body.error.code], [true, code], JSON.stringify(body))
    assert.match(body.error.message, message)
  }
})

test('an endpoint that hangs, answers too much or redirects fails within its time', async () => {
  const run = async () => {
    const grader = { ...yours(), timeout_seconds: 1 }
    const { body } = await app.api('POST', '/fine_tuning/alpha/graders/run', { grader, model_sample: 'x' })
    return [body.reward, body.metadata.errors.details]
  }
  answerPost = (_posted, response) => json(response, 200, { score: 1, more: 'x'.repeat(100_000) })
  assert.deepEqual(await run(), [null, 'The endpoint did not answer: its answer has more than 65536 bytes.'])
  answerPost = (_posted, response) => response.writeHead(302, { location: 'http://169.254.169.254/' }).end()
  assert.deepEqual(await run(), [null, 'The endpoint did not answer: it answered 302.'])
  answerPost = () => {}
  assert.deepEqual(await run(), [null, 'The endpoint did not answer: no answer within 1 s.'])
})
