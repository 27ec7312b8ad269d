// Training and chat on one machine: how long a job takes to its first step and from its last one to its model, and how fast answers come
// before and beside it. `npm run bench -- beside [turns]`
import { readFileSync } from 'node:fs'
import path from 'node:path'
import type { JobEvent } from '../contract/tuning.ts'
import { startService } from './support/service.ts'

const [turns = 3] = process.argv.slice(2).map(Number)
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const root = path.resolve(import.meta.dirname, '..')
const service = await startService()

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!
const seconds = (from: string, to: string) => (Date.parse(to) - Date.parse(from)) / 1000

/** Generated tokens a second of `streams` answers at once. */
async function chatSpeed(streams: number): Promise<number> {
  const started = performance.now()
  const answers = await Promise.all(
    Array.from({ length: streams }, (_, index) =>
      service.api('POST', '/chat/completions', {
        model: base,
        messages: [{ role: 'user', content: `Tell a long story about the number ${index}.` }],
        max_tokens: 128,
        temperature: 0.7,
        seed: index,
      }),
    ),
  )
  const tokens = answers.reduce((sum, answer) => sum + answer.usage.completion_tokens, 0)
  return tokens / ((performance.now() - started) / 1000)
}

async function* events(job: string): AsyncGenerator<JobEvent> {
  const response = await fetch(`${service.url}/fine-tuning/jobs/${job}/events`, { headers: { authorization: `Bearer ${service.key}` } })
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
    service.api('POST', '/fine-tuning/jobs', { model_id: base, dataset_id: dataset, config: { training_config: { epochs } } }) as Promise<{
      id: string
      created_at: string
    }>
  await chatSpeed(1)

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
    console.log(`turn ${turn + 1}: ${starts.at(-1)!.toFixed(1)} s to the end of the first step, ${ends.at(-1)!.toFixed(1)} s from the last step to the model`)
  }
  console.log(`start to first step ${median(starts).toFixed(1)} s, conversion and registration ${median(ends).toFixed(1)} s`)

  for (const streams of [1, 8]) {
    const alone: number[] = []
    const beside: number[] = []
    for (let turn = 0; turn < turns; turn++) {
      alone.push(await chatSpeed(streams))
      const job = await train(50)
      for await (const event of events(job.id)) if (event.type === 'metrics') break
      beside.push(await chatSpeed(streams))
      await service.api('POST', `/fine-tuning/jobs/${job.id}/cancel`)
      while ((await service.api('GET', `/fine-tuning/jobs/${job.id}`)).status !== 'cancelled') await new Promise((resolve) => setTimeout(resolve, 100))
      // The trainer has its moment to stop.
      await new Promise((resolve) => setTimeout(resolve, 5000))
      console.log(`${streams} at once, turn ${turn + 1}: ${alone.at(-1)!.toFixed(1)} tokens/s alone, ${beside.at(-1)!.toFixed(1)} beside a training`)
    }
    const share = median(beside) / median(alone)
    console.log(`${streams} at once: ${median(alone).toFixed(1)} tokens/s alone, ${median(beside).toFixed(1)} beside a training: ${share.toFixed(2)}`)
  }
}

try {
  await main()
} finally {
  await service.stop()
}
