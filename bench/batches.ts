// A batch beside the same requests sent live, and what live requests feel while a batch runs.
// `npm run bench -- batches [lines]`
import { setTimeout as sleep } from 'node:timers/promises'
import { startService } from './support/service.ts'

const lines = Number(process.argv[2] ?? 10_000)
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
/** Clients of the live run: as many as a batch has requests in flight. */
const clients = 16
const service = await startService()

const quantile = (values: number[], share: number) =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))]!
const bodyOf = (index: number) => ({
  model: base,
  messages: [
    { role: 'system', content: 'You sort tickets. Answer with one word: billing, shipping or other.' },
    { role: 'user', content: `Ticket ${index}: my parcel number ${index * 7919} has not arrived yet.` },
  ],
  max_tokens: 4,
  temperature: 0,
})

/** Latencies in milliseconds of one client that asks once a second for 16 tokens, until `until` resolves. */
async function liveLatencies(until: Promise<unknown>): Promise<number[]> {
  const seen: number[] = []
  let ended = false
  void until.finally(() => {
    ended = true
  })
  while (!ended) {
    const started = performance.now()
    await service.api('POST', '/chat/completions', {
      model: base,
      messages: [{ role: 'user', content: `Say something about the number ${seen.length}.` }],
      max_tokens: 16,
      seed: 1,
    })
    seen.push(performance.now() - started)
    await Promise.race([sleep(1000), until.catch(() => {})])
  }
  return seen
}

async function sendLive(): Promise<number> {
  const started = performance.now()
  let next = 0
  const client = async () => {
    while (next < lines) await service.api('POST', '/chat/completions', bodyOf(next++))
  }
  await Promise.all(Array.from({ length: clients }, client))
  return (performance.now() - started) / 1000
}

async function runBatch(): Promise<number> {
  const rows = Array.from({ length: lines }, (_, index) =>
    JSON.stringify({ custom_id: `${index}`, method: 'POST', url: '/v1/chat/completions', body: bodyOf(index) }),
  )
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob([rows.join('\n')]), 'requests.jsonl')
  const started = performance.now()
  const { id: input_file_id } = await service.api('POST', '/files', form)
  const endpoint = '/v1/chat/completions'
  const { id } = await service.api('POST', '/batches', { input_file_id, endpoint, completion_window: '24h' })
  for (;;) {
    const { status, request_counts } = await service.api('GET', `/batches/${id}`)
    if (status === 'completed' && request_counts.completed === lines) return (performance.now() - started) / 1000
    if (['failed', 'expired', 'cancelled', 'completed'].includes(status))
      throw new Error(`the batch is ${status}: ${JSON.stringify(request_counts)}`)
    await sleep(500)
  }
}

const report = (what: string, ms: number[]) =>
  console.log(
    `${what}: ${ms.length} requests, median ${quantile(ms, 0.5).toFixed(0)} ms, ` +
      `95th percentile ${quantile(ms, 0.95).toFixed(0)} ms, longest ${Math.max(...ms).toFixed(0)} ms`,
  )
const speed = (what: string, seconds: number) =>
  console.log(`${what}: ${lines} requests in ${seconds.toFixed(1)} s, ${(lines / seconds).toFixed(1)} a second`)

try {
  await service.api('POST', '/chat/completions', bodyOf(0))
  report('a live client alone', await liveLatencies(sleep(30_000)))
  speed('the same requests live, 16 at once', await sendLive())
  const batch = runBatch()
  const felt = await liveLatencies(batch)
  speed('as a batch beside a live client', await batch)
  report('a live client beside the batch', felt)
} finally {
  await service.stop()
}
