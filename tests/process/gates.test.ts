// Deployments behind a gate: a worse model is refused, a better one serves, and a roll-back loses no request.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { client, until } from '../support/client.ts'
import { same, uploadItems } from '../support/evaluations.ts'
import { full } from '../support/full.ts'
import { dataFolder } from '../support/server.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests()
let tuned: string
before(async () => {
  await app.started
  tuned = await app.colourModel()
})

const prompts = ['code of red?', 'code of green?', 'code of blue?', 'code of white?', 'hi', 'who?']
const sampling = { max_tokens: 8, temperature: 0 }
const answerOf = async (model: string, prompt: string): Promise<{ status: number; text: string }> => {
  const request = { model, messages: [{ role: 'user', content: prompt }], ...sampling }
  const { status, body } = await app.api('POST', '/chat/completions', request)
  return { status, text: body.choices?.[0].message.content }
}
const deployment = async (name: string) => (await app.api('GET', `/deployments/${name}`)).body
const history = async (name: string) => (await app.api('GET', `/deployments/${name}/history`)).body.items
const settled = (name: string) =>
  until('the gate to decide', async () => {
    const current = await deployment(name)
    return current.pending === null ? current : undefined
  })

/** An evaluation in which `best` scores 1 and every model that answers otherwise less. */
async function evaluationFor(best: string): Promise<string> {
  const items: object[] = []
  for (const content of prompts) {
    const reference = (await answerOf(best, content)).text
    items.push({ messages: [{ role: 'user', content }], reference })
  }
  const dataset = await uploadItems(app, items)
  const { body } = await app.api('POST', '/evaluations', { model: best, dataset, graders: [same], sampling })
  return body.id
}

test('a gate lets a better model serve and refuses a worse one; the history says why', async () => {
  const evaluation = await evaluationFor(tuned)
  await app.api('POST', '/deployments', { name: 'gated', model: tiny })
  const switchTo = async (model: string, gate: object) => {
    const { status, body } = await app.api('PUT', '/deployments/gated', { model, gate: { evaluation, ...gate } })
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.pending.model, model)
    return settled('gated')
  }
  const passed = await switchTo(tuned, {})
  assert.deepEqual([passed.model, passed.former_model], [tuned, tiny])
  const refused = await switchTo(tiny, {})
  assert.equal(refused.model, tuned, 'the better model keeps serving')
  assert.equal((await switchTo(tiny, { not_worse_than_current: false, min_score: 0.99 })).model, tuned)
  assert.equal((await switchTo(tiny, { not_worse_than_current: false })).model, tiny)
  const [third, second, first, begin, created] = await history('gated')
  assert.deepEqual(
    [created, begin, first, second, third].map(({ action, model }) => [action, model]),
    [
      ['created', tiny],
      ['gate_passed', tuned],
      ['gate_refused', tiny],
      ['gate_refused', tiny],
      ['gate_passed', tiny],
    ],
  )
  assert.match(first.reason, /worse than the current model by .*paired t-test/)
  assert.match(second.reason, /below 0\.99/)
  assert.match(begin.reason, /score is 1\.000/)
  assert.match(begin.evaluation, /^eval_/)
})

test('while a gate decides, another switch is refused; its evaluation can be cancelled', async () => {
  const evaluation = await evaluationFor(tiny)
  await app.api('POST', '/deployments', { name: 'waiting', model: tiny })
  const gate = { evaluation }
  const { body } = await app.api('PUT', '/deployments/waiting', { model: tuned, gate })
  const again = await app.api('PUT', '/deployments/waiting', { model: tuned })
  if (again.status === 400) assert.equal(again.body.error.code, 'gate_pending')
  await app.api('POST', `/evaluations/${body.pending.evaluation}/cancel`)
  await settled('waiting')
  assert.equal((await history('waiting')).at(0).action, 'gate_refused')
  const unknown = await app.api('PUT', '/deployments/waiting', { model: tuned, gate: { evaluation: 'eval_none' } })
  assert.deepEqual([unknown.status, unknown.body.error.code], [404, 'evaluation_not_found'])
})

