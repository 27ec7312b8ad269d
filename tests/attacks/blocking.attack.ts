// One small request tries to stop everyone: texts, patterns and schemas that take the service's thread, against the
// real service in its own process. Its own watch of the event loop tells what held it.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { allowed } from '../support/allowed-time.ts'
import { blockedSeconds, blockedSince } from '../support/blocked.ts'
import { type Client, client, until } from '../support/client.ts'
import { evaluationEnded, uploadItems } from '../support/evaluations.ts'
import { dataFolder } from '../support/server.ts'
import { tiny } from '../support/tiny.ts'

const folder = dataFolder('attack-blocking')
let server = await folder.start()
after(() => folder.remove())
const keys = [folder.key(), folder.key()]
let [app, other] = keys.map((key) => client(server.url, key)) as [Client, Client]

/** Answers of another client, the slowest of which is what the attack costs others; and what held the event loop. */
async function attack<T>(
  work: () => Promise<T>,
): Promise<{ result: T; slowest_ms: number; blocked: string | undefined }> {
  const before = await blockedSeconds(server.url)
  let [over, slowest_ms] = [false, 0]
  const others = (async () => {
    while (!over) {
      const began = performance.now()
      assert.equal((await other.api('GET', '/user/profile')).status, 200)
      slowest_ms = Math.max(slowest_ms, performance.now() - began)
    }
  })()
  const result = await work().finally(() => {
    over = true
  })
  await others
  // The watch reports two beats later.
  await new Promise((resolve) => setTimeout(resolve, 400))
  return { result, slowest_ms, blocked: await blockedSince(before, server.url) }
}
/** Far above what a busy machine adds, far below what the attacks took. */
const slow_ms = 2000
function assertOthersAnswered({ slowest_ms, blocked }: { slowest_ms: number; blocked: string | undefined }): void {
  assert.equal(blocked, undefined)
  assert.ok(slowest_ms < slow_ms, `another client waited ${Math.round(slowest_ms)} ms`)
}
const create = (dataset: string, graders: object[], more: object = {}) =>
  app.api('POST', '/evaluations', { model: tiny, dataset, graders, sampling: { max_tokens: 2 }, ...more })

test('a template of braces and spaces is refused or filled in linear time, also after a restart', async () => {
  const dataset = await uploadItems(app, [{ messages: [{ role: 'user', content: 'hi' }] }])
  const check = (input: string) => ({ type: 'string_check', name: 'x', input, reference: 'a', operation: 'eq' })
  for (const length of [2500, 4000, 99_000])
    for (const template of [
      `{{${' '.repeat(length)}`,
      `${'{{ '.repeat(length / 3)}`,
      `{{item.a${'.a'.repeat(length / 2)}`,
    ]) {
      const attacked = await attack(async () => {
        const { status, body } = await create(dataset, [check(template)], {
          template: [{ role: 'user', content: template }],
        })
        return status === 201 ? evaluationEnded(app, body.id) : undefined
      })
      assertOthersAnswered(attacked)
      assert.ok(['completed', 'failed', undefined].includes(attacked.result?.status), JSON.stringify(attacked.result))
    }
  const { body } = await create(dataset, [check(`{{${' '.repeat(99_000)}`)])
  assert.equal(await server.end('SIGKILL'), null)
  server = await folder.start()
  ;[app, other] = keys.map((key) => client(server.url, key)) as [Client, Client]
  const resumed = await attack(() => evaluationEnded(app, body.id))
  assertOthersAnswered(resumed)
  assert.equal(resumed.result.status, 'completed')
})

test('9,000 schemas in one request are refused at once, as are patterns and schemas that do not compile', async () => {
  const dataset = await uploadItems(other, [{ messages: [{ role: 'user', content: 'hi' }] }])
  const schema = (schema: object) => ({ type: 'json_schema', name: 'x', schema })
  const parts = (count: number, part: object) =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`p${at}`, part]))
  const multi = (graders: object) => ({ type: 'multi', name: 'm', graders, calculate_output: 'p0' })
  const deep = (levels: number) => JSON.parse(`${'{"not":'.repeat(levels)}{}${'}'.repeat(levels)}`)
  const wide = Object.fromEntries(
    Array.from({ length: 3000 }, (_, at) => [`f${at}`, { type: 'string', pattern: '^a+$' }]),
  )
  const attacks: [name: string, grader: object][] = [
    ['many', multi(parts(9000, schema({ type: 'object' })))],
    ['fifty', multi(parts(50, schema({ properties: { a: { pattern: '(a+)+$' } } })))],
    ['deep', schema(deep(3000))],
    ['wide', schema({ properties: wide })],
    [
      'references',
      schema({ $ref: '#/$defs/a', $defs: { a: { anyOf: [{ $ref: '#/$defs/a' }, { $ref: '#/$defs/a' }] } } }),
    ],
    ['enum', schema({ enum: Array.from({ length: 30_000 }, (_, at) => at) })],
    ['nested repetition', { type: 'regex', name: 'x', pattern: '((a{1000}){1000}){1000}' }],
    ['large program', { type: 'regex', name: 'x', pattern: '(\\p{L}{300}){3}'.repeat(60) }],
    ['groups', { type: 'regex', name: 'x', pattern: '('.repeat(1000) }],
  ]
  for (const [name, grader] of attacks) {
    const attacked = await attack(() => create(dataset, [grader]))
    assert.ok([201, 400].includes(attacked.result.status), `${name}: ${JSON.stringify(attacked.result.body)}`)
    if (name === 'many') assert.match(attacked.result.body.error.message, /9000 graders .* may have 50/)
    assert.equal(attacked.blocked, undefined, name)
    assert.ok(attacked.slowest_ms < slow_ms, `${name}: another client waited ${Math.round(attacked.slowest_ms)} ms`)
  }
})

test('a grader that never ends costs its evaluation two seconds, not two for each row', async () => {
  const items = Array.from({ length: 16 }, () => ({
    messages: [{ role: 'user', content: 'hi' }],
    text: `${'a'.repeat(40)}!`,
  }))
  const dataset = await uploadItems(app, items)
  const grader = { type: 'json_schema', name: 'x', input: '"{{item.text}}"', schema: { pattern: '^(a+)+$' } }
  const { body } = await create(dataset, [grader])
  const status = async () => (await app.api('GET', `/evaluations/${body.id}`)).body.status
  await until('the evaluation to run', async () => (await status()) !== 'queued')
  const began = performance.now()
  assert.equal((await evaluationEnded(app, body.id)).status, 'failed')
  const took_ms = performance.now() - began
  assert.ok(took_ms < allowed(8000), `it ended after ${Math.round(took_ms)} ms`)
})
