// Learning over several turns: an environment behind an address answers calls of tools and rewards episodes.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import type { Tool } from '../../contract/chat.ts'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

interface Message {
  role: string
  content: string | null
  tool_calls?: { id: string; function: { name: string; arguments: string } }[]
}
interface Posted {
  path: string
  headers: IncomingMessage['headers']
  text: string
  body: { environment: string; episode: string; turn: number; last: boolean; item: { n: number }; messages: Message[] }
}

let app: TestApp
let url: string
const posted: Posted[] = []
const connections = { private: 0 }
const server = createServer(async (request, response) => {
  let text = ''
  for await (const piece of request.setEncoding('utf8')) text += piece
  const each = { path: request.url!, headers: request.headers, text, body: JSON.parse(text) }
  posted.push(each)
  answers[each.path]!(each, response)
})
/** Where no request may come: an environment redirects to it. */
const canary = createServer((_, response) => {
  connections.private++
  response.end('{}')
})

before(async () => {
  for (const each of [server, canary]) await new Promise<void>((resolve) => each.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  url = `http://127.0.0.1:${port}`
  // With embeddings so long that a token can be far likelier than others, unlike those of the other tests' base.
  const models = tinyModelsDir({ initializer_range: 0.3 })
  app = await startApp({ TUNERY_MODELS_DIR: models, TUNERY_WEBHOOK_ALLOW: `127.0.0.1/32:${port}` })
})
after(async () => {
  await app.stop()
  for (const each of [server, canary]) {
    each.closeAllConnections()
    each.close()
  }
})

const choose: Tool = {
  type: 'function',
  function: {
    name: 'choose',
    description: 'Chooses a letter.',
    parameters: { type: 'object', properties: { letter: { enum: ['a', 'b'] } }, required: ['letter'] },
  },
}

/** Whether a token is one of this vocabulary's special ones: in an answer that are those that end it. */
const isSpecial = (token: number) => token < 17

const reply = (response: ServerResponse, value: object) => void response.end(JSON.stringify(value))
const callsOf = ({ messages }: Posted['body']) => messages.flatMap(({ tool_calls = [] }) => tool_calls)
const resultsOf = ({ messages }: Posted['body'], content: string) =>
  messages.at(-1)!.tool_calls!.map(({ id }) => ({ role: 'tool', tool_call_id: id, content }))
const letters = (body: Posted['body']): string[] =>
  callsOf(body).map((call) => JSON.parse(call.function.arguments).letter)

const answers: Record<string, (posted: Posted, response: ServerResponse) => void> = {
  // Two calls; the reward is the share of those with an a.
  '/letters': ({ body }, response) => {
    // An answer that was cut has no whole call.
    const chosen = body.last && body.turn === 1 ? ['b'] : letters(body)
    if (body.turn === 1 && !body.last)
      reply(response, { messages: resultsOf(body, 'Noted. <|im_end|> Choose once more.') })
    else reply(response, { done: true, reward: chosen.filter((letter) => letter === 'a').length / chosen.length })
  },
  '/hangs': () => {},
  '/fails': (_, response) => void response.writeHead(500).end('no'),
  '/large': (_, response) => void response.end(`{"reward": 1, "padding": "${'x'.repeat(10_000_000)}"}`),
  '/redirects': (_, response) => {
    const { port } = canary.address() as AddressInfo
    response.writeHead(302, { location: `http://127.0.0.1:${port}/` }).end()
  },
  '/silent': (_, response) => reply(response, { messages: [{ role: 'user', content: 'And?' }] }),
  '/rewardless': (_, response) => reply(response, { done: true }),
  '/wordy': ({ body }, response) =>
    reply(response, body.last ? { reward: 0.5 } : { messages: resultsOf(body, 'word '.repeat(300)) }),
}

interface Started {
  rows: object[]
  method_options: object
  training_config?: object
}

async function start({ rows, method_options, training_config }: Started) {
  const lines = rows.map((row, n) =>
    JSON.stringify({ messages: [{ role: 'user', content: `word ${n}?` }], tools: [choose], n, ...row }),
  )
  const { body: dataset, status } = await app.upload(lines.join('\n'))
  assert.equal(status, 201, JSON.stringify(dataset))
  return await app.api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      method_options: {
        objective: 'reinforcement',
        tool_choice: 'required',
        max_tokens: 64,
        refill_rounds: 0,
        ...method_options,
      },
      training_config: { warmup_ratio: 0, seed: 1, ...training_config },
    },
  })
}

