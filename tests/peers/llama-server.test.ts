import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { startService } from '../../bench/support/service.ts'
import { answersWholeAndStreamed, clientOf, deathIsAnErrorEvent, hangUpStopsGeneration } from './shared.ts'
import { base, startLlamaServer, type Upstream, upstreams } from './upstreams.ts'

const model = 'remote/llama'
let upstream: Upstream
let service: Awaited<ReturnType<typeof startService>>
before(async () => {
  upstream = await startLlamaServer()
  service = await startService(upstreams({ model, url: upstream.url, kind: 'openai', upstream_model: base }))
})
after(async () => {
  await service?.stop()
  await upstream?.kill()
})

test('an upstream’s model is listed beside the others', async () => {
  const ids: string[] = []
  for await (const each of clientOf(service).models.list()) ids.push(each.id)
  assert.ok(ids.includes(model) && ids.includes(base), ids.join(' '))
})

test('answers come whole and streamed under the name that was asked, and are metered', () =>
  answersWholeAndStreamed(service, model))

test('an error of the upstream keeps its status and words, in the shape of this service', async () => {
  const asked = clientOf(service).chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'word '.repeat(20_000) }],
    max_tokens: 2,
  })
  await assert.rejects(asked, (error: Error & { status?: number; code?: string }) => {
    assert.equal(error.status, 400)
    assert.equal(error.code, 'context_length_exceeded')
    return true
  })
})

test('a client that hangs up stops the generation there', () =>
  hangUpStopsGeneration(service, model, () => upstream.metric('llamacpp:requests_processing')))

test('killed in mid-stream: an error event, 503 while it is away, used again when it is back', () =>
  deathIsAnErrorEvent(service, model, upstream))
