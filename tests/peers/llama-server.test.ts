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

test('an upstream’s model is listed with the others', async () => {
  const ids: string[] = []
  for await (const model of clientOf(service).models.list()) ids.push(model.id)
  assert.ok(ids.includes(model) && ids.includes(base), ids.join(' '))
})

test('answers, whole and streamed, have the requested model name and are metered', () =>
  answersWholeAndStreamed(service, model))

test('an upstream’s error keeps its status and message, in our error shape', async () => {
  const request = clientOf(service).chat.completions.create({
    model,
    messages: [{ role: 'user', content: 'word '.repeat(20_000) }],
    max_tokens: 2,
  })
  await assert.rejects(request, (error: Error & { status?: number; code?: string }) => {
    assert.equal(error.status, 400)
    assert.equal(error.code, 'context_length_exceeded')
    return true
  })
})

test('a client that disconnects stops the upstream’s generation', () =>
  hangUpStopsGeneration(service, model, () => upstream.metric('llamacpp:requests_processing')))

test('a killed upstream: an error event in the stream, 503 while it is down, used again afterwards', () =>
  deathIsAnErrorEvent(service, model, upstream))