test('of two gates at once one is taken, and a roll-back ends the gate that waits', async () => {
  const items = Array.from({ length: 200 }, (_, index) => ({ messages: [{ role: 'user', content: `${index}?` }] }))
  const dataset = await uploadItems(app, items)
  const grader = { type: 'regex', name: 'any', pattern: '.' }
  const slow = { max_tokens: 64, temperature: 2 }
  const request = { model: tiny, dataset, graders: [grader], sampling: slow }
  const evaluation = (await app.api('POST', '/evaluations', request)).body.id
  await app.api('POST', `/evaluations/${evaluation}/cancel`)
  await app.api('POST', '/deployments', { name: 'twice', model: tiny })
  await app.api('PUT', '/deployments/twice', { model: tuned })
  const put = () => app.api('PUT', '/deployments/twice', { model: tiny, gate: { evaluation } })
  const both = await Promise.all([put(), put(), app.api('PUT', '/deployments/twice', { model: tuned })])
  const taken = both.slice(0, 2).filter(({ status }) => status === 200)
  assert.equal(taken.length, 1, JSON.stringify(both.map(({ body }) => body)))
  const waiting = await deployment('twice')
  assert.deepEqual([waiting.pending.model, waiting.model], [tiny, tuned])
  const back = (await app.api('POST', '/deployments/twice/rollback')).body
  assert.deepEqual([back.model, back.former_model, back.pending], [tiny, tuned, null])
  const ended = (await app.api('GET', `/evaluations/${waiting.pending.evaluation}`)).body
  assert.equal(ended.status, 'cancelled')
  const changes = (await history('twice')).map(({ action }: { action: string }) => action)
  assert.ok(changes.includes('gate_refused') && changes.includes('rolled_back'), changes.join())
})

test('a roll-back under live traffic fails no request', async () => {
  await app.api('POST', '/deployments', { name: 'live', model: tiny })
  assert.equal((await app.api('POST', '/deployments/live/rollback')).status, 400, 'it served nothing before')
  await app.api('PUT', '/deployments/live', { model: tuned })
  let running = true
  const statuses: number[] = []
  const traffic = [1, 2, 3].map(async (index) => {
    while (running) statuses.push((await answerOf('live', `hi ${index}`)).status)
  })
  await until('some traffic', () => statuses.length > 5)
  for (const model of [tiny, tuned, tiny]) {
    const { status, body } = await app.api('POST', '/deployments/live/rollback')
    assert.deepEqual([status, body.model], [200, model])
    const before = statuses.length
    await until('more traffic', () => statuses.length > before + 5)
  }
  running = false
  await Promise.all(traffic)
  assert.deepEqual([...new Set(statuses)], [200], `${statuses.length} requests`)
  assert.equal((await history('live'))[0].action, 'rolled_back')
})

test('a gate decides once, also when the server is killed while it is evaluated', full, async () => {
  const folder = dataFolder('gates')
  const server = await folder.start()
  try {
    const first = client(server.url, folder.key())
    const rows = Array.from({ length: 60 }, (_, index) =>
      JSON.stringify({
        messages: [
          { role: 'user', content: `${index}?` },
          { role: 'assistant', content: 'x' },
        ],
      }),
    )
    const dataset = (await first.upload(rows.join('\n'))).body.id
    const settings = { model: tiny, dataset, graders: [same], sampling: { max_tokens: 32 } }
    const evaluationId = (await first.api('POST', '/evaluations', settings)).body.id
    await first.api('POST', `/evaluations/${evaluationId}/cancel`)
    await first.api('POST', '/deployments', { name: 'killed', model: tiny })
    const gate = { evaluation: evaluationId }
    const { evaluation } = (await first.api('PUT', '/deployments/killed', { model: tiny, gate })).body.pending
    await until('it to begin', async () => (await first.api('GET', `/evaluations/${evaluation}`)).body.done > 0)
    await server.end('SIGKILL')
    const again = await folder.start()
    const second = client(again.url, folder.key())
    await until(
      'the gate to decide',
      async () => (await second.api('GET', '/deployments/killed')).body.pending === null,
    )
    const changes = (await second.api('GET', '/deployments/killed/history')).body.items
    assert.deepEqual(
      changes.map(({ action }: { action: string }) => action),
      ['gate_passed', 'created'],
    )
    await again.end('SIGTERM')
  } finally {
    await folder.remove()
  }
})
