import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { trainAdapter } from '../../bench/support/adapters.ts'
import { startService } from '../../bench/support/service.ts'
import { answersWholeAndStreamed, clientOf, deathIsAnErrorEvent, hangUpStopsGeneration } from './shared.ts'
import { base, startVllm, type Upstream, until, upstreams } from './upstreams.ts'

let upstream: Upstream
let service: Awaited<ReturnType<typeof startService>>
let tuned: string
before(async () => {
  upstream = await startVllm()
  // Under the base's own name, so that its adapters are served there too.
  service = await startService(upstreams({ model: base, url: upstream.url, kind: 'vllm', adapters: true }))
  tuned = await trainAdapter(service.api, 0)
  await service.api('POST', '/deployments', { model: tuned, name: 'triage' })
})
after(async () => {
  await service?.stop()
  await upstream?.kill()
})

const generated = () => upstream.metric('vllm:generation_tokens_total')

test('vLLM answers for the base, whole and streamed, and is metered', async () => {
  const tokens = await generated()
  await answersWholeAndStreamed(service, base)
  await until('vLLM has counted them', async () => (await generated()) > tokens)
})

test('our adapter is loaded there on its first request, and changes the answer', async () => {
  const client = clientOf(service)
  const ask = async (model: string) => {
    const messages = [
      { role: 'system' as const, content: 'Triage the ticket.' },
      { role: 'user' as const, content: 'I lost the recovery codes for Mail and am shut out. Low priority, no rush.' },
    ]
    return (await client.chat.completions.create({ model, messages, max_tokens: 40, temperature: 0 })).choices[0]!
      .message.content!
  }
  const [plain, adapted, again] = [await ask(base), await ask('triage'), await ask(base)]
  assert.notEqual(adapted, plain)
  assert.equal(again, plain, 'the base is as it was')
  assert.equal(await ask(tuned), adapted, 'by the model’s own id too')
  const { data } = (await (await fetch(`${upstream.url}/v1/models`)).json()) as {
    data: { id: string; parent: string | null }[]
  }
  assert.ok(data.length > 1, 'vLLM lists it')
  await answersWholeAndStreamed(service, 'triage')
})

test('a client that disconnects stops the upstream’s generation', () =>
  hangUpStopsGeneration(service, 'triage', () => upstream.metric('vllm:num_requests_running')))

test('a killed upstream: an error event, 503 while it is down, then used again with its adapters reloaded', () =>
  deathIsAnErrorEvent(service, 'triage', upstream))
