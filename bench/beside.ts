// Training and chat together on one machine: time to a job's first step and from its last step to the model, and the
// share of its speed that each keeps while the other runs. `npm run bench -- beside [turns] [seconds]`
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { JobEvent } from '../contract/fine-tuning.ts'
import { startService } from './support/service.ts'

const [turns = 3, window_s = 40] = process.argv.slice(2).map(Number)
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const root = path.resolve(import.meta.dirname, '..')
const service = await startService()

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!
const seconds = (from: string, to: string) => (Date.parse(to) - Date.parse(from)) / 1000

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
    for await (const { type, data, created_at } of events(job)) {
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

async function* events(job: string): AsyncGenerator<JobEvent> {
  const response = await fetch(`${service.url}/fine-tuning/jobs/${job}/events`, {
    headers: { authorization: `Bearer ${service.key}` },
  })
  let rest = ''
  for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line) yield JSON.parse(line)
  }
}

async function main() {
  const form = new FormData()
  form.set('file', new Blob([readFileSync(path.join(root, 'examples/ticket-triage.jsonl'))]), 'rows.jsonl')
  const dataset = (await service.api('POST', '/datasets/', form)).id
  const train = (epochs: number) =>
    service.api('POST', '/fine-tuning/jobs', {
      model_id: base,
      dataset_id: dataset,
      config: { training_config: { epochs } },
    }) as Promise<{
      id: string
      created_at: string
    }>
  await chatSpeed(1, 0)

  const starts: number[] = []
  const ends: number[] = []
  for (let turn = 0; turn < turns; turn++) {
    const job = await train(1)
    let first: string | undefined
    let converting: string | undefined
    let last: JobEvent | undefined
    for await (const event of events(job.id)) {
      if (event.type === 'metrics') first ??= event.created_at
      if (event.data?.phase === 'converting') converting = event.created_at
      last = event
    }
    if (last?.data?.status !== 'completed') throw new Error(JSON.stringify(last))
    starts.push(seconds(job.created_at, first!))
    ends.push(seconds(converting!, last.created_at))
    console.log(
      `turn ${turn + 1}: ${starts.at(-1)!.toFixed(1)} s to the end of the first step, ` +
        `${ends.at(-1)!.toFixed(1)} s from the last step to the model`,
    )
  }
  console.log(
    `start to first step ${median(starts).toFixed(1)} s, conversion and registration ${median(ends).toFixed(1)} s`,
  )

  for (const streams of [1, 8]) {
    const rounds: { chat: [alone: number, beside: number]; training: [alone: number, beside: number] }[] = []
    for (let turn = 0; turn < turns; turn++) {
      const chat_alone = await chatSpeed(streams, window_s)
      const job = await train(50)
      for await (const event of events(job.id)) if (event.type === 'metrics') break
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