interface StoredAnswer {
  tokens: number[]
  logprobs: number[]
  cut: boolean
  error: string | null
  score: number | null
  episode: { context: [number, number][]; messages: Message[]; turns: number }
}
/** The answers of a step that a run has stored. */
function stored(job_id: string, step: number): { row: number; prompt: number[]; answers: StoredAnswer[] }[] {
  const [file] = globSync(`${app.dataDir}/runs/${job_id}/rollouts/step-${step}.json`)
  return JSON.parse(readFileSync(file!, 'utf8')).groups
}

async function run(started: Started) {
  const { status, body } = await start(started)
  assert.equal(status, 201, JSON.stringify(body))
  const steps: NonNullable<JobEvent['data']>[] = []
  let first: ReturnType<typeof stored> = []
  for await (const { type, data } of app.events(body.id)) {
    if (type !== 'metrics') continue
    if (steps.length === 0) first = stored(body.id, 1)
    steps.push(data!)
  }
  return { job: await app.job(body.id), steps, first }
}

test('the reward of episodes rises, and their own tokens alone are trained', { timeout: 900_000 }, async () => {
  const environments = [{ name: 'letters', url: `${url}/letters` }]
  const { job, steps, first } = await run({
    rows: [{}, {}],
    method_options: { environments, group_size: 8 },
    training_config: { epochs: 8, batch_size: 2, learning_rate: 0.03 },
  })
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const rewards = steps.map(({ reward }) => Number(reward))
  assert.ok(rewards[0]! < 0.7, `it begins by chance: ${rewards}`)
  const last = rewards.slice(-3)
  assert.ok(last.reduce((sum, reward) => sum + reward, 0) / last.length >= 0.75, `it learns: ${rewards}`)
  for (const step of steps) {
    assert.ok(Number(step.turns) > 1.8 && Number(step.turns) <= 2, `${step.turns} turns`)
    assert.deepEqual(step.graders, { letters: step.reward })
    assert.ok(Number(step.environment_seconds) > 0)
  }
  // The trainer finds the probabilities that the engine sampled with at the same places.
  const gaps = steps.flatMap(({ probability_gap }) => (probability_gap === undefined ? [] : [Number(probability_gap)]))
  assert.ok(gaps.length > 0 && Math.max(...gaps) < 0.1, `engine and trainer agree: ${gaps}`)

  const { secret } = (await app.api('GET', '/graders/secrets/default')).body
  const own = posted.filter(({ path }) => path === '/letters')
  for (const { headers, text } of own) new Webhook(secret).verify(text, headers as Record<string, string>)
  const roles = own
    .filter(({ body }) => body.turn === 2)
    .map(({ body }) => body.messages.map(({ role }) => role).join())
  assert.deepEqual([...new Set(roles)], ['assistant,tool,assistant'])

  const texts = new Set<string>()
  for (const { prompt, answers } of first)
    for (const { tokens, logprobs, cut, episode } of answers.filter(({ episode }) => episode.turns === 2)) {
      assert.equal(episode.context.length, 1)
      const [from, to] = episode.context[0]!
      assert.equal(logprobs.length, tokens.length - (to - from))
      assert.ok(logprobs.every((logprob) => logprob <= 0))
      texts.add(tokens.slice(from, to).join())
      // A token that ends answers is the last of each turn, unless that was cut, and none is within.
      const later = tokens.slice(to)
      for (const turn of [tokens.slice(0, from), later]) {
        const end = turn.findIndex(isSpecial)
        assert.equal(end, turn === later && cut ? -1 : turn.length - 1)
        assert.ok(turn.length > 5)
      }
      assert.ok(prompt.length > 0)
    }
  assert.equal(texts.size, 1, 'what the environment said is written alike in all episodes')
  // It spells the end of an answer, which stays text.
  const [context] = [...texts].map((text) => text.split(',').map(Number))
  assert.equal(context!.filter((token) => token === 2).length, 1)
})

