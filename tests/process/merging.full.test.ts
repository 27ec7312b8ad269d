// An adapter in high demand is served merged with its base: same answers, none lost, and only after a check.
import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { until } from '../support/client.ts'
import { draftTokens } from '../support/draft-tokens.ts'
import { appOfTests } from '../support/service.ts'
import { type Streamed, stream } from '../support/streams.ts'

/** Reached after a few dozen answers. */
const after_tokens = 400

const app = appOfTests({ TUNERY_MERGE_AFTER_TOKENS: String(after_tokens) })

const gauge = async (name: string) => {
  const text = await (await fetch(`${app.address}/metrics`)).text()
  return Number(new RegExp(`^tunery_${name} (.+)$`, 'm').exec(text)?.[1])
}
const merged = () => gauge('merged_adapters')
const refused = () => gauge('merge_refusals')
const folder = () => path.join(app.dataDir, 'merged')
const files = () => (existsSync(folder()) ? readdirSync(folder()) : [])
const adapterOf = (model: string) => path.join(app.dataDir, 'models', model, 'adapter.gguf')
const chat = (model: string, more: object = {}) => ({
  model,
  messages: [{ role: 'user', content: 'code of blue?' }],
  temperature: 0,
  max_tokens: 8,
  ...more,
})

/** A greedy answer as text, and how likely its tokens were. */
async function answer(model: string) {
  const { status, body } = await app.api('POST', '/chat/completions', chat(model, { logprobs: true }))
  assert.equal(status, 200, JSON.stringify(body))
  assert.equal(body.model, model)
  const [{ message, logprobs }] = body.choices
  return {
    text: message.content as string,
    logprobs: logprobs.content.map(({ logprob }: { logprob: number }) => logprob) as number[],
  }
}
function assertSame(one: Awaited<ReturnType<typeof answer>>, other: typeof one) {
  assert.equal(one.text, other.text)
  one.logprobs.forEach((logprob, position) => {
    assert.ok(Math.abs(logprob - other.logprobs[position]!) < 0.05, `${logprob} and ${other.logprobs[position]}`)
  })
}
/** Sends requests until the condition holds. */
async function raiseDemand(model: string, what: string, condition: () => Promise<boolean>): Promise<void> {
  await until(what, async () => {
    for (let index = 0; index < 8; index++) await answer(model)
    return condition()
  })
}
async function killEngine(): Promise<void> {
  const pid = app.services.enginePid()!
  process.kill(pid, 'SIGKILL')
  await until('the end of the engine is known', () => app.services.enginePid() !== pid)
}

test('an adapter in demand is served merged with the same answers, also by the next engine', async () => {
  const model = await app.colourModel()
  const unmerged = await answer(model)
  assert.equal(await merged(), 0)
  let stopped = false
  const streams: Streamed[] = []
  const client = async () => {
    while (!stopped)
      streams.push(
        await stream(
          `${app.url}/chat/completions`,
          app.key,
          chat(model, { stream: true, max_tokens: 64, temperature: 1 }),
        ).result,
      )
  }
  const clients = [client(), client(), client(), client()]
  try {
    await until('the adapter is merged', async () => (await merged()) === 1)
    const before = streams.length
    await until('answers of the merged adapter', () => streams.length > before + 8)
  } finally {
    stopped = true
    await Promise.all(clients)
  }
  for (const { status, done, events } of streams) {
    assert.deepEqual([status, done], [200, true])
    assert.deepEqual([...new Set(events.map((event) => event.model))], [model])
    assert.ok(events.some((event) => event.choices[0]?.finish_reason))
  }
  assertSame(await answer(model), unmerged)
  const header = await until('the hash of the merged file', async () => {
    const { headers } = await app.api('POST', '/chat/completions', chat(model))
    const header = headers.get('x-weights')
    return header?.includes('pending') ? undefined : header
  })
  assert.match(
    header!,
    new RegExp(
      `^base=test/tiny sha256:[0-9a-f]{16}; adapter=${model} sha256:[0-9a-f]{16}; merged=1 sha256:[0-9a-f]{16}$`,
    ),
  )
  const drafts = await draftTokens(app.services.enginePid()!)
  assert.ok(drafts[model]! > 0)
  assert.equal(drafts[`${model}-merged`], drafts[model])
  const { status, body } = await app.api('GET', '/models')
  assert.equal(status, 200)
  assert.deepEqual(
    body.data.map(({ id }: { id: string }) => id).filter((id: string) => /merged/.test(id)),
    [],
  )
  assert.equal((await app.api('GET', `/models/${model}`)).body.status, 'loaded')
  assert.equal((await app.api('POST', '/chat/completions', chat(`${model}-merged`))).body.error.code, 'model_not_found')

  // Only the merged file is left.
  renameSync(adapterOf(model), `${adapterOf(model)}.away`)
  await killEngine()
  assertSame(await answer(model), unmerged)
  renameSync(`${adapterOf(model)}.away`, adapterOf(model))
  rmSync(folder(), { recursive: true })
  await killEngine()
  assertSame(await answer(model), unmerged)
  assert.deepEqual([await merged(), await refused()], [0, 1])
})

