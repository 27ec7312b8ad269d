// Training and chat together on one machine: time to a job's first step and from its last step to an answer of its
// model, and the share of its speed that each keeps while the other runs.
// `npm run bench -- beside [--only start|chat] [--rows N] [turns] [seconds]`
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { startService } from '../support/service.ts'
import { jobEvents } from './job-events.ts'
import { measureStart } from './start.ts'

const { values, positionals } = parseArgs({
  options: { only: { type: 'string' }, rows: { type: 'string' } },
  allowPositionals: true,
})
const [turns = 3, window_s = 40] = positionals.map(Number)
if (!(turns >= 1 && window_s > 0) || !['start', 'chat', undefined].includes(values.only)) {
  console.error('Usage: npm run bench -- beside [--only start|chat] [--rows N] [turns] [seconds]')
  process.exit(2)
}
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const root = path.resolve(import.meta.dirname, '../..')
const service = await startService({ TUNERY_PREPARED_TRAINER_SECONDS: '600' })

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!

/** Generated tokens per second of `streams` clients that send requests for `window_s`. */
async function chatSpeed(streams: number, window_s: number): Promise<number> {
  const started = performance.now()
  let tokens = 0
  const client = async (index: number) => {
    for (let turn = 0; turn === 0 || performance.now() - started < window_s * 1000; turn++) {
      const answer = await service.api('POST', '/chat/completions', {
        model: base,
        messages: [{ role: 'user', content: `Tell a long story about the number ${index}.` }],
        max_tokens: 128,
        temperature: 0.7,
        seed: index + turn,
      })
      tokens += answer.usage.completion_tokens
    }
  }
  await Promise.all(Array.from({ length: streams }, (_, index) => client(index)))
  return tokens / ((performance.now() - started) / 1000)
}

/** Training tokens per second of a job while `work` runs, from the steps that end in that time and the one before. */
async function trainingSpeedDuring<T>(
  job: string,
  work: () => Promise<T>,
): Promise<{ speed: number; slowed: boolean; result: T }> {
  const started = Date.now()
  const seen: { at: number; tokens: number }[] = []
  let ended = Number.POSITIVE_INFINITY
  let slowed = false
  const reading = (async () => {
    for await (const { type, data, created_at } of jobEvents(service, job)) {
      const at = Date.parse(created_at)
      if (data?.code === 'slowed' && at >= started) slowed = true
      if (type === 'metrics' && data?.tokens) seen.push({ at, tokens: Number(data.tokens) })
      if (at > ended) return
    }
  })()
  const result = await work()
  ended = Date.now()
  await reading
  const inWindow = seen.filter(({ at }, index) => (seen[index + 1]?.at ?? at) > started && at <= ended)
  const [first, last] = [inWindow[0], inWindow.at(-1)]
  const speed = first && last && last.at > first.at ? ((last.tokens - first.tokens) * 1000) / (last.at - first.at) : 0
  return { speed, slowed, result }
}

async function main() {
  const form = new FormData()
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8').trim().split('\n')
  form.set('file', new Blob([rows.slice(0, Number(values.rows ?? rows.length)).join('\n')]), 'rows.jsonl')
  const dataset = (await service.api('POST', '/datasets/', form)).id
  const train = (epochs: number) =>
    service.api('POST', '/fine-tuning/jobs', {
      model_id: base,
      dataset_id: dataset,
      config: { training_config: { epochs } },
    }) as Promise<{ id: string; created_at: string }>
  await chatSpeed(1, 0)

  if (values.only !== 'chat' && !(await measureStart(service, () => train(1), turns))) process.exitCode = 1
  if (values.only === 'start') return

  for (const streams of [1, 8]) {
    const rounds: { chat: [alone: number, beside: number]; training: [alone: number, beside: number] }[] = []
    for (let turn = 0; turn < turns; turn++) {
      const chat_alone = await chatSpeed(streams, window_s)
      const job = await train(50)
      for await (const event of jobEvents(service, job.id)) if (event.type === 'metrics') break
      const alone = await trainingSpeedDuring(job.id, () => sleep(window_s * 1000))
      const beside = await trainingSpeedDuring(job.id, () => chatSpeed(streams, window_s))
      await service.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
      while ((await service.api('GET', `/fine-tuning/jobs/${job.id}`)).status !== 'cancelled') await sleep(100)
      // Time for the trainer to stop.
      await sleep(3000)
      rounds.push({ chat: [chat_alone, beside.result], training: [alone.speed, beside.speed] })
      console.log(
        `${streams} at once, turn ${turn + 1}: chat ${chat_alone.toFixed(1)} tokens/s alone, ` +
          `${beside.result.toFixed(1)} with a training; training ${alone.speed.toFixed(1)} alone, ` +
          `${beside.speed.toFixed(1)} with chat${beside.slowed ? ' (reported as slowed)' : ''}`,
      )
    }
    for (const what of ['chat', 'training'] as const) {
      const share = median(rounds.map((round) => round[what][1] / round[what][0]))
      console.log(`${streams} at once: ${what} keeps ${share.toFixed(2)} of its speed while the other runs`)
    }
  }
}

try {
  await main()
} finally {
  await service.stop()
}