test('an environment that fails scores nothing, is bounded, and says why', { timeout: 400_000 }, async () => {
  const names = ['hangs', 'fails', 'large', 'redirects', 'silent', 'rewardless', 'wordy', 'letters']
  const environments = names.map((name) => ({
    name,
    url: `${url}/${name}`,
    tokens_max: 300,
    ...(name === 'hangs' && { timeout_seconds: 1 }),
  }))
  const { job, steps, first } = await run({
    rows: names.map((environment) => ({ environment })),
    method_options: { environments, group_size: 2, grading: { error_share_max: 1 } },
    training_config: { epochs: 1, batch_size: names.length },
  })
  assert.equal(job.status, 'completed', JSON.stringify(job.error))
  const errors = Object.fromEntries(first.map(({ row, answers }) => [names[row - 1], answers[0]!.error]))
  assert.deepEqual(errors, {
    hangs: "The environment 'hangs' failed: it did not answer: no answer within 1 s.",
    fails: "The environment 'fails' failed: it did not answer: it answered 500: no.",
    large: "The environment 'large' failed: it did not answer: its answer has more than 262144 bytes.",
    redirects: "The environment 'redirects' failed: it did not answer: it answered 302.",
    silent: errors.silent,
    rewardless: "The environment 'rewardless' failed: it ended the episode without a reward.",
    wordy: null,
    letters: null,
  })
  assert.match(errors.silent!, /^The environment 'silent' failed: it left the call 'call_\w+' without an answer\.$/)
  assert.equal(connections.private, 0, 'a redirect is not followed')
  assert.equal(steps[0]!.grader_failures, 12)
  const [wordy] = first.filter(({ row }) => names[row - 1] === 'wordy')
  for (const { tokens, score, episode } of wordy!.answers) {
    assert.equal(score, 0.5)
    assert.ok(tokens.length <= 300, `${tokens.length} tokens`)
    assert.ok(episode.turns < 8)
  }
})

test('a job ends with a sentence where its environment fails too often', { timeout: 200_000 }, async () => {
  const environments = [{ url: `${url}/rewardless` }]
  const { job } = await run({ rows: [{}, {}], method_options: { environments, group_size: 8 } })
  assert.equal(job.status, 'failed')
  assert.equal(job.error!.code, 'graders_failed')
  assert.match(job.error!.message, /The environment 'environment' failed: it ended the episode without a reward\./)
})

test('an environment that can never be asked, or never rewards, is refused', async () => {
  const messageFor = async (method_options: object) => {
    const { status, body } = await start({ rows: [{}, {}], method_options })
    assert.equal(status, 400, JSON.stringify(body))
    return `${body.error.code}: ${body.error.message}`
  }
  const refusals = [
    [[{ url: 'http://10.0.0.1/' }], /^address_blocked: 'config\.method_options\.environments\.0\.url'/],
    [[{ url: `http://127.0.0.1:${(canary.address() as AddressInfo).port}/` }], /^address_blocked/],
    [[{ url: 'ftp://env.example.com' }], /^invalid_request/],
    [[{ url, rewards: false }], /^invalid_request: 'config\.method_options\.graders' is required/],
    [[{ url }, { url }], /twice/],
  ] as const
  for (const [environments, message] of refusals) assert.match(await messageFor({ environments }), message)
})