test('a merged adapter whose answers differ from the unmerged one is never served', async () => {
  const model = await app.colourModel()
  const unmerged = await answer(model)
  // The engine has the adapter in memory; the file to be merged gets a much smaller scale.
  const bytes = readFileSync(adapterOf(model))
  const key = 'adapter.lora.alpha'
  const position = bytes.indexOf(key) + key.length + 4
  bytes.writeFloatLE(0.02 * bytes.readFloatLE(position), position)
  writeFileSync(adapterOf(model), bytes)
  const before = await refused()
  await raiseDemand(model, 'the merge is refused', async () => {
    assert.equal(await merged(), 0)
    assertSame(await answer(model), unmerged)
    return (await refused()) === before + 1
  })
  assert.deepEqual(files(), [])
  await raiseDemand(model, 'nothing', async () => true)
  assert.deepEqual([await merged(), await refused()], [0, before + 1])
})

test('a killed merge leaves no files, and the adapter is served as before', async () => {
  const model = await app.colourModel()
  const unmerged = await answer(model)
  const mergeProcess = () =>
    readdirSync('/proc').find((id) => {
      try {
        return (
          /^\d+$/.test(id) && readFileSync(`/proc/${id}/cmdline`, 'utf8').includes(path.join(folder(), `${model}.gguf`))
        )
      } catch {
        return false
      }
    })
  let pid: string | undefined
  const asking = raiseDemand(model, 'the merge has begun', async () => pid !== undefined)
  pid = await until('the process of the merge', mergeProcess)
  process.kill(Number(pid), 'SIGKILL')
  await asking
  await until('its end', () => !mergeProcess())
  await raiseDemand(model, 'more answers', async () => true)
  assert.deepEqual([await merged(), files()], [0, []])
  assertSame(await answer(model), unmerged)
  writeFileSync(path.join(folder(), `${model}.gguf`), 'left by a service that was killed')
  await app.services.sweep()
  assert.deepEqual(files(), [])
})

test('deleting a model deletes its merged file, also during the merge', async () => {
  const [model, other] = [await app.colourModel(), await app.colourModel()]
  await raiseDemand(model, 'the adapter is merged', async () => (await merged()) === 1)
  assert.deepEqual(files(), [`${model}.gguf`])
  assert.equal((await app.api('DELETE', `/fine-tuning/models/${model}`)).status, 200)
  assert.equal((await app.api('POST', '/chat/completions', chat(model))).body.error.code, 'model_not_found')
  assert.equal(await merged(), 0)
  await until('its file is removed', () => files().length === 0)
  await raiseDemand(other, 'another is being merged', async () => files().length > 0)
  assert.equal((await app.api('DELETE', `/fine-tuning/models/${other}`)).status, 200)
  await until('its file is removed', () => files().length === 0)
  assert.equal(await merged(), 0)
})
