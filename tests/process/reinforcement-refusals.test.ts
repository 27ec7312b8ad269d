// Learning from graders with what cannot be learned from: told at creation where it is known then, else by a sentence.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startReceiver } from '../support/receiver.ts'
import { figuresOf, learn, letters, localGraders, prompts } from '../support/reinforcement.ts'
import { appOfTests } from '../support/service.ts'
import { tiny } from '../support/tiny.ts'

const app = appOfTests(localGraders)

/** Half of the answers are far better than the others, beyond what means and deviations can tell. */
async function startExtreme(field: 'score' | 'reward') {
  const receiver = await startReceiver((_, response) => {
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ [field]: receiver.received.length % 2 ? 1e308 : -1e308, done: true }))
  })
  return receiver
}

const tooFar = /1e\+308, and a score is from -1,000,000 to 1,000,000/

test('a score without bounds is a failure of its grader, and the job can still be read', async () => {
  const receiver = await startExtreme('score')
  try {
    const grader = { type: 'endpoint', name: 'extreme', url: receiver.url }
    const id = await learn(app, prompts(4), { grader }, { epochs: 1 })
    const { status, error } = await app.untilEnded(id)
    assert.equal(status, 'failed')
    assert.equal(error!.code, 'graders_failed')
    assert.match(error!.message, tooFar)
  } finally {
    receiver.stop()
  }
})

test('so are rewards of an environment, which never reach the trainer', async () => {
  const receiver = await startExtreme('reward')
  try {
    const environments = [{ name: 'extreme', url: receiver.url }]
    const id = await learn(app, prompts(4), { environments }, { epochs: 1 })
    const { error } = await app.untilEnded(id)
    assert.equal(error!.code, 'graders_failed')
    assert.match(error!.message, tooFar)
  } finally {
    receiver.stop()
  }
})

const broken: [string, object, string][] = [
  ['a type that there is not', { type: 'nonsense' }, 'type'],
  ['no type', {}, 'type'],
  ['no schema', { type: 'json_schema' }, 'json_schema'],
  [
    'a schema of no type',
    { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'nope' } } },
    'json_schema.schema',
  ],
  [
    'a schema that refers to nothing',
    { type: 'json_schema', json_schema: { name: 'x', schema: { $ref: '#/nothing' } } },
    'json_schema.schema',
  ],
]
for (const [name, response_format, at] of broken)
  test(`a response_format with ${name} is refused when the job is created`, async () => {
    const { body: dataset } = await app.upload(prompts(2))
    const config = { method_options: { objective: 'reinforcement', grader: letters, response_format } }
    const job = { model_id: tiny, dataset_id: dataset.id, config }
    for (const path of ['/fine-tuning/jobs', '/fine-tuning/jobs/estimate']) {
      const { status, body } = await app.api('POST', path, job)
      assert.equal(status, 400, `${path}: ${JSON.stringify(body)}`)
      assert.equal(body.error.details.field, `config.method_options.response_format.${at}`)
    }
    const { status, body } = await app.api('POST', '/fine_tuning/jobs', {
      model: tiny,
      training_file: dataset.id,
      method: { type: 'reinforcement', reinforcement: { grader: letters, response_format } },
    })
    assert.equal(status, 400, JSON.stringify(body))
    assert.equal(body.error.param, `method.reinforcement.response_format.${at}`)
  })

test('a row that begins with its answer is left out, and the others are learned from', async () => {
  const answers = JSON.stringify({ messages: [{ role: 'assistant', content: 'yes' }] })
  const question = { role: 'user', content: 'word?' }
  const asked = JSON.stringify({ messages: [question, { role: 'assistant', content: 'yes' }] })
  const id = await learn(app, `${answers}\n${asked}`, { grader: letters }, { epochs: 1, batch_size: 2 })
  const [step] = await figuresOf(app, id)
  assert.equal(step!.answers, 16)
  assert.equal((await app.job(id)).status, 'completed')
  const left: string[] = []
  for await (const { type, message } of app.events(id))
    if (type === 'warning' && message.startsWith('Row')) left.push(message)
  assert.deepEqual(left, ['Row 1 is left out: it has no message before its answer.'])
})

test('a job that can ask none of its prompts says why', async () => {
  const long = JSON.stringify({ messages: [{ role: 'user', content: 'word '.repeat(20_000) }] })
  const id = await learn(app, long, { grader: letters }, { epochs: 1 })
  const { error } = await app.untilEnded(id)
  assert.equal(error!.code, 'dataset_invalid')
  assert.match(
    error!.message,
    /none of the prompts of a step\. The last, row 1: The prompt has .*this model takes 2048/,
  )
})

test('a job whose few answers all have no score fails, and is no model', async () => {
  const grader = { ...letters, input: '{{item.missing}}' }
  const id = await learn(app, prompts(2), { grader, group_size: 2 }, { epochs: 1, batch_size: 2 })
  const { status, error } = await app.untilEnded(id)
  assert.equal(status, 'failed')
  assert.equal(error!.code, 'graders_failed')
  assert.match(error!.message, /^Graders failed on all 4 answers\. The last: .*no 'item\.missing'/)
})

test('a problem of the one grader is named by the field that was sent', async () => {
  const { body: dataset } = await app.upload(prompts(2))
  const grader = { type: 'multi', name: 'sum', graders: { letters }, calculate_output: 'others' }
  const config = { method_options: { objective: 'reinforcement', grader } }
  const ours = await app.api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id: dataset.id, config })
  assert.equal(ours.body.error.details.field, 'config.method_options.grader.calculate_output')
  const method = { type: 'reinforcement', reinforcement: { grader } }
  const theirs = await app.api('POST', '/fine_tuning/jobs', { model: tiny, training_file: dataset.id, method })
  assert.equal(theirs.body.error.param, 'method.reinforcement.grader.calculate_output')
  const tried = await app.api('POST', '/fine_tuning/alpha/graders/validate', { grader })
  assert.equal(tried.body.error.param, 'grader.calculate_output')
})
