// A training at each priority (TUNERY_TRAINING_PRIORITY), alone and beside programs that keep cores busy: its speed,
// the cores that it gets, and answers beside it.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { jobEvents, type Service } from '../beside/job-events.ts'
import { firstTokens, measure, median, tokensPerSecond } from '../serving/job.ts'
import { text, user } from '../serving/prompts.ts'
import { model, noEndToken, type Ours, root, sampling, startOurs } from '../serving/servers.ts'
import { processorSeconds } from '../support/processor-time.ts'

const window_s = 15
/** Time in which the kernel and the engine's number of threads settle. */
const settling_s = 3
const output = 32
const clientCounts = [1, 8]

export interface Load {
  name: string
  loops: number
}

/** `besideLoops` runs work beside so many busy programs. */
export async function measurePriority(
  priority: string,
  loads: Load[],
  besideLoops: <T>(count: number, work: () => Promise<T>) => Promise<T>,
): Promise<void> {
  const us = await startOurs({ TUNERY_TRAINING_PRIORITY: priority })
  try {
    await answer(us, 1)
    for (const { name, loops } of loads)
      await besideLoops(loops, async () => {
        await sleep(settling_s * 1000)
        for (const clients of clientCounts)
          console.log(`no training, ${name}: ${answersText(await answers(us, clients))}`)
      })
    const job = await startTraining(us.service)
    const tokens = countTokens(us.service, job)
    for (const { name, loops } of loads)
      await besideLoops(loops, async () => {
        await sleep(settling_s * 1000)
        const alone = await trainingDuring(us, tokens, () => sleep(window_s * 1000))
        console.log(`${priority}, ${name}: training ${trainingText(alone)}`)
        for (const clients of clientCounts) {
          const both = await trainingDuring(us, tokens, () => answers(us, clients))
          console.log(`${priority}, ${name}: training ${trainingText(both)}; ${answersText(both.result)}`)
        }
      })
  } finally {
    await us.stop()
  }
}

async function startTraining(service: Service): Promise<string> {
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'))
  const form = new FormData()
  form.set('file', new Blob([rows]), 'rows.jsonl')
  const dataset_id = (await service.api('POST', '/datasets/', form)).id
  await service.idle()
  const config = { training_config: { epochs: 50, batch_size: 2 } }
  const { id } = await service.api('POST', '/fine-tuning/jobs', { model_id: model, dataset_id, config })
  for await (const { type } of jobEvents(service, id)) if (type === 'metrics') break
  return id
}

/** Follows a job's tokens. Resolves a call with the tokens of its latest step that was reported, and when. */
function countTokens(service: Service, job: string) {
  let latest = { tokens: 0, at: 0 }
  const reading = (async () => {
    for await (const { type, data, created_at } of jobEvents(service, job))
      if (type === 'metrics' && data?.tokens) latest = { tokens: Number(data.tokens), at: Date.parse(created_at) }
  })()
  // The stream ends with the service.
  reading.catch(() => {})
  return () => latest
}

function trainerSeconds(us: Ours): number {
  const isTrainer = (pid: number) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('trainer')
    } catch {
      return false
    }
  }
  return [...processorSeconds(us.pid)].filter(([pid]) => isTrainer(pid)).reduce((sum, [, seconds]) => sum + seconds, 0)
}

/** The training's speed while `work` runs, between steps that were reported, and the cores that it had. */
async function trainingDuring<T>(us: Ours, tokens: ReturnType<typeof countTokens>, work: () => Promise<T>) {
  const before = { ...tokens(), seconds: trainerSeconds(us), clock: performance.now() }
  const result = await work()
  const after = { ...tokens(), seconds: trainerSeconds(us), clock: performance.now() }
  return {
    result,
    cores: (after.seconds - before.seconds) / ((after.clock - before.clock) / 1000),
    speed: after.at > before.at ? (after.tokens - before.tokens) / ((after.at - before.at) / 1000) : 0,
  }
}

const trainingText = ({ speed, cores }: { speed: number; cores: number }) =>
  `${speed.toFixed(1)} tokens/s on ${cores.toFixed(2)} cores`

interface Answers {
  clients: number
  first_ms: number[]
  tokens_s: number
}

const body = (index: number) => ({ ...user(text(64, index)), ...sampling, ...noEndToken, max_tokens: output })
const answer = (us: Ours, index: number) => measure(us, 1, [body(index)])

/** Clients that each ask again after an answer, for the window. */
async function answers(us: Ours, clients: number): Promise<Answers> {
  const bodies = Array.from({ length: 100 * clients }, (_, index) => body(1000 * clients + index))
  const timing = await measure(us, clients, bodies, window_s)
  return { clients, first_ms: firstTokens(timing), tokens_s: tokensPerSecond(timing, output) }
}

const answersText = ({ clients, first_ms, tokens_s }: Answers) =>
  `${clients} client${clients > 1 ? 's' : ''}, first token ${median(first_ms).toFixed(0)} ms ` +
  `(at most ${Math.max(...first_ms).toFixed(0)}), ${tokens_s.toFixed(1)} tokens/s`
